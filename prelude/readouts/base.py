"""A readout says which positions of a prompt become which numbers.

    RequestReadout   of one request; its rows count from a token of that request
        │ join        requests with the same ``key`` share a batch: their readouts become one
        ▼
    Readout          of a batch; its rows are tokens of the batch
        │ run         on an executor's ``Rows``
        ▼
    Output           numbers of the whole batch; ``slice`` cuts out one request's part

One file of this folder holds one readout: the three classes and everything the engine does with them. ``__init__.py``
lists them. A readout imports neither torch nor the scheduler: it works on arrays and on the operations of ``Rows``,
which an executor implements. ``prelude.cuda.step_readouts`` has a table of the kernels that serve each one on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from prelude.values.arrays import F32, F64, I32, Mask

Key: TypeAlias = tuple[object, ...]


class Logits(Protocol):
    """Logits of a run of n rows over the vocabulary."""

    def finite(self) -> Mask:
        """[n]: whether every logit of the row is finite."""

    def argmax(self) -> I32:
        """[n]: the id of the largest logit, the smallest id among equal ones."""

    def row(self, n: int) -> F32:
        """[vocab]; not to be written."""

    def logprobs(self, rows: I32, targets: I32) -> F64:
        """Return logprobs of (row, target) pairs, never above 0."""

    def ranks(self, rows: I32, targets: I32) -> I32:
        """1 + how many tokens of the row are better than the target; a tie is better if its id is smaller."""

    def best(self, count: int) -> tuple[I32, F64]:
        """Return ids and logprobs of the ``count`` best tokens of each row, best first, equal ones by id."""


class Rows(Protocol):
    """The last layer's hidden states of a step. ``tokens`` are the readout's own row numbers."""

    vocab_size: int
    hidden_size: int

    def vectors(self, tokens: I32) -> F32:
        """[n, hidden] after the final norm."""

    def mean(self, tokens: I32) -> F32:
        """[hidden]: the mean of these rows after the final norm, summed in float64."""

    def scores(self, tokens: I32) -> F32:
        """[n, labels]: raw logits of the classification head."""

    def scores_of(self, vectors: F32) -> F32:
        """[n, labels]: the same of vectors [n, hidden]."""

    def options_of(self, vectors: F32, kind: int) -> F32:
        """[n]: logits of the options whose vectors [n + 1, hidden] are given, the answer's behind them."""

    def logits_of(self, tokens: I32, rows: I32, targets: I32) -> F64:
        """Return the logit of each (row, target) pair. A row is an index into ``tokens``."""

    def chunks(self, tokens: I32) -> Iterator[tuple[int, int, Logits]]:
        """``(first, last, logits)`` over runs of ``tokens``; one run's logits are gone when the next one is made."""


class Output:
    """A readout's numbers. Frozen dataclasses of arrays, each with an entry a row (item), or None."""

    __slots__ = ()

    def slice(self, rows: slice, pairs: slice) -> Output:
        """One request's own part, as copies, so that one kept result does not keep a whole batch alive."""
        kind: Any = type(self)
        fields = [getattr(self, name) for name in kind.__slots__]
        found: Output = kind(*[None if field is None else field[rows].copy() for field in fields])
        return found

    @property
    def sampled_ids(self) -> I32 | None:
        """Sampled tokens, one a row; ``None`` if the readout samples none."""
        return None


class Readout:
    """The readout of a batch. Frozen dataclasses of arrays and scalars; ``rows`` are token indices of the batch."""

    __slots__ = ()

    rows: I32

    @property
    def items(self) -> int:
        """How many rows ``StepResult.bad_rows`` may name."""
        return len(self.rows)

    @property
    def vocab_rows(self) -> int:
        """Rows that meet the vocabulary."""
        return 0

    @property
    def draws(self) -> int:
        """How many tokens it samples."""
        return 0

    def run(self, rows: Rows) -> tuple[Output, I32]:
        """Return the output, and the rows (items) that have a number which is not finite."""
        raise NotImplementedError

    def answers(self, output: object) -> bool:
        """Return whether ``output`` has the kind and the shapes that this readout asks for."""
        raise NotImplementedError

    def not_finite(self, output: Any) -> I32:
        """Return rows (items) of an output of any executor that have a number which is not finite."""
        raise NotImplementedError

    def blank(self) -> Output:
        """Return an output of the right shape, for an executor that computes nothing."""
        raise NotImplementedError


class Joined(NamedTuple):
    """Readouts of several requests as one. The ends say where each request's rows and (row, target) pairs end in the
    output; ``row_ends`` is ``None`` if each request has one row, ``pair_ends`` if there are no pairs."""

    readout: Readout
    row_ends: I32 | None
    pair_ends: I32 | None


class RequestReadout:
    """The readout of one request. ``rows`` are ascending token numbers that count from the token ``first`` of its
    ``Prepared``."""

    __slots__ = ()

    rows: I32

    @property
    def key(self) -> Key:
        """The kind and its options, the batch key: requests share a batch only if it is equal."""
        raise NotImplementedError

    @property
    def logits_rows(self) -> int:
        """Rows that meet the vocabulary: the unit of a readout's temporary memory."""
        return 0

    @property
    def needs_lm_head(self) -> bool:
        return False

    @property
    def result_size(self) -> int:
        """About how many numbers the caller's result has, if there may be many."""
        return 0

    def describe(self) -> str:
        """Describe it for ``engine.explain``."""
        raise NotImplementedError

    def join(self, readouts: Sequence[Any], rows: I32, row_ends: I32) -> Joined:
        """Join ``readouts`` of one key, this one first. ``rows``: those of all of them, as tokens of
        the batch; ``row_ends``: where each one's end."""
        raise NotImplementedError


def counted_rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def indptr_of(ends: I32) -> I32:
    """[N + 1] of N items that end at ``ends``."""
    indptr = np.zeros(len(ends) + 1, np.int32)
    indptr[1:] = ends
    return indptr


def means(rows: Rows, tokens: I32, indptr: I32) -> F32:
    """[N, hidden]: the mean of each item's ``tokens[indptr[i]:indptr[i+1]]`` after the final norm. Item by item: the
    order of a sum must not depend on the neighbours."""
    found = np.empty((len(indptr) - 1, rows.hidden_size), np.float32)
    for i, (start, stop) in enumerate(zip(indptr[:-1].tolist(), indptr[1:].tolist())):
        found[i] = rows.mean(tokens[start:stop])
    return found


def bad_rows(finite: Any) -> I32:
    """``finite``: a flag a row (item), or flags of its values."""
    if np.count_nonzero(finite) == finite.size:  # ``all`` takes longer behind a cold cache
        return np.zeros(0, np.int32)
    bad = ~finite if finite.ndim == 1 else ~finite.all(axis=1)
    return np.asarray(bad.nonzero()[0], np.int32)


def shape(array: object) -> tuple[int, ...]:
    found: tuple[int, ...] = getattr(array, "shape", ())
    return found
