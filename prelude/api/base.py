"""The parts that both engines share, and the methods that need no waiting."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from prelude.admission.preparer import Preparer
from prelude.errors import ConfigError, WrongUse, shown
from prelude.records import dataclass
from prelude.results import Explanation
from prelude.runtime.core import EngineCore
from prelude.runtime.events import Listener
from prelude.scheduling.cost import CostModel
from prelude.tasks import Classify, Embed, Generate, Loglikelihood, SamplingParams, Task, Truncation
from prelude.values.memo import Memo

FIT_BYTES = 1 << 28
"""Bytes of the vectors that fits keep for later ones: 80,000 of 384 values."""


@dataclass(frozen=True, slots=True)
class Health:
    """``ok`` is False after several failed steps in a row, while a step hangs, after a tensor-parallel model has lost
    a process, and when the engine is closed or belongs to another process. ``reason`` says it in words."""

    ok: bool
    failed_steps_in_a_row: int
    last_error: str | None
    closed: bool
    hanging_seconds: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of an engine's model. ``max_positions`` are the checkpoint's, ``max_length`` the most tokens
    that one sequence may hold in this engine, ``kv_tokens`` those of the KV pool. ``labels``: of the classification
    head, none without one. ``pooling``: the default of ``embed``; ``None``: the caller has to name it.
    ``truncation``: the side that the directory's tokenizer cuts, "tail" or "head". ``similarity`` and
    ``score_activation``: as sentence-transformers' settings in the directory name them; ``None`` for no activation.
    ``dtype``: of rows, keys and values; ``weights``: the type that the weights of the layers and of the LM head are
    kept in."""

    path: Path
    device: str
    dtype: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    max_length: int
    kv_tokens: int
    weight_bytes: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    lm_head: bool
    chat_template: bool
    labels: tuple[str, ...]
    pooling: str | None
    quantization: str | None
    weights: str
    truncation: Literal["head", "tail"]
    similarity: str
    score_activation: str | None


class ModelProperties:
    """The properties of the model that both engines have."""

    def _model_parts(self) -> tuple[Preparer, Path]:
        raise NotImplementedError

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, a ``prelude.tokenizer.Tokenizer``. Any thread may use it."""
        return self._model_parts()[0].tokenizer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a text, ascending."""
        return self.model_info.eos_token_ids

    @property
    def max_length(self) -> int:
        """Tokens that one sequence may hold, prompt and output together."""
        return self._model_parts()[0].max_length

    def _said(self) -> str:
        info = self.model_info
        kind = info.dtype if info.weights in ("", info.dtype) else f"{info.weights} weights, {info.dtype}"
        return f"{info.path}: {kind} on {info.device}, max_length {info.max_length}, {info.kv_tokens} KV tokens"

    @property
    def model_info(self) -> ModelInfo:
        preparer, path = self._model_parts()
        ctx = preparer.context
        limits = ctx.limits
        return ModelInfo(
            path=path,
            device=limits.device,
            dtype=limits.dtype,
            vocab_size=limits.vocab_size,
            hidden_size=limits.hidden_size,
            max_positions=limits.max_positions,
            max_length=ctx.max_length,
            kv_tokens=limits.num_blocks * limits.block_size,
            weight_bytes=limits.weight_bytes,
            eos_token_ids=tuple(sorted(ctx.eos_ids)),
            bos_token_id=ctx.bos_id,
            lm_head=limits.lm_head,
            chat_template=ctx.chat is not None,
            labels=ctx.labels if limits.num_labels else (),
            pooling=ctx.embedding.pooling,
            quantization=limits.quantization,
            weights=limits.weights,
            truncation=ctx.embedding.truncation,
            similarity=ctx.embedding.similarity,
            score_activation=ctx.embedding.activation,
        )


def not_loaded(name: str, given: Any) -> ConfigError:
    """Make the error of a model that was given in the place of an engine's parts."""
    return ConfigError(
        f"{name}({shown(str(given) if isinstance(given, Path) else given)}): the constructor loads no model; write "
        f"{name}.from_pretrained({shown(str(given) if isinstance(given, Path) else given)})"
    )


class EngineBase(ModelProperties):
    def __init__(self, core: EngineCore, preparer: Preparer | None = None, model_path: Path | None = None) -> None:
        if not isinstance(core, EngineCore) or preparer is None or model_path is None:
            raise not_loaded(type(self).__name__, core)
        self._core = core
        self._preparer = preparer
        self.model_path = model_path
        self._fit_vectors: Memo[Any, Any] = Memo(FIT_BYTES)
        weakref.finalize(self, core.let_go).atexit = False

    @property
    def core(self) -> EngineCore:
        """The engine without text: queues, planning, steps."""
        return self._core

    @property
    def preparer(self) -> Preparer:
        """Makes requests of tasks."""
        return self._preparer

    def _model_parts(self) -> tuple[Preparer, Path]:
        return self._preparer, self.model_path

    def _fit_parts(self) -> tuple[str, Truncation, Memo[Any, Any]]:
        context = self._preparer.context
        return context.model, context.embedding.truncation, self._fit_vectors

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._said()}{', closed' if self._core.closed else ''}>"

    def explain(self, task: Task) -> Explanation:
        """Return the final text, ids, rows and labels of ``task``. Runs nothing."""
        return self._preparer.explain(task)

    def would_hit(self, task: Task) -> int:
        """How many tokens of ``task``'s prompt the prefix cache has now, which a router in front of several engines
        asks. A hint, since nothing is held for it; from any thread, and runs nothing."""
        prepared = self._preparer.prepare(task).prepared
        if prepared.cache == "never":
            return 0
        tree, pool = prepared.tree, self._core.pool
        blocks = pool.would_hit(tree.token_ids[: tree.trunk_tokens], prepared.salt)
        return min(int(blocks) * pool.block_size, tree.trunk_tokens - 1)

    def stats(self) -> dict[str, Any]:
        """Counters since the engine was made, and ``memory``: see docs/MEMORY.md."""
        preparer = self._preparer
        return {
            **self._core.snapshot(),
            "tokenizer_calls": preparer.tokenizer_calls,
            **preparer.decode_states,
            "memory": self._memory(),
        }

    def _memory(self) -> dict[str, int | bool]:
        """Bytes: of the weights, of the KV pool when all of it has been written to, of the blocks in use, of the
        states of recurrent layers, of blocks in host memory, of prepared questions that are kept, and of a step of
        full size with all rows read."""
        limits, pool = self._core.executor.limits(), self._core.pool
        block = limits.kv_bytes_per_token * limits.block_size
        found: dict[str, int | bool] = {
            "weight_bytes": limits.weight_bytes,
            "kv_bytes": block * limits.num_blocks,
            "kv_used_bytes": block * (limits.num_blocks - pool.num_free),
            "host_kv_bytes": block * pool.host_counts().get("blocks", 0),
            "question_bytes": self._preparer.kept_bytes,
            "state_bytes": limits.bytes_per_state * (limits.running_states + limits.prefix_states),
        }
        step = limits.step_memory
        if step is not None:
            found["step_bytes"] = step.step_bytes(self._core.budgets.step_tokens)
            found["step_bytes_per_token"] = step.per_token + step.row_bytes
            found["readout_bytes"] = step.readout
            found["measured"] = step.measured
        return found

    @property
    def cost_model(self) -> CostModel:
        """The times of steps on this machine, as learnt so far: ``predict``, ``save``."""
        return self._core.cost

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with every ``Event`` of this engine, in the thread where it happens: it must be quick,
        and must not wait for the engine. Its errors are logged. Returns a function that removes it."""
        return self._core.events.add(listener)

    def health(self) -> Health:
        core = self._core
        hanging, lost = core.hanging, core.lost
        reason: str | None
        if core.forked:
            reason = "this process was forked after the engine was made"
        elif core.failures.broken:
            reason = f"closed by an error of the engine's own: {core.failures.last_error}"
        elif core.closed:
            reason = "closed"
        elif hanging:
            reason = f"a step has run for {hanging:.1f} s"
        elif lost is not None:
            reason = str(lost)
        else:
            reason = None if core.healthy else f"{core.failures.in_a_row} steps failed in a row"
        return Health(
            reason is None,
            core.failures.in_a_row,
            core.failures.last_error,
            core.closed,
            hanging,
            reason,
        )

    def _run_each(self, tasks: Sequence[Any]) -> None:
        """Runs the tasks and ignores their errors."""
        raise NotImplementedError

    def warmup(self, *, freeze_gc: bool = False) -> None:
        """Runs one small request of each kind that the model can do, so that the first caller finds everything
        touched. On a GPU it first records the steps of lone prompts and of chats, which takes seconds. ``freeze_gc``
        then excludes all present objects from garbage collection: for a process that is about to serve."""
        self._core.warm_up()
        self._run_each(_warm_tasks())
        if freeze_gc:
            gc.collect()
            gc.freeze()
            self._core.gc_pauses.reset()

    def __reduce__(self) -> Any:
        raise WrongUse("an engine cannot be pickled or sent to another process; make one there")


def _warm_tasks() -> list[Task]:
    ids = [1, 2, 3, 4]
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    return [
        Generate(ids, params, cache="never"),
        Loglikelihood(ids, [5, 6], cache="never"),
        Embed(ids, pooling="last", cache="never"),
        Classify(ids, cache="never"),
    ]
