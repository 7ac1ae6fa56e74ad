"""Prepared: everything the engine needs to know of a request, and no more. No text, no model.

A request's readout names rows among this request's tokens (``prelude/readouts``); packing turns them into tokens of
the batch.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from prelude._native.core import build_tree, join_ids
from prelude.readouts import RequestReadout
from prelude.readouts.batch import I32, SampleOutput
from prelude.readouts.sampling import Sampling
from prelude.records import dataclass
from prelude.results import RequestStats, SampledLogprob
from prelude.tasks import CacheMode

ROOT: I32 = np.array([-1], dtype=np.int32)
_COUNT: I32 = np.arange(1 << 16, dtype=np.int32)
_WHOLE: I32 = np.stack([np.zeros(1 << 12, dtype=np.int32), _COUNT[: 1 << 12]], axis=1)  # [n] = (0, n)
_NO_ROWS: I32 = np.zeros(0, dtype=np.int32)
_LEAST = float(np.finfo(np.float32).min)  # stands for the logprob of an impossible token
for _shared in (ROOT, _COUNT, _WHOLE, _NO_ROWS):
    _shared.setflags(write=False)


class _Shapes(dict[int, tuple[I32, I32]]):
    """Keep those of short prompts."""

    def __missing__(self, n: int) -> tuple[I32, I32]:
        positions = _COUNT[:n] if n <= len(_COUNT) else np.arange(n, dtype=np.int32)
        if n >= len(_WHOLE):
            return positions, np.array([0, n], dtype=np.int32)
        found = self[n] = positions, _WHOLE[n]
        return found


shape_of: Callable[[int], tuple[I32, I32]] = _Shapes().__getitem__
"""Positions and starts of a prompt of ``n`` tokens without branches; read-only views for all but very long ones."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Token ids of a forest of segments, parents first; segment 0 is the trunk.

    Only the trunk is looked up in, and published to, the prefix cache. ``positions`` continue the parent's.
    """

    token_ids: I32  # [T]
    positions: I32  # [T]
    starts: I32  # [S + 1]
    parents: I32  # [S]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def trunk_tokens(self) -> int:
        return int(self.starts[1])

    @classmethod
    def single(cls, token_ids: I32) -> TokenTree:
        return cls(token_ids, *shape_of(len(token_ids)), ROOT)

    @classmethod
    def build(
        cls, segments: Sequence[tuple[int, I32]], joins: Collection[int] = (), before: Sequence[I32] = ()
    ) -> TokenTree:
        """Build from ``[(parent, token_ids)]``, parents before children. Segments named in ``joins`` stand behind the
        longest of their elder siblings and see all of them (``prelude/readouts/batch.py``). The ids of ``before``
        stand before those of the first segment."""
        if len(segments) > 1:
            return cls(*build_tree(segments, joins, before))
        return cls.single(join_ids(*before, segments[0][1]) if before else segments[0][1])

    @property
    def depth(self) -> int:
        """Length of the longest sequence in the tree."""
        return int(self.positions.max(initial=-1)) + 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """``first``: the token that the readout's rows count from."""

    tree: TokenTree
    readout: RequestReadout | None  # None: nothing is read; the prompt is computed for the prefix cache alone
    max_new_tokens: int = 0  # effective: already cut to the rest of the context
    sampling: Sampling | None = None
    cache: CacheMode = "auto"
    salt: int = 0
    truncated_tokens: int = 0
    tokenize_ms: float = 0.0
    first: int = 0

    @property
    def rows(self) -> I32:
        """The tokens whose hidden state is read, ascending."""
        if self.readout is None:
            return _NO_ROWS
        rows: I32 = self.readout.rows + np.int32(self.first)
        return rows


class Outcome:
    """A request's raw numbers, before they become a public result. ``token_ids`` were generated; ``text`` and
    ``logprobs`` are there if a reader decoded the tokens on their way. ``part``: the request's rows and pairs of
    an output of its whole step."""

    __slots__ = ("_output", "_part", "logprobs", "stats", "text", "token_ids")

    def __init__(
        self,
        output: Any,
        token_ids: Sequence[int],
        stats: RequestStats,
        text: str | None = None,
        logprobs: tuple[SampledLogprob, ...] | None = None,
        part: tuple[slice, slice] | None = None,
    ) -> None:
        self._output, self._part = output, part
        self.token_ids, self.stats, self.text, self.logprobs = token_ids, stats, text, logprobs

    @property
    def output(self) -> Any:
        """The request's own part of its step's output."""
        if self._part is not None:
            self._output, self._part = self._output.slice(*self._part), None
        return self._output

    def pairs(self) -> list[float]:
        """The logprobs of the request's own (row, target) pairs, as Python numbers, none below float32's least."""
        found: list[float] = self._output.logprobs[self._part[1] if self._part else slice(None)].tolist()
        return found if min(found, default=0.0) >= _LEAST else [max(value, _LEAST) for value in found]


@dataclass(frozen=True, slots=True)
class Notes:
    """The values of ``engine.explain`` beside the tokens and the readout of a request."""

    labels: tuple[tuple[str, tuple[int, ...]], ...] = ()  # (label, its token ids)
    recipe: str | None = None
    activation: str | None = None


class Reader(Protocol):
    """One request's text as it grows. Called by the thread that postprocesses steps."""

    def token(self, token_id: int, output: SampleOutput, row: int) -> tuple[str, SampledLogprob | None, bool]:
        """Return text that has become certain, the token's logprobs if asked for, and whether the text ends here."""

    def finish(self, stats: RequestStats) -> str:
        """Return the rest of the text, once; a stop string that only the end completes is written into ``stats``."""

    def close(self) -> None:
        """End the text of a request that failed, instead of ``finish``."""


MakeReader: TypeAlias = Callable[[bool], Reader]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A prepared task: the request's part, and the way in which its outcome becomes the caller's result. ``finish``
    runs in the caller's thread. ``reader(hold_words)`` makes the object that follows the text as its tokens come."""

    prepared: Prepared
    finish: Callable[[Outcome], Any]
    reader: MakeReader | None = None  # for text of more than one token
    watched: bool = False  # the reader is needed even without a stream: it finds stops, keeps logprobs

    def result(self, outcome: Outcome, timeline: Any = None) -> Any:
        """Return the caller's result, with its ``Timeline``. Runs in the caller's thread."""
        if timeline is None:
            return self.finish(outcome)
        began = time.perf_counter()
        result = self.finish(outcome)
        timeline.mark("detokenise", began)
        timeline.mark("stream")
        outcome.stats.timeline = timeline.close()
        return result


@dataclass(frozen=True, slots=True)
class Parts:
    """The tokens, the readout and the result of a task, as its ``prepare_*`` function chooses them. The other fields
    are those of ``Prepared`` and ``Admitted``. ``masked``: a masked-language head is read."""

    tree: TokenTree
    readout: RequestReadout | None
    finish: Callable[[Outcome], Any]
    notes: Notes = Notes()
    truncated: int = 0
    first: int = 0
    masked: bool = False
    max_new_tokens: int = 0
    sampling: Sampling | None = None
    reader: MakeReader | None = None
    watched: bool = False


class ExecutionClass(enum.Enum):
    """A contract about resources, not a label: see the table in docs/ARCHITECTURE.md."""

    ONESHOT = "oneshot"  # one step, nothing that grows
    DECODE = "decode"  # a row and blocks until it stops


def classify(prepared: Prepared) -> ExecutionClass:
    """Return OneShot if at most one token can come out: everything with a fixed-size answer, and generation of 0 or 1
    tokens, also if the context leaves no room for more."""
    return ExecutionClass.DECODE if prepared.max_new_tokens > 1 else ExecutionClass.ONESHOT
