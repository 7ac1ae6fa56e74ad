"""From a model directory to a running engine: config, weights, tokenizer, templates, pool, budgets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.errors import ConfigError, InsufficientMemory, ModelError
from prelude.execution.backends import asked_for
from prelude.execution.executor import Executor, ExecutorLimits
from prelude.loading.sparrow import load_sparrow
from prelude.models.names import path_or_name, resolve
from prelude.models.sparrow import is_sparrow
from prelude.records import dataclass, replace
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from prelude.scheduling.plan import LOGITS_BYTES
from prelude.scheduling.policies import policy_named
from prelude.values.config import EngineConfig

if TYPE_CHECKING:
    from prelude.admission.preparer import Preparer
    from prelude.admission.template import DecisionTemplate
    from prelude.loading.ranks import Ranks
    from prelude.models.config import ModelConfig
    from prelude.models.files import ModelDirectory
    from prelude.models.weights import ModelWeights
    from prelude.parallel.source import ShardSource
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
    check_arguments(device, dtype, config)
    model = path_or_name(model, revision)
    if is_sparrow(model):
        return Parts(*load_sparrow(model, device, dtype, config))
    directory, model_config = _checked_model(model, device, config, revision, follow_links)
    from prelude.cpu.threads import given

    ranks: AbstractContextManager[Ranks | None] = nullcontext()
    if config.tensor_parallel > 1:
        ranks = _ranks().join(directory, model_config, config, lead=True, gpus=device == "cuda")
    with ranks as joined, given(config.threads):
        (tokenizer, side), host = _weighed_tokenizer(directory, model_config)
        executor: Executor
        if device == "cuda":
            executor, config = _cuda_executor(directory, model_config, config, dtype, joined)
        else:
            executor, config = _cpu_executor(directory, model_config, config, dtype, host, joined)
        preparer = _preparer(directory, model_config, executor.limits(), config, tokenizer, side)
        core = make_core(EngineCore, executor, config)
        seconds = time.perf_counter() - began
        log_loaded(Path(str(directory)), preparer, dtype, seconds)
    return Parts(core, preparer, Path(str(directory)), seconds)


def serve_rank(
    model: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    config: EngineConfig,
    revision: str | None = None,
    follow_links: bool = False,
) -> int:
    """Serves one rank of a tensor-parallel model: every process of ``config.tensor_parallel`` but rank 0 calls this,
    with the arguments with which rank 0 makes its engine. Returns when that engine is closed: how many steps it
    computed.

    Raises ``RankLost`` where another process ends in another way or hangs, and as ``Engine.from_pretrained`` does.
    """
    check_arguments(device, dtype, config)
    model = path_or_name(model, revision)
    if config.tensor_parallel == 1 or is_sparrow(model):
        raise ConfigError("serve_rank is for a model directory and a config with tensor_parallel of 2 or more")
    directory, model_config = _checked_model(model, device, config, revision, follow_links)
    from prelude.cpu.threads import given

    with (
        _ranks().join(directory, model_config, config, lead=False, gpus=device == "cuda") as ranks,
        given(config.threads),
    ):
        if device == "cuda":
            _cuda_executor(directory, model_config, config, dtype, ranks)
        else:
            _cpu_executor(directory, model_config, config, dtype, 0, ranks)
        return ranks.serve()


def check_arguments(device: str, dtype: str, config: EngineConfig) -> None:
    if not isinstance(config, EngineConfig):
        raise ConfigError(f"config is a {type(config).__name__}; give an EngineConfig")
    asked_for(config.attention)
    policy_named(config.policy)
    policy_named(config.expert.decode_policy, "decode_policy")
    _check_choice("device", device, ("auto", "cpu", "cuda"))
    _check_choice("dtype", dtype, ("auto", "float32", "bfloat16"))


def _checked_model(
    model: str | Path | None, device: str, config: EngineConfig, revision: str | None, follow_links: bool
) -> tuple[ModelDirectory, ModelConfig]:
    """The directory and its config, compared with the caller's; the weights are not touched."""
    if device == "cuda":
        for name in ("quantization", "threads"):
            if (value := getattr(config, name)) is not None:
                raise ConfigError(f"{name}={value!r} is of CPUs; leave it out for device='cuda'")
        from prelude.cuda import driver

        driver.require()
    if not isinstance(follow_links, bool):
        raise ConfigError(f"follow_links={follow_links!r} is not True or False")
    from prelude.models.config import ModelConfig
    from prelude.models.gguf.directory import GgufDirectory, open_directory

    directory = open_directory(model_path(model, revision), follow_links)
    if device == "cuda" and isinstance(directory, GgufDirectory):
        raise ConfigError(f"{directory}: GGUF is read on CPUs; leave out device='cuda', or give safetensors")
    model_config = ModelConfig.from_dir(directory).reaching(config.max_length)
    config.check_host_kv(recurrent=bool(model_config.spec.recurrent), encoder=model_config.spec.bidirectional)
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
    return directory, model_config


def log_loaded(path: Path, preparer: Preparer, dtype: str, seconds: float) -> None:
    from prelude._native.cpu import threads

    limits = preparer.context.limits
    log.info(
        "loaded %s in %.1f s: %s (dtype=%r) on %s, %d threads, KV pool of %d tokens, prompts of up to %d tokens",
        path,
        seconds,
        limits.dtype if limits.weights in ("", limits.dtype) else f"{limits.weights} weights, {limits.dtype}",
        dtype,
        limits.device,
        threads(),
        limits.num_blocks * limits.block_size,
        preparer.max_length,
    )


def model_path(model: str | Path | None, revision: str | None) -> Path:
    """A local directory as it is, a name of an installed package as its path, a hub name through the hub's cache,
    ``None`` the model in the package."""
    if model is None:
        from prelude import default_model

        if revision is not None:
            raise ModelError(f"revision={revision!r} is for a hub name, and no model is named")
        return default_model.path()
    return resolve(path_or_name(model, revision), revision=revision)


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


def _ranks() -> type[Ranks]:
    try:
        from prelude.loading.ranks import Ranks
    except ImportError as error:
        raise ConfigError(
            "tensor_parallel needs torch, whose collectives join the processes: pip install "
            "'prelude-engine[parallel]'"
        ) from error
    return Ranks


def _cpu_executor(
    directory: ModelDirectory, model: ModelConfig, config: EngineConfig, dtype: str, host: int, ranks: Ranks | None
) -> tuple[Executor, EngineConfig]:
    """The executor, and the config with the length that its memory holds. ``host``: bytes of the tokenizer.
    ``ranks``: of a tensor-parallel model, of which this rank's part is loaded."""
    from prelude.cpu.executor import CpuExecutor, logits_rows
    from prelude.cpu.profile import few_layers, profile
    from prelude.execution.memory_plan import HOST_BYTES, MemoryPlan, StepMemory
    from prelude.execution.threaded import ThreadedExecutor
    from prelude.models.checkpoint import Checkpoint
    from prelude.models.memory import (
        available_memory,
        default_prefixes,
        default_running_states,
        give_back_freed,
        keep_freed,
        require_memory,
    )
    from prelude.models.precision import choose
    from prelude.models.read_weights import load_weights, weight_bytes
    from prelude.models.recurrent import state_bytes

    rows = _logits_rows(model.vocab_size, config.expert.logits_bytes)
    chunk_rows = logits_rows(model.vocab_size) if rows is None else rows
    with Checkpoint.open(directory, model) as checkpoint:
        source: Checkpoint | ShardSource = checkpoint
        available = available_memory()
        if ranks is not None:
            model, source = ranks.part(model, checkpoint)
            available = ranks.room(available)
        precision = choose(dtype, source, model.spec, config.quantization)
        log.info("%s: %s", directory, precision.reason)
        weights = weight_bytes(source, model.spec, precision.dtype, precision.packing)
        require_memory(weights, f"{directory}: loading the weights on cpu", available)
        per_block = model.spec.kv_bytes_per_token(precision.dtype.itemsize) * config.expert.block_size
        config.host_entries(per_block)
        running, bytes_per_state = config.max_running, state_bytes(model.spec)
        if available is not None and bytes_per_state:
            running = default_running_states(max(0, available - weights), bytes_per_state, running=config.max_running)
        prefixes = 0
        if bytes_per_state and config.prefix_cache:
            left = None if available is None else max(0, available - weights)
            prefixes = (
                default_prefixes(left, bytes_per_state)
                if config.expert.prefix_states is None
                else config.expert.prefix_states
            )
        held = weights + (running + prefixes) * bytes_per_state
        plan = MemoryPlan(config, model.spec, available, held, host + HOST_BYTES, per_block, config.host_kv_bytes)
        step = StepMemory.of_shapes(model.spec, precision.dtype.itemsize, chunk_rows, config.expert.max_top)
        if not plan.is_close(step):
            plan = replace(plan, config=plan.fitted(step))
        plan.require_weights()
        try:
            loaded = load_weights(source, model.spec, precision.dtype, precision.packing)

            def executor(
                of: ModelConfig,
                held: ModelWeights,
                blocks: int,
                running: int,
                prefixes: int,
                kind: Callable[..., CpuExecutor] = CpuExecutor,
            ) -> CpuExecutor:
                return kind(
                    of,
                    held,
                    num_blocks=blocks,
                    block_size=config.expert.block_size,
                    precision=precision,
                    deterministic=config.deterministic,
                    logits_chunk_rows=chunk_rows,
                    attention=config.attention,
                    quantization=config.quantization,
                    running_states=running,
                    prefix_states=prefixes,
                    step_memory=step,
                    threads=config.threads,
                )

            if plan.is_close(step):
                few = executor(*few_layers(model, loaded), 1, 1, 0)
                step = profile(few, config.resolved_length(model.max_positions), step)
                few.close()
                plan = replace(plan, config=plan.fitted(step))
            kind: Callable[..., CpuExecutor] = CpuExecutor
            if ranks is not None:
                plan = replace(plan, config=ranks.fitted(plan.config, model.max_positions))
                kind = ranks.executor
            made = executor(model, loaded, plan.blocks(step), running, prefixes, kind)
        except MemoryError as failure:
            raise InsufficientMemory(
                f"{directory}: the memory ended while loading; weights and states need {plan.held} bytes; free "
                "memory, or lower kv_bytes or kv_blocks",
                needed=plan.held,
                available=available or 0,
            ) from failure
        checkpoint.check_unchanged()
        give_back_freed()
        keep_freed()
        if ranks is not None and ranks.is_lead:
            return ranks.lead(), plan.config
        return (ThreadedExecutor(made) if config.overlap and ranks is None else made), plan.config


def _cuda_executor(
    directory: ModelDirectory, model: ModelConfig, config: EngineConfig, dtype: str, ranks: Ranks | None
) -> tuple[Executor, EngineConfig]:
    from prelude.loading.cuda import open_executor

    rows = _logits_rows(model.vocab_size, config.expert.logits_bytes) or _CHUNK_ROWS
    made, config = open_executor(directory, model, config, dtype, logits_rows=rows, ranks=ranks)
    if ranks is None:
        return made, config
    ranks.on_gpu(made)
    return (ranks.lead() if ranks.is_lead else made), config


def _preparer(
    directory: ModelDirectory,
    model: ModelConfig,
    limits: ExecutorLimits,
    config: EngineConfig,
    tokenizer: Tokenizer,
    side: str,
) -> Preparer:
    from prelude.admission.chat import chat_renderer
    from prelude.admission.preparer import Preparer
    from prelude.models.options import option_model
    from prelude.models.sentence_transformers import read_embedding, read_recipes

    head = option_model(directory)
    model.check_vocabulary(tokenizer.id_limit - 1, str(directory))
    return Preparer(
        tokenizer,
        limits,
        config,
        eos_ids=frozenset(model.eos_token_ids),
        bos_id=model.bos_token_id,
        labels=model.labels,
        activation=model.activation,
        pad_id=model.pad_token_id,
        mask_id=_mask_id(directory, tokenizer) if limits.masked_lm else None,
        embedding=read_embedding(directory, model.hidden_size, side),
        template=_decision_template(directory),
        recipes=read_recipes(directory, tokenizer.chat_template, model.vocab_size),
        chat=chat_renderer(tokenizer),
        decision_chat=chat_renderer(tokenizer, enable_thinking=False),
        options=None if head is None else head.settings(directory, tokenizer),
        model=str(Path(str(directory)).absolute()),
    )


def _mask_id(directory: ModelDirectory, tokenizer: Tokenizer) -> int | None:
    from prelude.models.options.base import special_name

    found = tokenizer.token_to_id(special_name(directory, "mask", "[MASK]"))
    return tokenizer.token_to_id("<mask>") if found is None else found


def _weighed_tokenizer(directory: ModelDirectory, model: ModelConfig) -> tuple[tuple[Tokenizer, str], int]:
    """The tokenizer with its side, and how many bytes of memory it took."""
    from prelude.cpu.profile import resident_bytes

    before = resident_bytes()
    found = _tokenizer(directory, model)
    return found, 0 if before is None else max(0, (resident_bytes() or before) - before)


def _tokenizer(directory: ModelDirectory, model: ModelConfig) -> tuple[Tokenizer, str]:
    """The tokenizer of ``directory``, and the side that its file cuts, "left" or "right"; ``ModelError`` names the
    file for each error that its contents cause."""
    from prelude.models.options import option_model
    from prelude.models.sentence_transformers import lowers_text
    from prelude.tokenizer import Tokenizer
    from prelude.tokenizer.class_settings import Model

    head = option_model(directory)
    folder = "" if head is None else head.tokenizer

    if not directory.has(f"{folder}tokenizer.json"):
        raise ModelError(f"{directory}: there is no {folder}tokenizer.json; save the model's fast tokenizer there")

    def read(name: str, limit: int) -> bytes | None:
        return directory.read(folder + name, limit) if directory.has(folder + name) else None

    try:
        of = Model(model.model_type, model.vocab_size, lowers_text(directory))
        tokenizer = Tokenizer.from_reader(read, str(directory), model=of)
        side = (tokenizer.truncation or {}).get("direction", "right")
        tokenizer.no_truncation()  # requests set their truncation, and a batch is not padded
        tokenizer.no_padding()
        tokenizer.encode("")  # runs the post-processor: a template may name a token that the file does not declare
        return tokenizer, side
    except (ModelError, MemoryError):
        raise
    except Exception as failure:
        file = Path(str(directory)) / "tokenizer.json"
        raise ModelError(f"{file}: not a usable tokenizer: {failure or type(failure).__name__}") from failure


def _decision_template(directory: ModelDirectory) -> DecisionTemplate | None:
    from prelude.admission.template import MAX_FILE_BYTES, DecisionTemplate

    name = "decision_template.json"
    if not directory.has(name):
        return None
    return DecisionTemplate.from_json(directory.read(name, MAX_FILE_BYTES), str(directory.path / name))
