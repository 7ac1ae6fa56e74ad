"""From a model directory to a running engine: config, weights, tokenizer, templates, pool, budgets.

This is where torch is imported first.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.config import CPU_KV_BYTES, EngineConfig
from prelude.errors import ConfigError, InsufficientMemory, ModelError
from prelude.execution.executor import Executor, ExecutorLimits
from prelude.execution.spinning import short_spins
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from prelude.scheduling.ledger import LOGITS_BYTES

if TYPE_CHECKING:
    from prelude.admission.preparer import Preparer
    from prelude.admission.template import DecisionTemplate
    from prelude.models.config import ModelConfig
    from prelude.models.files import ModelDirectory
    from prelude.tokenizer import Tokenizer


log = logging.getLogger("prelude.engine")
_CHUNK_ROWS = 256  # the most rows an executor takes at a time unless told otherwise


@dataclass(frozen=True, slots=True)
class Parts:
    core: EngineCore
    preparer: Preparer
    path: Path
    seconds: float


def load(
    model: str | Path | None,
    *,
    device: str,
    dtype: str,
    config: EngineConfig,
    revision: str | None = None,
    follow_links: bool = False,
) -> Parts:
    """Raises ``ModelError`` or ``ConfigError``; allocates nothing large before everything has been checked."""
    began = time.perf_counter()
    if not isinstance(config, EngineConfig):
        raise ConfigError(f"config is a {type(config).__name__}; give an EngineConfig")
    _check_choice("device", device, ("auto", "cpu", "cuda"))
    _check_choice("dtype", dtype, ("auto", "float32", "bfloat16"))
    if device == "cuda":
        from prelude.cuda import driver

        driver.require()
    if not isinstance(follow_links, bool):
        raise ConfigError(f"follow_links={follow_links!r} is not True or False")
    _import_torch()
    from prelude.models.config import ModelConfig
    from prelude.models.files import ModelDirectory

    directory = ModelDirectory(model_path(model, revision), follow_links)
    model_config = ModelConfig.from_dir(directory).reaching(config.max_length)
    longest = config.resolved_length(model_config.max_positions)  # contradictions are found before weights are read
    if longest < (config.max_length or model_config.max_positions):
        log.log(
            logging.INFO if config.max_length is None else logging.WARNING,
            "max_length is lowered from %d to %d: max_step_tokens=%s minus max_running=%d",
            config.max_length or model_config.max_positions,
            longest,
            config.max_step_tokens,
            config.max_running,
        )
    open_ = _cuda_executor if device == "cuda" else _cpu_executor
    executor = open_(directory, model_config, config, dtype)
    limits = executor.limits()
    preparer = _preparer(directory, model_config, limits, config)
    core = make_core(EngineCore, executor, config)
    seconds = time.perf_counter() - began
    log_loaded(directory.path, preparer, dtype, seconds)
    return Parts(core, preparer, directory.path, seconds)


def log_loaded(path: Path, preparer: Preparer, dtype: str, seconds: float) -> None:
    import torch

    limits = preparer.facts.limits
    log.info(
        "loaded %s in %.1f s: %s (dtype=%r) on %s, %d threads, KV pool of %d tokens, prompts of up to %d tokens",
        path,
        seconds,
        limits.dtype,
        dtype,
        limits.device,
        torch.get_num_threads(),
        limits.num_blocks * limits.block_size,
        preparer.max_length,
    )


def model_path(model: str | Path | None, revision: str | None = None) -> Path:
    """A local directory as it is, a hub name through the hub's cache, ``None`` the model in the package."""
    if model is None:
        from prelude import default_model

        if revision is not None:
            raise ModelError(f"revision={revision!r} is for a hub name, and no model is named")
        return default_model.path()
    from prelude.models.hub import resolve

    return resolve(model, revision=revision)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")


def _logits_rows(vocab_size: int, budget: int) -> int | None:
    """Rows that meet the vocabulary at a time: the executor's own choice where the budget holds it, else fewer."""
    row = vocab_size * LOGITS_BYTES
    if budget < row:
        raise ConfigError(
            f"logits_bytes={budget} does not hold one row of {vocab_size} logits; it must be {row} or more"
        )
    return None if budget // row >= _CHUNK_ROWS else budget // row


def _import_torch() -> None:
    try:
        with short_spins():
            import torch  # noqa: F401
    except ImportError as error:
        raise ModelError(
            "torch is not installed: the engine needs the extra, pip install 'prelude-engine[engine]'"
        ) from error


def _cpu_executor(directory: ModelDirectory, model: ModelConfig, config: EngineConfig, dtype: str) -> Executor:
    from prelude.execution.beside import BesideExecutor
    from prelude.execution.cpu import CpuExecutor, resolve_dtype
    from prelude.models.checkpoint import Checkpoint
    from prelude.models.memory import available_memory, default_blocks

    rows = _logits_rows(model.vocab_size, config.logits_bytes)
    with Checkpoint.open(directory, model) as checkpoint:
        chosen = resolve_dtype(dtype, model)
        checkpoint.require_memory(chosen)
        per_block = model.spec.kv_bytes_per_token(chosen.itemsize) * config.block_size
        available, weights = available_memory(), checkpoint.nbytes(chosen)
        if model.spec.bidirectional:
            blocks = 1  # no keys and values are kept, so a block takes no memory
        elif config.kv_blocks is not None:
            blocks = config.kv_blocks
        elif config.kv_bytes is not None:
            blocks = max(1, config.kv_bytes // per_block)
        else:
            blocks = default_blocks(
                None if available is None else max(0, available - weights),
                per_block,
                block_size=config.block_size,
                longest=config.resolved_length(model.max_positions),
                running=config.max_running,
                fallback=CPU_KV_BYTES,
            )
        needed = weights + blocks * per_block
        if available is not None and needed > available:
            raise InsufficientMemory(
                f"weights and {blocks} KV blocks need {needed} bytes, {available} are available; lower kv_bytes or "
                "kv_blocks",
                needed=needed,
                available=available,
            )
        try:
            executor = CpuExecutor(
                model,
                checkpoint,
                num_blocks=blocks,
                block_size=config.block_size,
                dtype=chosen,
                deterministic=config.deterministic,
                logits_chunk_rows=rows,
                attention=config.attention,
            )
        except (MemoryError, RuntimeError) as failure:
            if not isinstance(failure, MemoryError) and "allocate memory" not in str(failure):  # torch's allocator
                raise
            raise InsufficientMemory(
                f"{directory}: the memory ended while loading; weights and {blocks} KV blocks need {needed} bytes; "
                "free memory, or lower kv_bytes or kv_blocks",
                needed=needed,
                available=available or 0,
            ) from failure
        checkpoint.check_unchanged()
        return BesideExecutor(executor) if config.overlap else executor


def _cuda_executor(directory: ModelDirectory, model: ModelConfig, config: EngineConfig, dtype: str) -> Executor:
    from prelude.execution.cuda import open_executor

    rows = _logits_rows(model.vocab_size, config.logits_bytes) or _CHUNK_ROWS
    return open_executor(directory, model, config, dtype, logits_rows=rows)


def _preparer(
    directory: ModelDirectory, model: ModelConfig, limits: ExecutorLimits, config: EngineConfig
) -> Preparer:
    from prelude.admission.chat import chat_renderer
    from prelude.admission.preparer import Preparer
    from prelude.models.marker import is_marker_model, marker_settings
    from prelude.models.pooling import read_embedding
    from prelude.models.recipes import read_recipes

    tokenizer = _tokenizer(directory)
    process = None
    if config.template_process and tokenizer.chat_template is not None:
        from prelude.tokenizer.template_process import TemplateProcess

        process = TemplateProcess()  # started by the first rendering; the preparer closes it
    model.check_vocabulary(tokenizer.id_limit - 1)
    return Preparer(
        tokenizer,
        limits,
        config,
        eos_ids=model.eos_token_ids,
        bos_id=model.bos_token_id,
        labels=model.labels,
        activation=model.activation,
        pad_id=model.pad_token_id,
        embedding=read_embedding(directory, model.hidden_size),
        template=_decision_template(directory),
        recipes=read_recipes(directory, tokenizer.chat_template, model.vocab_size),
        chat=chat_renderer(tokenizer, process),
        decision_chat=chat_renderer(tokenizer, process, enable_thinking=False),
        template_process=process,
        markers=marker_settings(directory, tokenizer) if is_marker_model(directory) else None,
    )


def _tokenizer(directory: ModelDirectory) -> Tokenizer:
    """The tokenizer of ``directory``; ``ModelError`` naming the file for whatever its contents make loading raise."""
    from prelude.models.marker import TOKENIZER, is_marker_model
    from prelude.tokenizer import Tokenizer

    folder = f"{TOKENIZER}/" if is_marker_model(directory) else ""
    if not directory.has(f"{folder}tokenizer.json"):
        raise ModelError(f"{directory}: there is no {folder}tokenizer.json; save the model's fast tokenizer there")

    def read(name: str, limit: int) -> bytes | None:
        return directory.read(folder + name, limit) if directory.has(folder + name) else None

    try:
        tokenizer = Tokenizer.from_reader(read, str(directory))
        tokenizer.no_truncation()  # requests say what is cut, and a batch is not padded
        tokenizer.no_padding()
        tokenizer.encode("")  # runs the post-processor: a template may name a token that the file does not declare
        return tokenizer
    except (ModelError, MemoryError):
        raise
    except Exception as failure:
        file = directory.path / "tokenizer.json"
        raise ModelError(f"{file}: not a usable tokenizer: {failure or type(failure).__name__}") from failure


def _decision_template(directory: ModelDirectory) -> DecisionTemplate | None:
    from prelude.admission.template import MAX_FILE_BYTES, DecisionTemplate

    name = "decision_template.json"
    if not directory.has(name):
        return None
    return DecisionTemplate.from_json(directory.read(name, MAX_FILE_BYTES), str(directory.path / name))
