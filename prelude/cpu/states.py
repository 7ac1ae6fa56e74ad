"""The states of recurrent layers on a CPU: memory for them, and which one each sequence of a step goes on from."""

from __future__ import annotations

import numpy as np

from prelude._native.cpu import Sequences
from prelude.execution.host_blocks import lazy_zeros
from prelude.models.arrays import FLOAT32
from prelude.models.recurrent import States, StepStates, state_bytes
from prelude.models.spec import ModelSpec
from prelude.readouts.batch import DecodeBatch, ForwardBatch, MixedBatch, OneShotBatch
from prelude.values.arrays import I32


class StatePool:
    """A state for each of ``running`` sequences and ``prefixes`` cached prefixes; a page of it takes memory from the
    first write to it on."""

    def __init__(self, spec: ModelSpec, running: int, prefixes: int) -> None:
        self.running, self.prefixes = running, prefixes
        total = running + prefixes
        self.bytes_per_state = state_bytes(spec)
        self._kernel = spec.recurrent[0].kernel
        self._states = States.of(spec, lazy_zeros((total, self.bytes_per_state // 4), FLOAT32))

    def step(self, batch: ForwardBatch) -> StepStates:
        """Raise ``ValueError`` if a prompt goes on from a context whose state no entry has."""
        return StepStates(self._states, _sequences(batch, self.running + self.prefixes, self._kernel))


def _sequences(batch: ForwardBatch, entries: int, kernel: int) -> Sequences:
    """Prompt segments, then a segment of one token for each decode row."""
    starts, parents, load, store = [np.zeros(1, np.int32)], [], [], []
    if isinstance(batch, (OneShotBatch, MixedBatch)):
        slices = batch.slices
        none: I32 = np.full(slices.num_segments, -1, np.int32)
        begins = none if slices.state_from is None else slices.state_from
        stateless = (slices.context_lens > 0) & (begins < 0)
        if stateless.any():
            where = int(np.argmax(stateless))
            raise ValueError(f"segment {where} goes on from {slices.context_lens[where]} tokens without their state")
        starts.append(slices.starts[1:])
        parents.append(slices.parents)
        load.append(begins)
        store.append(none if slices.state_to is None else slices.state_to)
    if not isinstance(batch, OneShotBatch):
        rows = batch.rows if isinstance(batch, DecodeBatch) else batch.decode
        held = batch.state_indices if isinstance(batch, DecodeBatch) else batch.decode_state_indices
        count = rows.num_rows
        if count and (held is None or len(held) != count or (held < 0).any()):
            raise ValueError(f"{count} decode rows without a state of their own each")
        prompts = 0 if isinstance(batch, DecodeBatch) else batch.slices.num_tokens
        starts.append(prompts + 1 + np.arange(count, dtype=np.int32))
        parents.append(np.full(count, -1, np.int32))
        load.append(np.zeros(0, np.int32) if held is None else held)
        store.append(load[-1])
    every_start, every_parent, loads, stores = (np.concatenate(part) for part in (starts, parents, load, store))
    return Sequences(every_start, every_parent, loads, stores, entries, kernel)
