"""A model small enough to check by hand, behind the real executor boundary.

Its KV pool holds token ids, so it can only see a token that was really written to the slot it is read from,
or that the batch really carries. The "hidden state" of a token is its whole sequence, found by walking
context blocks, ancestors and its own segment; logits are a fixed pseudo-random function of that sequence.
After any planning, folding, caching, chunking and packing, every row must see exactly its own sequence.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np

from prelude.execution.executor import ExecutorLimits
from prelude.execution.layout import PendingTokens
from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    ForwardBatch,
    HeadOutput,
    HeadRows,
    LogprobOutput,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    Output,
    PooledOutput,
    PooledRows,
    PromptSlices,
    Readout,
    SampleOutput,
    SampleRows,
    StepResult,
)
from prelude.values import arrays

VOCAB = 97
UNWRITTEN, UNDEFINED = -7, -8  # UNDEFINED: the content after a step that failed


def logits_of(sequence: list[int]) -> np.ndarray:
    """[VOCAB] float64: the toy's whole model."""
    digest = hashlib.sha256(np.asarray(sequence, dtype=np.int64).tobytes()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(size=VOCAB) * 3


def logprobs_of(sequence: list[int]) -> np.ndarray:
    logits = logits_of(sequence)
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def next_token(sequence: list[int]) -> int:
    return int(np.argmax(logits_of(sequence)))


def generate(prompt: list[int], count: int) -> list[int]:
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(next_token(sequence))
    return sequence[len(prompt) :]


def vector_of(sequence: list[int]) -> np.ndarray:
    return logits_of(sequence)[:8].astype(np.float32)


def assert_types(record: Any) -> None:
    """The arrays of a batch have the types that its fields declare."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            declared = getattr(arrays, str(field.type).removesuffix(" | None"))
            while of := get_args(declared):  # numpy's alias changes with its version
                declared = of[-1]
            assert value.dtype == declared, f"{type(record).__name__}.{field.name}: {value.dtype}"
        for one in value if isinstance(value, tuple) else [value]:
            if is_dataclass(one):
                assert_types(one)


class ToyExecutor:
    def __init__(self, num_blocks: int = 64, block_size: int = 4, delay: float = 0.0) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.delay = delay
        self.pool = np.full(num_blocks * block_size, UNWRITTEN, dtype=np.int64)
        self.batches: list[ForwardBatch] = []
        self.fail_next: BaseException | None = None
        self.closed = False
        self._pending_tokens = PendingTokens()

    def limits(self) -> ExecutorLimits:
        return ExecutorLimits(VOCAB, 4096, 8, 3, self.block_size, self.num_blocks, 8, 64, 0, "toy", "float64")

    def submit(self, batch: ForwardBatch) -> Any:
        assert_types(batch)
        self.batches.append(batch)
        return batch

    def wait(self, handle: Any) -> StepResult:
        if self.delay:
            time.sleep(self.delay)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            self.lose(handle)
            raise error
        match handle:
            case OneShotBatch(slices=slices, readout=readout):
                outputs = [self._read(readout, self._prompts(slices))]
            case DecodeBatch(rows=rows, readout=readout):
                outputs = [self._read(readout, self._rows(rows))]
            case MixedBatch():
                prompts = self._prompts(handle.slices)
                outputs = [self._read(readout, prompts) for readout in handle.readouts]
                rows_seen = self._rows(handle.decode)
                if handle.decode_readout is not None:
                    outputs.append(self._read(handle.decode_readout, rows_seen))
            case _:
                raise TypeError(f"not a ForwardBatch: {type(handle).__name__}")
        self._pending_tokens.keep(tuple(outputs))
        empty = np.zeros(0, dtype=np.int32)
        return StepResult(tuple(outputs), tuple(empty for _ in outputs), 1e-6, lm_head_rows=0)

    def close(self) -> None:
        self.closed = True

    def lose(self, batch: ForwardBatch) -> None:
        """The step fails: the content of its slots is undefined."""
        self._pending_tokens.lose(batch)
        slices = getattr(batch, "slices", None)
        rows = getattr(batch, "decode", None) or getattr(batch, "rows", None)
        if slices is not None and slices.write_slots is not None:
            self.pool[slices.write_slots[slices.write_slots >= 0]] = UNDEFINED
        if rows is not None:
            self.pool[rows.write_slots] = UNDEFINED

    # -------------------------------------------------------------- sequences

    def _context(self, blocks: np.ndarray, length: int) -> list[int]:
        slots = (blocks[:, None] * self.block_size + np.arange(self.block_size)).ravel()[:length]
        return self.pool[slots].tolist()

    def _prompts(self, slices: PromptSlices) -> list[list[int]]:
        """The sequence of every token; K and V are written before anything is read."""
        if slices.write_slots is not None:
            written = slices.write_slots >= 0
            self.pool[slices.write_slots[written]] = slices.token_ids[written]
        sequences: list[list[int]] = []
        ends: list[list[int]] = []
        for s in range(slices.num_segments):
            parent = int(slices.parents[s])
            blocks = slices.context_blocks[slices.context_indptr[s] : slices.context_indptr[s + 1]]
            before = ends[parent] if parent >= 0 else self._context(blocks, int(slices.context_lens[s]))
            for t in range(int(slices.starts[s]), int(slices.starts[s + 1])):
                before = [*before, int(slices.token_ids[t])]
                if int(slices.positions[t]) != len(before) - 1:
                    raise ValueError(f"token {t} stands at {len(before) - 1}, the batch says {slices.positions[t]}")
                sequences.append(before)
            ends.append(before)
        return sequences

    def _rows(self, rows: DecodeRows) -> list[list[int]]:
        self.pool[rows.write_slots] = self._pending_tokens.resolve(rows.token_ids.astype(np.int64))
        sequences = []
        for b in range(rows.num_rows):
            blocks = rows.block_ids[rows.block_indptr[b] : rows.block_indptr[b + 1]]
            sequences.append(self._context(blocks, int(rows.context_lens[b]) + 1))
            if len(sequences[-1]) - 1 != rows.positions[b]:
                raise ValueError("decode row stands at another position than the batch says")
        return sequences

    def _read(self, readout: Readout, sequences: list[list[int]]) -> Output:
        rows = [sequences[row] for row in readout.rows.tolist()]
        for row in rows:
            if UNWRITTEN in row:
                raise ValueError("a row reads a slot that no row wrote")
        match readout:
            case LogprobRows():
                table = np.array([logprobs_of(row) for row in rows]).reshape(len(rows), VOCAB)
                wanted = table[readout.target_rows, readout.targets] + (3.0 if readout.raw else 0.0)
                ranks = None
                if readout.ranks:
                    ranks = (table[readout.target_rows] > wanted[:, None]).sum(axis=1).astype(np.int32) + 1
                order = np.argsort(-table, axis=1, kind="stable")[:, : readout.top]
                top = readout.top > 0
                return LogprobOutput(
                    wanted,
                    ranks,
                    order.astype(np.int32) if top else None,
                    np.take_along_axis(table, order, axis=1).astype(np.float32) if top else None,
                )
            case PooledRows():
                vectors = [
                    np.mean([vector_of(sequences[r]) for r in readout.rows[a:b].tolist()], axis=0)
                    for a, b in zip(readout.indptr[:-1].tolist(), readout.indptr[1:].tolist())
                ]
                return PooledOutput(np.array(vectors, dtype=np.float32))
            case HeadRows():
                return HeadOutput(np.array([vector_of(row)[:3] for row in rows], dtype=np.float32))
            case SampleRows():
                return SampleOutput(np.array([next_token(row) for row in rows], dtype=np.int32))
