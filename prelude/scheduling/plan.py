"""Plan: one step's decision as data. Printable; packing and settling read nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from prelude._native.core import OneShotRow as OneShotRow
from prelude.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Fold:
    """``members`` (indices of OneShot rows with the same ``skip``) share the next ``tokens`` tokens: these are
    computed once, from the first member, which also publishes for all."""

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


@dataclass(frozen=True, slots=True)
class Deferral:
    request: Request
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    oneshot: tuple[OneShotRow, ...] = ()
    folds: tuple[Fold, ...] = ()
    prefill: tuple[PrefillRow, ...] = ()
    decode: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()
    deferred: tuple[Deferral, ...] = field(default=())

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

    def __str__(self) -> str:
        shots = ", ".join(
            f"{row.request.prompt_tokens}t skip {row.skip} publish {row.publish}" for row in self.oneshot
        )
        folds = ", ".join(f"{len(fold.members)} rows share {fold.tokens}t" for fold in self.folds)
        chunks = ", ".join(f"[{row.start}, {row.start + row.count})" for row in self.prefill)
        return f"{self.kind}: oneshot [{shots}] folds [{folds}] prefill [{chunks}] decode {len(self.decode)}"
