"""What a request says of the tokens it draws: settings with every default resolved, and what was drawn so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from prelude.batch import F32, I32
from prelude.streaming.text import Stops

_NO_IDS: I32 = np.zeros(0, dtype=np.int32)

Choose: TypeAlias = Callable[[list[int], bool], I32]  # (output so far, before min_tokens) -> allowed ids, none: all


@dataclass(frozen=True, slots=True)
class RowEdits:
    """What a request has done to its logits. ``banned_early`` is ``banned`` and the stop ids, for the steps before
    ``min_tokens``; an empty ``allowed`` allows every id. ``choose`` says what is allowed after the first token, for
    which ``allowed`` has been chosen already."""

    repetition: float
    presence: float
    frequency: float
    bias_ids: I32
    bias_values: F32
    allowed: I32
    banned: I32
    banned_early: I32
    choose: Choose | None = None

    @property
    def weighs(self) -> bool:
        """Whether it has penalties."""
        return self.repetition != 1.0 or self.presence != 0.0 or self.frequency != 0.0

    @property
    def follows(self) -> bool:
        """Whether what the text has so far plays a part."""
        return self.weighs or self.choose is not None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings with every default resolved. ``stop_ids`` end the text; they and the stop string are part of
    it only with ``include_stop``."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop_ids: frozenset[int]
    edits: RowEdits | None = None  # None: the logits are sampled as they are
    min_tokens: int = 0
    logprobs: int | None = None
    stops: Stops | None = None
    include_stop: bool = False


class History:
    """The ids that a request's penalties weigh, each once, with how often it was drawn; and ``allowed``, the ids that
    its ``choose`` allows for the next token, ``None`` where it was not asked."""

    __slots__ = ("_counts", "_ids", "_place", "allowed", "size")

    def __init__(self, prompt: I32) -> None:
        self.allowed: I32 | None = None
        ids = np.unique(prompt)
        self.size = len(ids)
        self._ids = np.empty(self.size + 64, dtype=np.int32)
        self._counts = np.zeros(self.size + 64, dtype=np.int32)
        self._ids[: self.size] = ids
        self._place = dict(zip(ids.tolist(), range(self.size)))

    @classmethod
    def of(cls, edits: RowEdits, prompt: I32) -> History:
        """The repetition penalty alone looks at the prompt."""
        return cls(prompt if edits.repetition != 1.0 else _NO_IDS)

    def add(self, token_id: int) -> None:
        at = self._place.get(token_id)
        if at is None:
            at = self._place[token_id] = self.size
            if at == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[at] = token_id
            self.size += 1
        self._counts[at] += 1

    def ids(self) -> I32:
        return self._ids[: self.size]

    def counts(self) -> I32:
        return self._counts[: self.size]


@dataclass(frozen=True, slots=True)
class Drawing:
    """One row that is about to be sampled: ``row`` among its request's tokens, or in its batch; ``step`` tokens were
    drawn before."""

    row: int
    sampling: Sampling
    step: int = 0
    history: History | None = None
