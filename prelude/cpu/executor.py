"""The CPU executor: the reference that every other executor is held to.

One forward for all three variants: prompt segments and decode rows are one row of tokens, linear layers run over
all of them, attention follows a plan made once a step, and only rows that are read meet the last layer's MLP, the
final norm and the LM head. Recurrent layers keep a state of each running sequence beside the pool.

``submit`` runs the step in the calling thread; ``wait`` returns its result.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from prelude.cpu.attention_runs import Kind, LayerKinds, PlannedAttention, RunsPlan
from prelude.cpu.hidden_rows import HiddenRows
from prelude.cpu.states import StatePool
from prelude.cpu.threads import GOVERNOR
from prelude.errors import EngineClosed
from prelude.execution.backends import Wanted, choose
from prelude.execution.executor import ExecutorLimits
from prelude.execution.host_blocks import CpuHostBlocks, lazy_zeros
from prelude.execution.layout import PendingTokens, StepTokens
from prelude.execution.memory_plan import TOKEN_CHUNK, StepMemory, query_run
from prelude.models.arrays import F32, OF_BLOCKS, Array
from prelude.models.config import ModelConfig
from prelude.models.precision import Precision
from prelude.models.recurrent import StepStates
from prelude.models.spec import Attention as Heads
from prelude.models.spec import ModelSpec
from prelude.models.transformer import Run, Transformer
from prelude.models.weights import ModelWeights
from prelude.readouts.batch import I32, ForwardBatch, MixedBatch, Output, Readout, StepResult, readouts_of
from prelude.records import dataclass
from prelude.values.arrays import I64
from prelude.values.config import Quantization

_LOGITS_BYTES = 64 << 20
"""Default bytes of one chunk of logits."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The handle of a step, which has run by the time the caller holds it."""

    result: StepResult | None
    error: Exception | None

    def get(self) -> StepResult:
        """Return the result, or raise the error."""
        if self.result is None:
            raise self.error or TypeError("this handle did not come from submit")
        return self.result


@dataclass(frozen=True, slots=True)
class KvTensors:
    """K and V of all blocks, [layers with attention, 2, slots, kv_heads, head_dim]. A page of it takes memory from
    the first write to one of its blocks on."""

    tensor: Array
    layers: list[tuple[Array, Array]]
    """K and V of each layer with attention, in the same memory."""

    @classmethod
    def empty(cls, spec: ModelSpec, slots: int, dtype: np.dtype[Any]) -> KvTensors:
        heads = spec.attention
        slots = 0 if spec.bidirectional else slots
        shape = (len(spec.attentions), 2, slots, heads.kv_heads, heads.head_dim)
        tensor = lazy_zeros(shape, dtype)
        return cls(tensor, [(layer[0], layer[1]) for layer in tensor])


def logits_rows(vocab_size: int) -> int:
    """Return rows that meet the vocabulary at a time if the caller does not say."""
    return max(16, min(256, _LOGITS_BYTES // (4 * vocab_size)))


class CpuExecutor:
    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        num_blocks: int,
        block_size: int = 16,
        precision: Precision,
        deterministic: bool = False,
        logits_chunk_rows: int | None = None,
        attention: str = "auto",
        quantization: Quantization | None = None,
        running_states: int,
        prefix_states: int = 0,
        step_memory: StepMemory | None = None,
        threads: int | None = None,
    ) -> None:
        """``precision``: the choice that ``weights`` were read with. ``attention``: see ``backends``; ``ConfigError``
        if it cannot serve. ``quantization``: see ``EngineConfig``. ``running_states``: of how many sequences a model
        with recurrent layers keeps the state; ``prefix_states``: of how many cached prefixes. ``step_memory``: the
        memory of a step, as the control plane counts it. ``threads``: see ``EngineConfig``."""
        self.config = config
        self.block_size = block_size
        self._threads = threads
        self.precision = precision
        self.dtype = self.precision.dtype
        self.deterministic = deterministic
        wanted = Wanted(config.spec.attention.head_dim, self.precision.rows, deterministic)
        self.attention = choose(attention, "cpu", wanted)
        self.weights = weights
        kinds = {linear.packing for linear in self.weights.linears()}.intersection(OF_BLOCKS.values())
        self.quantization = " and ".join(sorted(kinds)) or quantization  # asked for, or the file's own
        self.decoder = Transformer(config.spec, self.weights, TOKEN_CHUNK)
        self.decoder.run_chunks = query_run(config.spec) // TOKEN_CHUNK
        self.pool = KvTensors.empty(config.spec, num_blocks * block_size, self.dtype)
        self._states = StatePool(config.spec, running_states, prefix_states) if config.spec.recurrent else None
        self._windows = Counter(heads.window for heads in config.spec.attentions)
        self._heads, self._num_types = config.spec.attention, config.spec.num_types
        self._kinds = LayerKinds(config.spec.attentions)
        with_attention = [isinstance(layer.mixer, Heads) for layer in config.spec.layers]
        self._places = list(accumulate(with_attention, initial=0))  # of layers with attention among each other
        self._ends_with_attention = with_attention[-1]
        self._chunk_rows = logits_rows(config.vocab_size) if logits_chunk_rows is None else max(1, logits_chunk_rows)
        self._num_blocks = num_blocks
        self._step_memory = step_memory
        self._pending = PendingTokens()
        self._rows_of: Callable[[Transformer, F32, I64 | None, int], HiddenRows] = HiddenRows
        self._closed = False
        self._host: CpuHostBlocks | None = None

    def limits(self) -> ExecutorLimits:
        config, head = self.config, self.weights.classifier
        classifier, reads_options = config.spec.classifier, config.spec.options is not None
        return ExecutorLimits(
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            hidden_size=config.hidden_size,
            num_labels=head.out.outputs if head is not None else int(reads_options),
            block_size=self.block_size,
            num_blocks=self._num_blocks,
            kv_bytes_per_token=config.spec.kv_bytes_per_token(self.dtype.itemsize),
            logits_chunk_rows=self._chunk_rows,
            weight_bytes=self.weights.nbytes,
            device="cpu",
            dtype=self.precision.rows,
            weights=self.quantization or self.precision.weights,
            quantization=self.quantization,
            lm_head=self.weights.lm_head is not None and self.weights.masked is None,
            masked_lm=self.weights.masked is not None,
            head_pooling="markers" if reads_options else "last" if classifier is None else classifier.pooling,
            bidirectional=config.spec.bidirectional,
            running_states=0 if self._states is None else self._states.running,
            prefix_states=0 if self._states is None else self._states.prefixes,
            bytes_per_state=0 if self._states is None else self._states.bytes_per_state,
            step_memory=self._step_memory,
        )

    def submit(self, batch: ForwardBatch) -> Finished:
        readouts = _readouts(batch)
        if self._closed:
            raise EngineClosed("the executor is closed")
        try:
            if self.weights.used is not None:
                self.weights.used.check()
            # A number that is not finite fails its own request, without a warning of numpy's.
            with GOVERNOR.of(self._threads), np.errstate(all="ignore"):
                return Finished(self._run(batch, readouts), None)
        except Exception as error:  # ``wait`` raises the failure of the step
            self._pending.lose(batch)
            return Finished(None, error)

    def wait(self, handle: Finished) -> StepResult:
        return handle.get()

    def host_blocks(self, entries: int) -> CpuHostBlocks:
        self._host = CpuHostBlocks(self.pool.tensor, entries, self.block_size)
        return self._host

    def close(self) -> None:
        """Refuse further steps and let go of the pool."""
        self._closed = True
        if self._host is not None:
            self._host.close()
        self.pool = KvTensors.empty(self.config.spec, 0, self.dtype)
        self._states = None

    def _run(self, batch: ForwardBatch, readouts: list[tuple[Readout, int]]) -> StepResult:
        began = time.perf_counter()
        step = StepTokens.of(batch)
        rows = _read_rows(readouts, step.num_tokens)
        hidden = self._forward(step, rows, None if self._states is None else self._states.step(batch))
        hidden_rows = self._rows_of(self.decoder, hidden, rows, self._chunk_rows)
        outputs: list[Output] = []
        bad_rows: list[I32] = []
        for readout, first in readouts:
            hidden_rows.first = first
            output, bad = readout.run(hidden_rows)
            outputs.append(output)
            bad_rows.append(bad)
        self._pending.keep(tuple(outputs))
        return StepResult(
            tuple(outputs),
            tuple(bad_rows),
            seconds=time.perf_counter() - began,
            lm_head_rows=hidden_rows.lm_head_rows,
            attended_tokens=self._attended(step),
            peak_bytes=self._peak_bytes(hidden, hidden_rows.lm_head_rows),
        )

    def _forward(self, step: StepTokens, rows: I64 | None, states: StepStates | None) -> F32:
        highest = int(np.maximum.reduce(step.positions, initial=-1))
        kinds, of_layer = self._kinds.within(highest)
        last = len(of_layer) - 1
        runs = self.decoder.runs(step.num_tokens)
        last_runs = runs if rows is None else self.decoder.runs(len(rows))
        whole = {kind: self._plan(step, None, kinds[kind], runs) for kind in set(of_layer[:last])}
        plans = [whole[kind] for kind in of_layer[:last]]
        of_rows = rows if self._ends_with_attention else None
        same = whole.get(of_layer[last]) if of_rows is None else None
        plans.append(same or self._plan(step, of_rows, kinds[of_layer[last]], runs if of_rows is None else last_runs))
        layers = self.weights.layers
        attention = PlannedAttention(plans, self._places, layers, self.pool.layers, step, runs, last_runs)
        token_ids = step.token_ids if step.decode is None else self._pending.resolve(step.token_ids)
        positions, types = self._positions(step), self._types(step)
        return self.decoder.forward(token_ids, positions, highest, attention, rows, types, states)

    def _positions(self, step: StepTokens) -> I64:
        """[tokens]: those of the step; for models that leave one token uncounted, its row and those of the others."""
        table = self.config.spec.embeddings.positions
        if table is None or table.uncounted is None or step.forest is None:
            return step.positions
        skipped = step.token_ids == table.uncounted
        if not skipped.any():
            return step.positions
        before = np.concatenate([[0], np.cumsum(skipped)])
        trees = step.forest.trees()
        counted = step.positions - before[1:] + np.repeat(before[trees[:-1]], np.diff(trees))
        return np.where(skipped, self.config.spec.max_positions, counted)

    def _types(self, step: StepTokens) -> Array | None:
        """[tokens], for models with token types."""
        count = self._num_types
        if count < 2 or step.forest is None or step.forest.apart:
            return None
        return np.repeat(np.minimum(step.forest.depths(), count - 1), np.diff(step.forest.starts))

    def _plan(self, step: StepTokens, rows: I64 | None, heads: Kind, runs: list[Run]) -> RunsPlan:
        sections = None if len(runs) == 1 else [0, *(run.tokens.stop for run in runs)]
        return RunsPlan(step, self.block_size, heads, rows, paged=not self.deterministic, sections=sections)

    def _attended(self, step: StepTokens) -> int:
        """Key positions read in a layer, as an average over the layers."""
        pairs = sum(step.attended(window, self._heads.causal) * layers for window, layers in self._windows.items())
        return round(pairs / len(self.config.spec.layers))

    def _peak_bytes(self, hidden: F32, lm_head_rows: int) -> int:
        """Return bytes of the forward pass, of the rows that are read, and of one chunk of their logits."""
        logits = min(lm_head_rows, self._chunk_rows) * self.config.vocab_size * 8
        return self.decoder.forward_bytes + hidden.nbytes + logits


def _readouts(batch: ForwardBatch) -> list[tuple[Readout, int]]:
    """Return the batch's readouts, each with the token its rows count from."""
    readouts = [(readout, 0) for readout in readouts_of(batch)]
    if isinstance(batch, MixedBatch) and batch.decode_readout is not None:
        readouts[-1] = (batch.decode_readout, batch.slices.num_tokens)
    return readouts


def _read_rows(readouts: list[tuple[Readout, int]], tokens: int) -> I64 | None:
    """Return the tokens that are read, sorted; None if that is all of them."""
    wanted = np.zeros(tokens, np.bool_)
    for readout, first in readouts:
        wanted.put(readout.rows + first if first else readout.rows, True)
    return None if np.count_nonzero(wanted) == tokens else wanted.nonzero()[0]
