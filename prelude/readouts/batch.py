"""ForwardBatch: the input of an executor for one step. Arrays only, three frozen variants.

    OneShotBatch   prompt slices + one readout. No block table that could grow, no future token.
    DecodeBatch    one token and a block table per running sequence + a sample readout.
    MixedBatch     prompt slices and decode rows in one step, each side's accounts apart.

Prompt slices form a forest. A *segment* is a run of tokens; a segment with a parent continues it:

    segment 0   state ................ 1000 tokens   (root; may continue a context that lies in the KV pool)
    segment 1     ├─ question 1 ...... 12 tokens     parent 0
    segment 2     │    └─ label piece  1 token       parent 1
    segment 3     └─ question 2 ...... 12 tokens     parent 0

A token attends to: its root's context in the pool, every token of its ancestors, and its own segment up
to itself. Positions say where a token stands in its own sequence, so siblings share positions. With one
segment per request this is plain varlen prefill; with branches it is one state and many questions, or
requests with a common cold prefix folded into one (the prefix is computed once for every layer).

A segment whose first position does not follow its parent's last is a *join*: it attends to its ancestors, to its
elder siblings with all that is below them, and to itself. Options that do not see each other, and an answer that
sees all of them, are siblings with a join behind them.

A model with recurrent layers keeps states of running sequences and of prefixes in the entries of a pool. A *state
index* is the number of an entry. A decode row reads the state of its sequence's entry and writes the state behind its
token there. A prompt segment with a parent begins with the state at the parent's end. A root without context begins
with the model's initial state. A root with context begins with the state of entry ``state_from``. A segment writes
the state at its end to entry ``state_to``, if it has one. Several segments may begin with the state of one prefix,
and no row overwrites that state in the same step. Models without recurrent layers have no entries: the arrays are
``None``.

All integer arrays are C-contiguous int32 unless said otherwise; ``indptr`` arrays have one more entry than
rows and start at 0. Slots are positions of the KV pool, ``block * block_size + offset``; -1 is "not written". Arrays
belong to the batch: executors read them and keep no reference after ``wait``.
"""

from __future__ import annotations

from typing import TypeAlias

from prelude.readouts.base import Output as Output
from prelude.readouts.base import Readout as Readout
from prelude.readouts.draw import LogitEdits as LogitEdits
from prelude.readouts.head import HeadOutput as HeadOutput
from prelude.readouts.head import HeadRows as HeadRows
from prelude.readouts.head import OptionOutput as OptionOutput
from prelude.readouts.head import OptionRows as OptionRows
from prelude.readouts.logprobs import LogprobOutput as LogprobOutput
from prelude.readouts.logprobs import LogprobRows as LogprobRows
from prelude.readouts.pooled import PooledOutput as PooledOutput
from prelude.readouts.pooled import PooledRows as PooledRows
from prelude.readouts.sample import SampleOutput as SampleOutput
from prelude.readouts.sample import SampleRows as SampleRows
from prelude.records import dataclass
from prelude.values.arrays import F32 as F32
from prelude.values.arrays import F64 as F64
from prelude.values.arrays import I32 as I32
from prelude.values.arrays import U64 as U64

# ------------------------------------------------------------------ prompt slices


@dataclass(frozen=True, slots=True)
class PromptSlices:
    """T tokens in S segments; parents come before children.

    ``context_lens[s]`` tokens (of the pool blocks ``context_blocks[context_indptr[s]:context_indptr[s+1]]``)
    precede root segment s: a cached prefix, or the part of a chunked prompt that is already computed; 0 for
    segments with a parent. A segment may be empty (its whole text was cached); its children still see its
    context. ``write_slots[t]`` is where K and V of token t go, written in every layer before that layer reads
    the pool; ``None`` when the step writes nothing. ``state_from[s]`` and ``state_to[s]`` are state indices, -1 for
    none; ``None`` if no segment has one.
    """

    token_ids: I32  # [T]
    positions: I32  # [T]
    starts: I32  # [S + 1], offsets into the tokens
    parents: I32  # [S], -1 for a root
    context_lens: I32  # [S]
    context_indptr: I32  # [S + 1]
    context_blocks: I32  # [context_indptr[-1]]
    write_slots: I32 | None = None  # [T] or None
    state_from: I32 | None = None  # [S] or None
    state_to: I32 | None = None  # [S] or None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_segments(self) -> int:
        return len(self.parents)


# ------------------------------------------------------------------ the three variants


@dataclass(frozen=True, slots=True)
class OneShotBatch:
    """Prompts that are finished by this step: one readout for all of them. Only the tokens that have a slot in
    ``slices.write_slots`` stay in the pool."""

    slices: PromptSlices
    readout: Readout

    @property
    def num_tokens(self) -> int:
        return self.slices.num_tokens


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """B running sequences, one token each. ``context_lens`` counts the tokens before this one; the block table (CSR)
    covers the token that is written now as well. An id below 0 names a token that the host has not seen, as
    ``prelude.execution.executor`` says."""

    token_ids: I32  # [B]
    positions: I32  # [B]
    write_slots: I32  # [B]
    context_lens: I32  # [B]
    block_indptr: I32  # [B + 1]
    block_ids: I32  # [block_indptr[-1]]

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    rows: DecodeRows
    readout: SampleRows
    state_indices: I32 | None = None  # [B], the state index of each row

    @property
    def num_tokens(self) -> int:
        return self.rows.num_rows


@dataclass(frozen=True, slots=True)
class MixedBatch:
    """Prefill chunks and OneShot rows (``slices``) beside running rows (``decode``). ``readouts`` index tokens of
    ``slices``: the OneShot group's readout, and the sample readout of chunks that end their prompt.
    ``decode_readout`` indexes decode rows."""

    slices: PromptSlices
    readouts: tuple[Readout, ...]
    decode: DecodeRows
    decode_readout: SampleRows | None
    decode_state_indices: I32 | None = None  # [B]

    @property
    def prefill_tokens(self) -> int:
        return self.slices.num_tokens

    @property
    def decode_tokens(self) -> int:
        return self.decode.num_rows

    @property
    def num_tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens


ForwardBatch: TypeAlias = OneShotBatch | DecodeBatch | MixedBatch


def readouts_of(batch: ForwardBatch) -> tuple[Readout, ...]:
    """Return the batch's readouts, in the order of a result's outputs. ``TypeError`` for anything but a batch."""
    if isinstance(batch, OneShotBatch | DecodeBatch):
        return (batch.readout,)
    if isinstance(batch, MixedBatch):
        return batch.readouts if batch.decode_readout is None else (*batch.readouts, batch.decode_readout)
    raise TypeError(f"an executor runs OneShotBatch, DecodeBatch and MixedBatch, not {type(batch).__name__}")


# ------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step. ``outputs`` follows ``readouts_of(batch)``. ``bad_rows[k]`` lists rows of output k
    (indices into that readout's ``rows``, or items for pooled rows) whose numbers are not finite: those requests
    fail, no others."""

    outputs: tuple[Output, ...]
    bad_rows: tuple[I32, ...]
    seconds: float  # the forward's own time
    lm_head_rows: int = 0  # rows that met the vocabulary
    attended_tokens: int = 0  # key positions read, for the cost model
    peak_bytes: int = 0  # activation bytes of this step, an estimate on devices that do not count
    eager: bool = True
