"""From a model directory to a running engine: config, weights, tokenizer, templates, pool, budgets.

This is where torch is imported first.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.config import EngineConfig
from prelude.core import EngineCore
from prelude.errors import ConfigError, InsufficientMemory, ModelError, UnsupportedModel
from prelude.execution.executor import Executor, ExecutorLimits
from prelude.scheduling.lease import KvPool
from prelude.scheduling.planner import Budgets

if TYPE_CHECKING:
    from prelude.admission.prepare import Preparer
    from prelude.models.config import ModelConfig

_LOGITS_CHUNK_ROWS = 256
_POOL_SHARE = 0.5  # of the available memory, at most, for a pool whose size nobody named


@dataclass(frozen=True, slots=True)
class Parts:
    core: EngineCore
    preparer: Preparer
    path: Path
    seconds: float


def load(model: str | Path | None, *, device: str, dtype: str, config: EngineConfig) -> Parts:
    """Raises ``ModelError`` or ``ConfigError``; allocates nothing large before everything has been checked."""
    began = time.perf_counter()
    path = model_path(model)
    _check_choice("device", device, ("auto", "cpu", "cuda"))
    _check_choice("dtype", dtype, ("auto", "float32", "bfloat16"))
    if device == "cuda":
        raise UnsupportedModel("device='cuda': the CUDA executor is not part of this version; use device='cpu'")
    from prelude.models.config import ModelConfig

    model_config = ModelConfig.from_dir(path)
    max_length = _max_length(model_config, config)
    step_tokens = _step_tokens(max_length, config)
    executor = _cpu_executor(path, model_config, config, dtype)
    limits = executor.limits()
    preparer = _preparer(path, model_config, limits, config, max_length, step_tokens)
    pool = KvPool(limits.num_blocks, limits.block_size, prefix_cache=config.prefix_cache)
    budgets = Budgets(
        step_tokens=step_tokens,
        step_requests=config.max_step_requests,
        running=config.max_running,
        chunk_tokens=config.chunk_tokens,
        logits_bytes=config.logits_bytes,
        vocab_size=limits.vocab_size,
        logits_chunk_rows=limits.logits_chunk_rows,
        fold=config.fold,
    )
    core = EngineCore(
        executor,
        pool,
        budgets,
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        unhealthy_after=config.unhealthy_after,
    )
    return Parts(core, preparer, path, time.perf_counter() - began)


def model_path(model: str | Path | None) -> Path:
    """A local directory as it is, a hub name through the hub's cache, ``None`` the model in the package."""
    if model is None:
        from prelude import default_model

        return default_model.path()
    from prelude.models.hub import resolve

    return resolve(model)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")


def _max_length(model: ModelConfig, config: EngineConfig) -> int:
    if config.max_length is None:
        return model.max_positions
    if config.max_length > model.max_positions:
        raise ConfigError(
            f"max_length={config.max_length} is above the model's {model.max_positions} positions; lower it"
        )
    return config.max_length


def _step_tokens(max_length: int, config: EngineConfig) -> int:
    """A step must hold the longest prompt beside a full set of running rows."""
    least = max_length + config.max_running
    if config.max_step_tokens is None:
        return max(8192, least)
    if config.max_step_tokens < least:
        raise ConfigError(
            f"max_step_tokens={config.max_step_tokens} is below max_length + max_running = {max_length} + "
            f"{config.max_running}: a OneShot prompt is one step, beside the running rows; raise it or lower those"
        )
    return config.max_step_tokens


def _cpu_executor(path: Path, model: ModelConfig, config: EngineConfig, dtype: str) -> Executor:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ModelError(
            "torch is not installed: the engine needs the extra, pip install 'prelude-engine[engine]'"
        ) from error
    from prelude.execution.cpu import CpuExecutor, resolve_dtype
    from prelude.models.checkpoint import Checkpoint
    from prelude.models.memory import available_memory

    with Checkpoint.open(path, model) as checkpoint:
        chosen = resolve_dtype(dtype, model)
        checkpoint.require_memory(chosen)
        per_block = model.kv_bytes_per_token(chosen.itemsize) * config.block_size
        blocks = config.kv_blocks if config.kv_blocks is not None else max(1, config.kv_bytes // per_block)
        available = available_memory()
        needed = checkpoint.nbytes(chosen) + blocks * per_block
        if available is not None and needed > available:
            raise InsufficientMemory(
                f"weights and {blocks} KV blocks need {needed} bytes, {available} are available; lower kv_bytes or "
                "kv_blocks",
                needed=needed,
                available=available,
            )
        return CpuExecutor(
            model,
            checkpoint,
            num_blocks=blocks,
            block_size=config.block_size,
            dtype=chosen,
            deterministic=config.deterministic,
            logits_chunk_rows=_LOGITS_CHUNK_ROWS,
        )


def _preparer(
    path: Path,
    model: ModelConfig,
    limits: ExecutorLimits,
    config: EngineConfig,
    max_length: int,
    step_tokens: int,
) -> Preparer:

    raise NotImplementedError


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
