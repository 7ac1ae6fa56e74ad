"""The execution class: a pure function of the prepared task, the same on the direct and on the scheduled path."""

from __future__ import annotations

import enum

from prelude.admission.prepared import Prepared


class ExecutionClass(enum.Enum):
    """A contract about resources, not a label: see the table in docs/ARCHITECTURE.md."""

    ONESHOT = "oneshot"  # one step, nothing that grows
    DECODE = "decode"  # a row and blocks until it stops


def classify(prepared: Prepared) -> ExecutionClass:
    """Return OneShot if at most one token can come out: everything with a fixed-size answer, and generation of 0 or 1
    tokens, also if the context leaves no room for more."""
    return ExecutionClass.DECODE if prepared.max_new_tokens > 1 else ExecutionClass.ONESHOT
