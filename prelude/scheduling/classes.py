"""The execution class of a request: a resource contract, decided once, at admission."""

from __future__ import annotations

from enum import Enum

from prelude.admission.prepared import Prepared


class ExecutionClass(str, Enum):
    """ONESHOT: one forward pass, holds nothing while queued and nothing after its step, writes the KV pool only
    where the plan publishes a prefix. DECODE: blocks and a row from its first chunk until it stops."""

    ONESHOT = "oneshot"
    DECODE = "decode"


def classify(prepared: Prepared) -> ExecutionClass:
    """More than one token to generate needs Decode; everything else is finished by one forward pass.

    ``max_new_tokens`` is the effective budget (already cut to what the context leaves), so both the direct and
    the scheduled path, and every kind of task, go through this one rule.
    """
    return ExecutionClass.DECODE if prepared.max_new_tokens > 1 else ExecutionClass.ONESHOT
