"""Plan: one step's decision as data. Printable; packing and postprocessing read nothing else."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from prelude.records import dataclass, replace
from prelude.scheduling.request import Request, State


@dataclass(slots=True)
class OneShotRow:
    """``skip`` trunk tokens come from the cache; ``publish`` blocks of the lease receive the KV of the tokens after
    them."""

    request: Request
    skip: int
    publish: int


class Fold(NamedTuple):
    """``members`` (indices of OneShot rows with the same ``skip``) share the next ``tokens`` tokens: these are
    computed once, from the first member, which also publishes for all. If members read some of these, all read the
    same place."""

    members: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Tokens ``[start, start + count)`` of a Decode request; the chunk that ends the known tokens is sampled."""

    request: Request
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == self.request.num_known


def lives(request: Request, void: Collection[int]) -> bool:
    """Whether a row of a step that was in flight still is its request's next: that has not ended meanwhile, and the
    step it goes on from did not fail."""
    return request.state is not State.FINISHED and request.id not in void


@dataclass(frozen=True, slots=True)
class Plan:
    """``postprocess_first``: nothing is planned, because a row would have to be preempted while a step in flight has
    a row of it."""

    oneshot: tuple[OneShotRow, ...] = ()
    folds: tuple[Fold, ...] = ()
    prefill: tuple[PrefillRow, ...] = ()
    decode: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()
    deferred: tuple[Request, ...] = ()
    postprocess_first: bool = False

    @property
    def empty(self) -> bool:
        return not (self.oneshot or self.prefill or self.decode)

    @property
    def kind(self) -> str:
        if self.oneshot and not self.prefill and not self.decode:
            return "oneshot"
        return "decode" if self.decode and not self.prefill and not self.oneshot else "mixed"

    def requests(self) -> list[Request]:
        requests = [row.request for row in self.oneshot]
        if self.prefill or self.decode:
            requests += [row.request for row in self.prefill]
            requests += self.decode
        return requests

    def without(self, void: Collection[int]) -> Plan:
        """Return the rows that are still valid: not those of Decode requests that have ended, or whose id is in
        ``void``."""
        return replace(
            self,
            prefill=tuple([row for row in self.prefill if lives(row.request, void)]),
            decode=tuple([request for request in self.decode if lives(request, void)]),
        )

    def __str__(self) -> str:
        shots = ", ".join(
            f"{row.request.prompt_tokens}t skip {row.skip} publish {row.publish}" for row in self.oneshot
        )
        folds = ", ".join(f"{len(fold.members)} rows share {fold.tokens}t" for fold in self.folds)
        chunks = ", ".join(f"[{row.start}, {row.start + row.count})" for row in self.prefill)
        return f"{self.kind}: oneshot [{shots}] folds [{folds}] prefill [{chunks}] decode {len(self.decode)}"


LOGITS_BYTES = 8  # float32 logits and their log-softmax, per vocabulary entry of a read row


@dataclass(slots=True)
class Ledger:
    """The budgets that a step still has: ``tokens`` to compute, cached ones not counted; ``rows``; bytes of logits.
    Blocks and state entries are not among them: the pool is their only account, and it refuses atomically."""

    tokens: int
    rows: int
    logits_bytes: int

    def fits(self, tokens: int) -> bool:
        """Return whether a row of so many tokens fits."""
        return tokens <= self.tokens and self.rows >= 1

    def take(self, tokens: int) -> bool:
        """Take a row of so many tokens; return False, and change nothing, if it does not fit."""
        if not self.fits(tokens):
            return False
        self.tokens -= tokens
        self.rows -= 1
        return True
