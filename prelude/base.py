"""What both engines share: their parts, and everything that needs no waiting."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prelude.admission.preparer import Preparer
from prelude.errors import ConfigError, shown
from prelude.results import Explanation
from prelude.runtime.core import EngineCore
from prelude.runtime.events import Listener
from prelude.scheduling.cost import CostModel
from prelude.tasks import Classify, Embed, Generate, Loglikelihood, SamplingParams, Task


@dataclass(frozen=True, slots=True)
class Health:
    """``ok`` is False after several failed steps in a row, while a step hangs, and when the engine is closed or
    belongs to another process. ``reason`` says it in words."""

    ok: bool
    failed_steps_in_a_row: int
    last_error: str | None
    closed: bool
    hanging_seconds: float = 0.0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an engine knows of its model. ``max_positions`` are the checkpoint's, ``max_length`` the most tokens that
    one sequence may hold in this engine, ``kv_tokens`` those of the KV pool. ``labels``: of the classification head,
    none without one. ``pooling``: what ``embed`` uses where it is not told; ``None``: it has to be told."""

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


class EngineFacts:
    """What both engines say of the model that they run."""

    def _facts_of(self) -> tuple[Preparer, Path]:
        raise NotImplementedError

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, a ``prelude.tokenizer.Tokenizer``. Any thread may use it."""
        return self._facts_of()[0].tokenizer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a text, ascending."""
        return self.model_info.eos_token_ids

    @property
    def max_length(self) -> int:
        """Tokens that one sequence may hold, prompt and output together."""
        return self._facts_of()[0].max_length

    def _said(self) -> str:
        info = self.model_info
        return f"{info.path}: {info.dtype} on {info.device}, max_length {info.max_length}, {info.kv_tokens} KV tokens"

    @property
    def model_info(self) -> ModelInfo:
        preparer, path = self._facts_of()
        facts = preparer.facts
        limits = facts.limits
        return ModelInfo(
            path=path,
            device=limits.device,
            dtype=limits.dtype,
            vocab_size=limits.vocab_size,
            hidden_size=limits.hidden_size,
            max_positions=limits.max_positions,
            max_length=facts.max_length,
            kv_tokens=limits.num_blocks * limits.block_size,
            weight_bytes=limits.weight_bytes,
            eos_token_ids=tuple(sorted(facts.eos_ids)),
            bos_token_id=facts.bos_id,
            lm_head=limits.lm_head,
            chat_template=facts.chat is not None,
            labels=facts.labels if limits.num_labels else (),
            pooling=facts.embedding.pooling,
        )


def not_loaded(name: str, given: Any) -> ConfigError:
    """For a model where an engine's constructor takes the parts of one."""
    return ConfigError(
        f"{name}({shown(str(given) if isinstance(given, Path) else given)}): the constructor loads no model; write "
        f"{name}.from_pretrained({shown(str(given) if isinstance(given, Path) else given)})"
    )


class EngineBase(EngineFacts):
    def __init__(self, core: EngineCore, preparer: Preparer | None = None, model_path: Path | None = None) -> None:
        if not isinstance(core, EngineCore) or preparer is None or model_path is None:
            raise not_loaded(type(self).__name__, core)
        self._core = core
        self._preparer = preparer
        self.model_path = model_path
        weakref.finalize(self, core.let_go).atexit = False

    def _facts_of(self) -> tuple[Preparer, Path]:
        return self._preparer, self.model_path

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._said()}{', closed' if self._core.closed else ''}>"

    def explain(self, task: Task) -> Explanation:
        """What would run for ``task``: final text, ids, rows, labels. Runs nothing."""
        return self._preparer.explain(task)

    def would_hit(self, task: Task) -> int:
        """How many tokens of ``task``'s prompt the prefix cache has now: what a router in front of several engines
        asks. A hint, since nothing is held for it; from any thread, and runs nothing."""
        prepared = self._preparer.prepare(task).prepared
        if prepared.cache == "never":
            return 0
        tree, pool = prepared.tree, self._core.pool
        blocks = pool.trie.would_hit(tree.token_ids[: tree.trunk_tokens], prepared.salt)
        return min(int(blocks) * pool.block_size, tree.trunk_tokens - 1)

    def stats(self) -> dict[str, Any]:
        """Counters since the engine was made."""
        preparer = self._preparer
        return {**self._core.snapshot(), "tokenizer_calls": preparer.tokenizer_calls, **preparer.decode_states}

    @property
    def cost_model(self) -> CostModel:
        """What steps take on this machine, as learnt so far: ``predict``, ``save``."""
        return self._core.cost

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with every ``Event`` of this engine, in the thread where it happens: it must be quick,
        and must not wait for the engine. What it raises is logged. Returns a function that removes it."""
        return self._core.events.add(listener)

    def health(self) -> Health:
        core = self._core
        error = core.failures.last_error
        hanging = core.hanging
        reason: str | None
        if core.forked:
            reason = "this process was forked after the engine was made"
        elif core.closed:
            reason = "closed"
        elif hanging:
            reason = f"a step has run for {hanging:.1f} s"
        else:
            reason = None if core.healthy else f"{core.failures.in_a_row} steps failed in a row"
        return Health(
            reason is None,
            core.failures.in_a_row,
            None if error is None else f"{type(error).__name__}: {error}",
            core.closed,
            hanging,
            reason,
        )

    def _run_each(self, tasks: Sequence[Any]) -> None:
        """Runs the tasks; what one raises is no matter."""
        raise NotImplementedError

    def warmup(self, *, freeze_gc: bool = False) -> None:
        """Runs one small request of each kind that the model can do, so that the first caller finds everything
        touched. ``freeze_gc`` then takes what is alive now out of the garbage collector's sight: for a process that
        is about to serve."""
        self._run_each(_warm_tasks())
        if freeze_gc:
            gc.collect()
            gc.freeze()
            self._core.gc_pauses.reset()

    def __reduce__(self) -> Any:
        raise TypeError("an engine cannot be pickled or sent to another process; make one there")


def _warm_tasks() -> list[Task]:
    ids = [1, 2, 3, 4]
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    return [
        Generate(ids, params, cache="never"),
        Loglikelihood(ids, [5, 6], cache="never"),
        Embed(ids, pooling="last", cache="never"),
        Classify(ids, cache="never"),
    ]
