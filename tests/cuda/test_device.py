"""The error of ``device="cuda"`` without a GPU, and refusals of the executor before the device's own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from prelude.cuda import driver, kernels
from prelude.cuda.memory import blocks_for, fits, reserve

import prelude
from prelude.errors import DeviceUnavailable, EngineClosed, InsufficientMemory, UnsupportedModel
from prelude.loading.cuda import check_supported, give_blocks, probe_step
from prelude.models.spec import ModelSpec
from prelude.readouts.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.runtime.assembly import make_core
from prelude.runtime.core import EngineCore
from prelude.values.config import EngineConfig, ExpertConfig
from tests.cuda.conftest import on_device
from tests.cuda.plans import BLOCKS
from tests.cuda.simulated import SimulatedDevice
from tests.execution.helpers import VOCAB, Model, Segment, all_logprobs, decode_rows, ends, i32, run, sampling, slices
from tests.scheduling.cores import Collect, chat
from tests.service import run_steps

WITHOUT = pytest.mark.skipif(not driver.missing(), reason="there is a GPU here")


@WITHOUT
def test_the_error_names_the_missing_package() -> None:
    with pytest.raises(DeviceUnavailable, match="device='cuda' cannot be used") as caught:
        driver.require()
    assert caught.value.missing == driver.missing() and len(caught.value.missing) >= 1
    assert all(lack in str(caught.value) for lack in caught.value.missing)


@WITHOUT
def test_an_engine_on_cuda_is_refused_before_anything_is_read() -> None:
    with pytest.raises(DeviceUnavailable, match="device='cpu' needs none of this"):
        prelude.Engine.from_pretrained("/nowhere/at/all", device="cuda")


def test_importing_the_package_reaches_no_driver() -> None:
    """torch may import cuda-python for itself; neither it nor FlashInfer is imported or asked by us."""
    code = (
        "import sys, torch; before = set(sys.modules);"
        "import prelude.cuda.executor, prelude.cuda.attention, prelude.cuda.cuda_device, prelude.loading.cuda;"
        "from prelude.cuda import driver;"
        "new = set(sys.modules) - before;"
        "print([m for m in new if m.startswith(('cuda.', 'flashinfer'))], driver.missing.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n"


# ------------------------------------------------------------------ bounds
def test_steps_out_of_bounds_are_refused_and_the_next_one_runs(model: Model) -> None:
    executor = on_device(model)
    s = slices([Segment(i32([1, 2, 3]), context=16, blocks=[5])])
    good = OneShotBatch(s, all_logprobs(ends(s)))
    for bad, said in (
        (replace(s, token_ids=i32([1, VOCAB, 3])), f"token id {VOCAB}"),
        (replace(s, positions=i32([16, 1024, 18])), "position 1024"),
        (replace(s, context_blocks=i32([BLOCKS])), f"block {BLOCKS}"),
    ):
        handle = executor.submit(OneShotBatch(bad, all_logprobs(ends(s))))
        with pytest.raises(ValueError, match=said):
            executor.wait(handle)
        assert len(run(executor, good).bad_rows[0]) == 0
    for batch, said in (
        (OneShotBatch(slices([Segment(i32([1] * 1200))]), sampling([0])), "room for"),
        (DecodeBatch(decode_rows([-3], [3], [[1]]), sampling([0])), "token id -3"),  # one token was drawn at most
    ):
        with pytest.raises(ValueError, match=said):
            executor.wait(executor.submit(batch))
    run(executor, DecodeBatch(decode_rows([-1], [3], [[1]]), sampling([0])))  # of the step that failed
    with pytest.raises(TypeError):
        executor.submit("a batch")
    executor.close()
    with pytest.raises(EngineClosed):
        executor.submit(good)


def test_a_step_without_tokens(model: Model) -> None:
    executor = on_device(model)
    empty = MixedBatch(slices([Segment(i32([]))]), (), decode_rows([], [], [[]]), None)
    assert run(executor, empty).outputs == ()


def test_kernels_are_told_apart_from_their_mistakes() -> None:
    device = SimulatedDevice()
    x, gain = device.zeros((4, 8), torch.float32), device.zeros((8,), torch.float32)
    with pytest.raises(IndexError, match="rms_norm: needs 40 values, 32 are there"):
        device.launch(kernels.RMS_NORM, (5,), (x, gain, 1e-6, 8, x))
    with pytest.raises(TypeError, match="int64"):
        device.launch(kernels.GATHER, (4,), (torch.zeros(4, dtype=torch.int64), x, 8, x))
    with pytest.raises(TypeError, match="takes 5 arguments"):
        device.launch(kernels.RMS_NORM, (4,), (x, gain))
    with pytest.raises(TypeError, match="null"):
        device.launch(kernels.RMS_NORM, (4,), (x, None, 1e-6, 8, x))


# ------------------------------------------------------------------ staging
@pytest.mark.parametrize("step_rows, rows", [(40, 33), (6, 5), (40, 40)])
def test_a_full_step_of_rows_finds_room_though_their_limit_is_no_power_of_two(
    model: Model, step_rows: int, rows: int
) -> None:
    """Rows that are sampled are rounded up to a power of two, and their tokens have places of their own."""
    limits = {"max_length": 64, "max_step_tokens": 512, "max_step_requests": step_rows, "max_running": step_rows}
    config = EngineConfig().changed(**limits, prefix_cache=False, fold=False)
    core = make_core(EngineCore, on_device(model, step_rows=step_rows), config)
    sink = Collect()
    core.lifecycle.post([core.request(chat(i32([i] * 5), 1), sink) for i in range(rows)])
    run_steps(core)
    assert len(sink.ends) == rows and all(error is None for _, error in sink.ends.values())
    assert sum(core.stats.steps.values()) == 1


# ------------------------------------------------------------------ memory
def test_blocks_take_the_memory_that_is_left_and_never_more_than_asked() -> None:
    gib = 1 << 30
    left = blocks_for(10 * gib, 16 * gib, 1 << 20, blocks=None, nbytes=None)
    assert left == (10 * gib - reserve(16 * gib)) // (1 << 20) - 1
    assert blocks_for(10 * gib, 16 * gib, 1 << 20, blocks=100, nbytes=None) == 100
    assert blocks_for(10 * gib, 16 * gib, 1 << 20, blocks=None, nbytes=5 << 20) == 4, "and the scratch block"
    with pytest.raises(InsufficientMemory, match="does not hold a KV block and the scratch block") as caught:
        blocks_for(10 * gib, 16 * gib, 1 << 20, blocks=None, nbytes=(2 << 20) - 1)
    assert (caught.value.needed, caught.value.available) == (2 << 20, (2 << 20) - 1)
    with pytest.raises(InsufficientMemory, match="lower kv_bytes") as caught:
        blocks_for(1 * gib, 16 * gib, 1 << 20, blocks=900, nbytes=None)
    assert caught.value.needed == 901 << 20 and caught.value.available == 1 * gib - reserve(16 * gib)
    with pytest.raises(InsufficientMemory):
        blocks_for(reserve(16 * gib), 16 * gib, 1 << 20, blocks=None, nbytes=None)


def test_the_memory_of_a_step_is_asked_for_before_it_is_taken(model: Model) -> None:
    work = on_device(model, step_tokens=4096).work
    weights = on_device(model).weights.nbytes
    room = weights + work.nbytes // 2
    with pytest.raises(InsufficientMemory, match="lower max_step_tokens or logits_bytes") as caught:
        on_device(model, step_tokens=4096, memory=room)
    assert caught.value.needed == work.nbytes
    assert caught.value.available <= room - weights


def test_a_full_step_that_finds_no_memory_says_the_bytes_needed_and_free(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace fits, the step's own memory does not: no allocator's error comes out."""
    executor = on_device(model, num_blocks=1)
    device: Any = executor.device
    monkeypatch.setattr("prelude.cuda.executor._STAGING", 64)  # the step brings arrays of its own
    device.total -= device.memory()[0] - 1000
    with pytest.raises(InsufficientMemory, match="a full step needs more than the 1,000 of") as caught:
        give_blocks(executor, EngineConfig())
    limits = executor.limits()
    behind = reserve(device.total) + 2 * limits.kv_bytes_per_token * limits.block_size
    assert (caught.value.needed, caught.value.available) == (1000 + behind, 1000)
    assert isinstance(caught.value.__cause__, torch.cuda.OutOfMemoryError)
    refused = pytest.raises(InsufficientMemory, match="the KV pool needs more than the 1,000 of")
    with refused, fits(device.memory, "the KV pool"):
        executor.set_blocks(1_000_000)


def test_a_probe_step_is_as_large_as_any_and_leaves_the_pool_alone(model: Model) -> None:
    executor = on_device(model, num_blocks=1, step_tokens=1500)
    batch = probe_step(executor)
    assert batch.num_tokens == 1500 and batch.slices.starts.tolist() == [0, 1024, 1500]
    give_blocks(executor, EngineConfig(expert=ExpertConfig(kv_blocks=50)))
    assert executor.limits().num_blocks == 50 and not executor.pool.any()
    taken = executor.limits().kv_bytes_per_token * 51 * executor.block_size
    assert executor.pool.nbytes == taken
    s = slices([Segment(i32(range(20)), write=[49, 3])])
    assert len(run(executor, OneShotBatch(s, all_logprobs(ends(s)))).bad_rows[0]) == 0


@pytest.mark.feature("A20")
def test_weights_are_resident_once(variant: Model) -> None:
    executor = on_device(variant)
    weights, config = executor.weights, variant.config
    tied = weights.lm_head is not None and weights.lm_head.data_ptr() == weights.embeddings.data_ptr()
    assert tied == (config.spec.lm_head == "tied")
    tables = {layer.rope_table.data_ptr(): layer.rope_table.nbytes for layer in weights.layers}
    count = sum(p.numel() for p in variant.oracle.parameters())
    assert executor.limits().weight_bytes == 4 * count + sum(tables.values())


@pytest.mark.feature("A20")
def test_weights_larger_than_a_pinned_buffer_come_over_in_parts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two buffers in turn, none written before its copy has run; the parts of merged weights land side by side."""
    whole = on_device(model).weights
    for a, b in zip(whole.tensors(), on_device(model, device=SimulatedDevice(torch.bfloat16)).weights.tensors()):
        assert torch.equal(a.to(b.dtype), b), "rounded once"
    monkeypatch.setattr("prelude.cuda.weights._CHUNK", 1000)  # divides no row
    parts = on_device(model).weights
    for a, b in zip(whole.tensors(), parts.tensors(), strict=True):
        assert a.nbytes > 0 and torch.equal(a, b)
    assert whole.layers[0].qkv.nbytes > 5 * 1000


def _changed(spec: ModelSpec, mixer: dict[str, Any] | None = None, **layer: Any) -> ModelSpec:
    """``spec`` with other values in its last layer, and in the attention of all."""
    layers = tuple(replace(one, mixer=replace(one.mixer, **mixer or {})) for one in spec.layers)
    return replace(spec, layers=(*layers[:-1], replace(layers[-1], **layer)))


def test_models_the_kernels_cannot_take_are_named(model: Model) -> None:
    spec = model.config.spec
    check_supported(spec)
    last, rope = spec.layers[-1], spec.attention.rope
    assert rope is not None
    for wrong, said in (
        (_changed(spec, {"head_dim": 20, "rope": replace(rope, width=20)}), "head_dim=20 is not a multiple of 8"),
        (_changed(spec, {"head_dim": 512, "rope": replace(rope, width=512)}), "above 256"),
        (_changed(spec, {"rope": replace(rope, width=8)}), "rotation of a part of a head"),
        (_changed(spec, {"scale": 0.5}), "a soft cap or a scale"),
        (_changed(spec, mlp_after=last.mlp_norm), "norms of a layer's output"),
        (replace(spec, logit_cap=30.0), "soft caps of logits"),
        (replace(spec, embeddings=replace(spec.embeddings, scale=8.0)), "scaled embeddings"),
        (_changed(spec, {"rope": None}), "without rotary positions in any layer"),
        (replace(spec, embeddings=replace(spec.embeddings, types="t", num_types=2)), "other than those of tokens"),
        (_changed(spec, mixer_norm=None), "without a norm before attention"),
        (_changed(spec, norm_first=False), "norms behind the residual sum"),
        (_changed(spec, mlp_norm=replace(last.mlp_norm, kind="layer")), "norms other than RMSNorm"),
        (_changed(spec, mlp_norm=replace(last.mlp_norm, eps=0.01)), "norms with different eps"),
        (_changed(spec, mlp=replace(last.mlp, gated=False)), "an MLP other than gated SiLU"),
    ):
        with pytest.raises(UnsupportedModel, match=said):
            check_supported(wrong)
