"""From a model directory to an executor on a GPU. Importing this reaches no driver."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import numpy as np

from prelude.errors import ConfigError, DeviceUnavailable, UnsupportedModel
from prelude.execution.backends import Wanted, asked_for, choose
from prelude.execution.layout import blank_prompts
from prelude.execution.memory_plan import MemoryPlan, StepMemory
from prelude.models.config import ModelConfig
from prelude.models.spec import Attention, ModelSpec
from prelude.readouts.batch import LogprobRows, OneShotBatch, PooledRows, Readout
from prelude.records import dataclass
from prelude.values.config import EngineConfig

if TYPE_CHECKING:
    import torch

    from prelude.cuda.attention import Calls
    from prelude.cuda.cuda_device import CudaDevice
    from prelude.cuda.device import Device
    from prelude.cuda.executor import CudaExecutor
    from prelude.cuda.graphs import GraphPolicy
    from prelude.cuda.weights import DeviceWeights
    from prelude.loading.ranks import Ranks
    from prelude.models.files import Where
    from prelude.parallel.source import ShardSource

log = logging.getLogger("prelude.cuda")
_STAGING_BYTES = 32 << 20  # of a step's arrays and results, beside its workspace


def open_executor(
    where: Where,
    model: ModelConfig,
    config: EngineConfig,
    dtype: str,
    *,
    logits_rows: int,
    ranks: Ranks | None,
) -> tuple[CudaExecutor, EngineConfig]:
    """Weights, kernels and a KV pool on the current GPU, of a tensor-parallel model on the GPU of this rank; and the
    config with the length that its memory holds.

    Raises ``DeviceUnavailable`` where something is missing, ``InsufficientMemory`` where it does not fit.
    """
    from prelude.cuda import driver

    driver.require()
    import torch

    from prelude.cuda import weights
    from prelude.cuda.cuda_device import CudaDevice
    from prelude.cuda.graphs import GraphPolicy
    from prelude.cuda.memory import fits
    from prelude.models.checkpoint import Checkpoint
    from prelude.models.memory import available_memory, require_memory

    check_supported(model.spec if ranks is None else ranks.shard.spec)
    ordinal = 0 if ranks is None else own_gpu(ranks.group.rank)
    element = torch.float32 if dtype == "float32" else torch.bfloat16
    if attention_for(config.attention, model, element, config.deterministic) == "flashinfer":
        threading.Thread(target=_import_flashinfer, daemon=True).start()  # two seconds, beside the weights
    positions = config.resolved_length(model.max_positions)
    before, _ = torch.cuda.mem_get_info()
    with fits(torch.cuda.mem_get_info, "loading the weights, with kernels and workspaces,"):
        with Checkpoint.open(where, model) as checkpoint:
            source: Checkpoint | ShardSource = checkpoint
            if ranks is not None:
                model, source = ranks.part(model, checkpoint)
                # GPUs of different kinds might draw different tokens.
                named = {"the GPU": torch.cuda.get_device_name(), "logits_chunk_rows": logits_rows}
                ranks.agree(config, str(element), **named)
            require_memory(source.nbytes(element.itemsize), f"{where}: loading the weights on cuda", before)
            require_memory(config.host_kv_bytes, "host_kv_bytes", available_memory())
            block_bytes = model.spec.kv_bytes_per_token(element.itemsize) * config.expert.block_size
            config.host_entries(block_bytes)
            MemoryPlan(config, model.spec, before, source.nbytes(element.itemsize), 0, block_bytes).require_weights()
            device = CudaDevice(
                element,
                head_dim=model.spec.attention.head_dim,
                deterministic=config.deterministic,
                ordinal=ordinal,
                ranks=None if ranks is None else ranks.group,
            )
            with device.scope():
                loaded = weights.load(device, source, model.spec, positions)
            checkpoint.check_unchanged()
        calls = attention_calls(model, device, config.attention, alone=ranks is None)
    # Each rank records a shape in the same step: the step adds up over the ranks.
    policy = None if ranks is None else GraphPolicy(at_once=True)
    return make_executor(
        model, loaded, device, config, before, logits_rows=logits_rows, calls=calls, policy=policy, ranks=ranks
    )


def own_gpu(rank: int) -> int:
    """Chooses the GPU of a rank: the only one that the process sees, else that of torchrun's LOCAL_RANK, else that of
    the rank's number among them. ``ConfigError`` if LOCAL_RANK names none."""
    import torch

    there = torch.cuda.device_count()
    said = os.environ.get("LOCAL_RANK", str(rank % max(1, there)))
    number = 0 if there == 1 else int(said) if said.isdecimal() else -1
    if not 0 <= number < there:
        raise ConfigError(
            f"LOCAL_RANK={said!r} names none of the {there} GPUs that this process sees; give a number from 0 to "
            f"{there - 1}, or show each process one GPU by CUDA_VISIBLE_DEVICES"
        )
    torch.cuda.set_device(number)
    return number


def _import_flashinfer() -> None:
    with suppress(Exception):  # ``attention_calls`` says why it cannot be imported
        importlib.import_module("flashinfer")


def make_executor(
    model: ModelConfig,
    loaded: DeviceWeights,
    device: Device,
    config: EngineConfig,
    before: int,
    *,
    logits_rows: int,
    calls: Calls | None,
    policy: GraphPolicy | None,
    ranks: Ranks | None = None,
) -> tuple[CudaExecutor, EngineConfig]:
    """An executor whose largest step and KV pool fit, and the config with its length. ``before``: bytes of the device
    that were free before the weights were loaded."""
    from prelude.cuda.executor import CudaExecutor
    from prelude.cuda.memory import fits

    vocab = 0 if loaded.lm_head is None else loaded.lm_head.shape[0]
    step = DeviceStep.of(model, device, config, logits_rows=logits_rows, vocab=vocab)
    block_bytes = model.spec.kv_bytes_per_token(device.element.itemsize) * config.expert.block_size
    held = before - device.memory()[0]
    config = MemoryPlan(config, model.spec, before, held, 0, block_bytes).fitted(step)
    if ranks is not None:
        config = ranks.fitted(config, model.max_positions)
    with fits(device.memory, "a workspace for the largest step"):
        executor = CudaExecutor(
            model,
            loaded,
            device,
            num_blocks=1,
            block_size=config.expert.block_size,
            step_tokens=config.resolved_step(model.max_positions),
            step_rows=config.expert.max_step_requests,
            logits_chunk_rows=logits_rows,
            calls=calls,
            policy=policy,
        )
    give_blocks(executor, config, before, ranks)
    taken = before - held - device.memory()[0] - executor.pool.nbytes  # by the driver, with what libraries keep
    per_token = step.average(executor.step_tokens)
    fixed = max(0, taken - executor.step_tokens * per_token)
    executor.step_memory = StepMemory(fixed, per_token, 0, 0, measured=True)
    return executor, config


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step's workspace to the byte, and what is left alone for graphs and libraries. The workspace is no linear
    function of the tokens: buffers of the MLP grow up to ``MLP_ROWS`` rows, and all have whole tiles of rows."""

    fixed: int
    longest: int  # tokens of a step of full size
    workspace: Callable[[int], int]
    measured: bool = False

    @classmethod
    def of(
        cls, model: ModelConfig, device: Device, config: EngineConfig, *, logits_rows: int, vocab: int
    ) -> DeviceStep:
        """``vocab`` is 0 without a language-model head."""
        from prelude._native.gpu import power_bucket
        from prelude.cuda.memory import reserve
        from prelude.cuda.workspace import workspace_bytes

        rows = power_bucket(config.expert.max_step_requests)  # as the executor has them
        _, total = device.memory()

        def workspace(tokens: int) -> int:
            return workspace_bytes(model.spec, device.element, tokens + rows, logits_rows, vocab)

        return cls(reserve(total) + _STAGING_BYTES, config.resolved_step(model.max_positions), workspace)

    def step_bytes(self, tokens: int) -> int:
        return self.fixed + self.workspace(tokens)

    def most_tokens(self, room: int, beside: int) -> int:
        """No more than ``longest``."""
        within = bisect_right(range(self.longest + 1), room, key=lambda n: self.step_bytes(n) + n * beside)
        return max(0, within - 1)

    def average(self, tokens: int) -> int:
        """Bytes that a token of a step of so many adds."""
        return (self.workspace(tokens) - self.workspace(0)) // max(1, tokens)


def check_supported(spec: ModelSpec) -> None:
    """Raise ``UnsupportedModel`` that names the part of ``spec`` for which the device has no operation."""
    head, final = spec.classifier, spec.final_norm
    for layer in spec.layers:
        mixer = layer.mixer
        if not isinstance(mixer, Attention):
            raise UnsupportedModel(
                f"device='cuda' does not implement layers with a recurrent state ({type(mixer).__name__}); use "
                "device='cpu'"
            )
        lacks = {
            "attention with gates": mixer.gate,
            "attention over the whole prompt (an encoder)": not mixer.causal,
            "attention without rotary positions in any layer": all(heads.rope is None for heads in spec.attentions),
            "attention with a soft cap or a scale of its own": bool(mixer.cap) or mixer.scale is not None,
            "rotation of a part of a head": mixer.rope is not None and mixer.rope.width != mixer.head_dim,
            "norms other than RMSNorm": any(norm.kind != "rms" for norm in layer.norms()),
            "norms with different eps": any(norm.eps != layer.mlp_norm.eps for norm in layer.norms()),
            "a model without a final RMSNorm of the same eps": (
                final is None or final.kind != "rms" or final.eps != layer.mlp_norm.eps
            ),
            "embeddings other than those of tokens": any(
                part is not None
                for part in (
                    spec.embeddings.positions,
                    spec.embeddings.types,
                    spec.embeddings.norm,
                    spec.embeddings.projection,
                    layer.entry,
                )
            ),
            "a classification head other than one projection of the last token": (
                head is not None and (head.dense is not None or head.pooling != "last")
            ),
            "a head that reads the options of a question together": spec.options is not None,
            "norms behind the residual sum": not layer.norm_first,
            "norms of a layer's output": layer.mixer_after is not None or layer.mlp_after is not None,
            "norms whose weights count from one": any(norm.offset for norm in layer.norms()),
            "soft caps of logits, or scaled embeddings": bool(spec.logit_cap) or spec.embeddings.scale != 1.0,
            "a layer without a norm before attention": layer.mixer_norm is None,
            "an MLP other than gated SiLU": not layer.mlp.gated or layer.mlp.activation != "silu",
        }
        for part, needed in lacks.items():
            if needed:
                raise UnsupportedModel(f"device='cuda' does not implement {part}; use device='cpu'")
    _check_widths(spec)


def _check_widths(spec: ModelSpec) -> None:
    """Kernels take four values at a time; a head turns in two halves."""
    width = spec.attention.head_dim
    for name, value, step in (
        ("hidden_size", spec.hidden, 4),
        ("intermediate_size", spec.layers[0].mlp.inner, 4),
        ("head_dim", width, 8),
    ):
        if value % step:
            raise UnsupportedModel(f"device='cuda': {name}={value} is not a multiple of {step}; use device='cpu'")
    if width > 256:
        raise UnsupportedModel(f"device='cuda': head_dim={width} is above 256; use device='cpu'")


def attention_for(setting: str, model: ModelConfig, element: torch.dtype, deterministic: bool) -> str:
    """The name of the attention backend; ``backends.choose`` lists the errors."""
    width = model.spec.attention.head_dim
    name = choose(setting, "cuda", Wanted(width, str(element).removeprefix("torch."), deterministic))
    if name == "keys" and not deterministic and element.itemsize == 2:
        log.warning("attention by key lists: head_dim is %d", width)
    windows = [heads.window for heads in model.spec.attentions if heads.window is not None]
    if name != "keys" and windows and min(windows) + 1 < model.max_positions:
        log.info(
            "steps with a sequence of more than %d tokens attend by key lists: the model's layers have windows",
            min(windows) + 1,
        )
    return name


def attention_calls(
    model: ModelConfig, device: CudaDevice, setting: str = "auto", *, alone: bool = True
) -> Calls | None:
    """FlashInfer's calls; None where attention goes by key lists. If FlashInfer is missing or fails its trial, "auto"
    does without it and says so, but on a rank of a divided model (not ``alone``): its ranks attend alike."""
    from prelude.cuda import attention, flashinfer_trial

    if attention_for(setting, model, device.element, device.deterministic) == "keys":
        return None
    mixer = model.spec.attention
    heads = mixer.heads, mixer.kv_heads, mixer.head_dim
    lack = attention.missing()
    try:
        if lack is None:
            with device.scope():
                calls = attention.FlashInferCalls(device, *heads)
                lack = flashinfer_trial.failure(device, calls, heads, attention.trials(device.name))
            if lack is None:
                return calls
    except (ImportError, OSError) as error:
        lack = f"it cannot be imported: {error}"
    if asked_for(setting) == "flashinfer" or not alone:
        raise DeviceUnavailable(f"attention='flashinfer': {lack}", missing=(lack,))
    log.warning("FlashInfer is not used: %s. Attention goes by key lists", lack)
    return None


def probe_step(executor: CudaExecutor) -> OneShotBatch:
    """A step as large as any will be, that writes nothing."""
    limits = executor.limits()
    tokens = executor.step_tokens
    lengths = [limits.max_positions] * (tokens // limits.max_positions)
    if tokens % limits.max_positions:
        lengths.append(tokens % limits.max_positions)
    rows = np.arange(max(0, tokens - limits.logits_chunk_rows), tokens, dtype=np.int32)
    readout: Readout = LogprobRows(rows, np.zeros(0, np.int32), np.zeros(0, np.int32))
    if not limits.lm_head:
        readout = PooledRows(rows, np.arange(len(rows) + 1, dtype=np.int32))
    return OneShotBatch(blank_prompts(lengths), readout)


def give_blocks(
    executor: CudaExecutor, config: EngineConfig, before: int | None = None, ranks: Ranks | None = None
) -> None:
    """Measures the memory of a full step, and makes blocks of the rest; as many on each of ``ranks``. ``before``:
    bytes that were free before the engine took any; ``max_memory`` is a share of them."""
    from prelude.cuda.memory import blocks_for, fits, reserve, room

    memory, limits = executor.device.memory, executor.limits()
    block_bytes = limits.kv_bytes_per_token * limits.block_size
    _, total = memory()
    together = nullcontext() if ranks is None else ranks.together("the first full step")
    with fits(memory, "a full step", behind=reserve(total) + 2 * block_bytes), together:
        executor.wait(executor.submit(probe_step(executor)))
    free, total = memory()
    free = room(config.max_memory, total if before is None else before, free)
    blocks = blocks_for(free, total, block_bytes, blocks=config.expert.kv_blocks, nbytes=config.kv_bytes)
    if ranks is not None:
        blocks = ranks.group.least(blocks)
    with fits(memory, "the KV pool"):
        executor.set_blocks(blocks)
