"""A toy model with recurrent layers, behind the real executor boundary: a gated linear recurrence over embeddings.

    h = g(x) h + (1 - g(x)) W x        for each layer, in float64, one token after another
    x = x + h

A layer keeps a sequence's h in the entry that the batch names. An entry that no sequence began holds NaN, and so does
one whose step failed: a row that goes on from either fails at once, and a row that goes on from another's entry has
other numbers.

``prefixes`` entries behind those of sequences hold the states of cached prefixes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from prelude.execution.executor import ExecutorLimits
from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    LogprobOutput,
    LogprobRows,
    MixedBatch,
    Output,
    PromptSlices,
    Readout,
    SampleOutput,
    SampleRows,
    StepResult,
)
from tests import toy
from tests.service import FaultyExecutor

_LAYERS, _WIDTH = 2, 8
_random = np.random.default_rng(8)
_EMBEDDING = _random.normal(size=(toy.VOCAB, _WIDTH)) * 2
_GATES = 1 / (1 + np.exp(-_random.normal(size=(_LAYERS, toy.VOCAB, _WIDTH)) - 1))  # by token: it is an embedding too
_INWARD = _random.normal(size=(_LAYERS, _WIDTH, _WIDTH))


def begin() -> np.ndarray:
    """[layers, width]: the state before the first token."""
    return np.zeros((_LAYERS, _WIDTH))


def advance(state: np.ndarray, token: int) -> np.ndarray:
    """Moves ``state`` on by a token, in place; [VOCAB], the logits of the next one."""
    x = _EMBEDDING[token]
    for layer in range(_LAYERS):
        gate = _GATES[layer, token]
        state[layer] = gate * state[layer] + (1 - gate) * (_INWARD[layer] @ x)
        x = x + state[layer]
    logits: np.ndarray = _EMBEDDING @ x
    return logits


def logits_after(tokens: Any) -> np.ndarray:
    """[VOCAB]: the reference, a whole sequence from its first token."""
    state = begin()
    for token in tokens:
        logits = advance(state, int(token))
    return logits


def logprob_after(tokens: Any, target: int) -> float:
    return float(_log_softmax(logits_after(tokens)[None])[0, target])


def generate(tokens: Any, count: int) -> list[int]:
    known = [int(token) for token in tokens]
    for _ in range(count):
        known.append(int(np.argmax(logits_after(known))))
    return known[len(known) - count :]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


class RecurrentToy(toy.ToyExecutor):
    def __init__(self, entries: int = 4, prefixes: int = 0, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.entries, self.prefixes = entries, prefixes
        self.states = np.full((entries + prefixes, _LAYERS, _WIDTH), np.nan)
        self._decode_state_indices: list[int] = []

    def limits(self) -> ExecutorLimits:
        bytes_ = 8 * _LAYERS * _WIDTH
        return replace(
            super().limits(), running_states=self.entries, prefix_states=self.prefixes, bytes_per_state=bytes_
        )

    def wait(self, handle: Any) -> StepResult:
        if isinstance(handle, MixedBatch):
            self._decode_state_indices = handle.decode_state_indices.tolist()
        elif isinstance(handle, DecodeBatch):
            self._decode_state_indices = handle.state_indices.tolist()
        return super().wait(handle)

    def lose(self, batch: Any) -> None:
        super().lose(batch)
        written = [getattr(batch, name, None) for name in ("state_indices", "decode_state_indices")]
        for entries in [*written, getattr(getattr(batch, "slices", None), "state_to", None)]:
            if entries is not None:
                self.states[entries[entries >= 0]] = np.nan

    def _prompts(self, slices: PromptSlices) -> list[Any]:
        """The logits after each token."""
        ends: list[np.ndarray] = []
        found: list[np.ndarray] = []
        none = [-1] * slices.num_segments
        loads = none if slices.state_from is None else slices.state_from.tolist()
        stores = none if slices.state_to is None else slices.state_to.tolist()
        taken = [entry for entry in stores if entry >= 0]
        assert len(set(taken)) == len(taken), "two states in one entry"
        prefixes = [entry for entry in loads if entry >= self.entries]
        assert not set(prefixes) & set(taken), "a prefix's state is overwritten while it is read"
        for s, (load, entry) in enumerate(zip(loads, stores)):
            parent = int(slices.parents[s])
            state = ends[parent].copy() if parent >= 0 else begin()
            assert load < 0 or parent < 0, "a parent and a state of its own"
            if parent < 0 and slices.context_lens[s]:
                state = self.states[load].copy() if load >= 0 else np.full_like(state, np.nan)
            for token in slices.token_ids[slices.starts[s] : slices.starts[s + 1]].tolist():
                found.append(advance(state, token))
            ends.append(state)
            if entry >= 0:
                self.states[entry] = state
        return found

    def _rows(self, rows: DecodeRows) -> list[Any]:
        tokens = self._pending_tokens.resolve(rows.token_ids.astype(np.int64)).tolist()
        return [advance(self.states[entry], token) for entry, token in zip(self._decode_state_indices, tokens)]

    def _read(self, readout: Readout, sequences: list[Any]) -> Output:
        logits = np.array([sequences[row] for row in readout.rows.tolist()]).reshape(-1, toy.VOCAB)
        if np.isnan(logits).any():
            raise AssertionError("a row goes on from a state that is not its own")
        match readout:
            case SampleRows():
                return SampleOutput(logits.argmax(axis=1).astype(np.int32))
            case LogprobRows():
                found = _log_softmax(logits)[readout.target_rows, readout.targets]
                return LogprobOutput(found, None, None, None)
            case _:
                raise TypeError(type(readout).__name__)


class FaultyRecurrent(FaultyExecutor, RecurrentToy):
    """It goes wrong, and its states with it."""
