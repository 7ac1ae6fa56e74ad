"""On a GPU: the executor against the CPU one.

Head width 128 throughout, so that FlashInfer's prebuilt modules serve. FlashInfer computes in bfloat16 only: float32
and deterministic mode go through our own attention kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda import attention, kernels
from prelude.cuda.cuda_device import CudaDevice
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from prelude import Engine, EngineConfig
from prelude.loading.cuda import attention_calls
from tests.checkpoints import save_model
from tests.cuda.conftest import on_device
from tests.cuda.plans import BLOCKS, random_batch, random_slices
from tests.cuda.test_ahead import play, requests, same_texts
from tests.cuda.test_graphs import replays_decode
from tests.cuda.test_parity import bits_in_any_company, same
from tests.engine import test_stories as recorded
from tests.execution.helpers import VOCAB, Model, hidden, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("wide"), head_dim=128, hidden_size=128))


@pytest.fixture
def on_gpu(wide: Model) -> Iterator[Callable[..., CudaExecutor]]:
    made: list[CudaExecutor] = []

    def make(element: torch.dtype, *, deterministic: bool = False, **options: Any) -> CudaExecutor:
        device = CudaDevice(element, head_dim=wide.config.spec.attention.head_dim, deterministic=deterministic)
        calls = attention_calls(wide.config, device, "auto" if attention.missing() is None else "keys")
        made.append(
            on_device(wide, device=device, **{"calls": calls, "logits_chunk_rows": 16, "step_rows": 256} | options)
        )
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.mark.feature("D5")
@pytest.mark.feature("H8")
@pytest.mark.feature("A21")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("seed", range(4))
def test_random_batches_in_float32(wide: Model, on_gpu: Callable[..., CudaExecutor], graphs: bool, seed: int) -> None:
    executor = on_gpu(torch.float32, policy=GraphPolicy(enabled=graphs, at_once=True))
    reference, rng = wide.executor(num_blocks=BLOCKS), np.random.default_rng(seed)
    for _ in range(40):
        batch = random_batch(rng, VOCAB)
        same(run(executor, batch), run(reference, batch), 5e-4)
    assert (executor.graphs.replays > 5) == graphs and not executor.graphs.failures


needs_flashinfer = pytest.mark.skipif(attention.missing() is not None, reason=f"FlashInfer: {attention.missing()}")


@needs_flashinfer
@pytest.mark.feature("H8")
@pytest.mark.feature("H9")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_flashinfer_against_key_lists_and_float32(
    wide: Model, on_gpu: Callable[..., CudaExecutor], graphs: bool
) -> None:
    """Hidden states of every row, through levels and through key lists, both in bfloat16, against float32."""
    levels = on_gpu(torch.bfloat16, policy=GraphPolicy(enabled=graphs, at_once=True))
    keys = on_gpu(torch.bfloat16, calls=None, policy=GraphPolicy(enabled=False))
    reference, rng = wide.executor(num_blocks=BLOCKS), np.random.default_rng(3)
    assert levels.calls is not None and keys.calls is None
    for _ in range(30):
        s = random_slices(rng, VOCAB)
        rows = np.arange(s.num_tokens)
        exact = hidden(reference, s, rows)
        scale = np.abs(exact).max()
        for executor in (levels, keys):
            assert np.abs(hidden(executor, s, rows) - exact).max() / scale < 0.05


@needs_flashinfer
@pytest.mark.feature("A29")
@pytest.mark.feature("H10")
def test_replayed_decode_is_eager_decode(on_gpu: Callable[..., CudaExecutor]) -> None:
    made = [on_gpu(torch.bfloat16, policy=GraphPolicy(enabled=on, at_once=True)) for on in (True, False)]
    replays_decode(*made)


@pytest.mark.fault(74)
@pytest.mark.parametrize("element", [torch.float32, torch.bfloat16])
def test_bits_in_any_company(on_gpu: Callable[..., CudaExecutor], element: torch.dtype) -> None:
    bits_in_any_company(on_gpu(element, deterministic=True, policy=GraphPolicy(enabled=False)))


def test_skinny_gemm_against_float32(on_gpu: Callable[..., CudaExecutor]) -> None:
    """The shapes of Qwen3-0.6B and 4B, and one of two chunks."""
    device = on_gpu(torch.bfloat16).device
    torch.manual_seed(1)
    with device.scope():
        for outputs, inner in ((4096, 1024), (1024, 2048), (1024, 3072), (6144, 2560), (2560, 9728)):
            weight = (torch.randn(outputs, inner, device="cuda") / inner**0.5).bfloat16()
            for rows in range(1, kernels.SKINNY_ROWS + 1):
                x = torch.randn(rows, inner, device="cuda").bfloat16()
                wanted = x.float() @ weight.float().t()
                for out in (torch.ones(rows, outputs, device="cuda"), torch.full_like(wanted, 7.0).bfloat16()):
                    add = out.dtype == torch.float32
                    assert kernels.skinny_gemm(device, x, weight, out, add=add)
                    assert (out.float() - wanted - int(add)).abs().max() < 1e-2 * wanted.abs().max()


@pytest.mark.parametrize("deterministic", [False, True], ids=["fastest", "deterministic"])
def test_trained_weights(shared: Path, deterministic: bool) -> None:
    """Text and logprobs are those that transformers gave in float32."""
    stories, config = recorded.stories_of(shared), EngineConfig(kv_bytes=1 << 22, deterministic=deterministic)
    with Engine.from_pretrained(stories, device="cuda", dtype="float32", config=config) as engine:
        recorded.test_greedy_tokens_are_the_recorded_ones_to_the_id(engine, recorded.recorded_cases(stories))
        recorded.test_logprobs_are_the_recorded_ones(engine, recorded.recorded_cases(stories))


@pytest.mark.feature("H13")
@pytest.mark.feature("H14")
def test_the_engine_keeps_decode_steps_in_flight(wide: Model, on_gpu: Callable[..., CudaExecutor]) -> None:
    prepared = requests(["greedy", "drawn", "logprobs", "early", "drawn", "penalised"] * 2)
    _, expected = play(wide.executor(num_blocks=BLOCKS), prepared, False)
    for overlap in (True, False):
        core, texts = play(on_gpu(torch.float32, policy=GraphPolicy(at_once=True)), prepared, overlap)
        same_texts(texts, expected)
        assert core.stats.graph_replays > 5


def test_searched_products_are_right_and_kept(
    on_gpu: Callable[..., CudaExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shapes of Qwen3-0.6B at 128 rows, through the real library; nothing may be wrong with any choice."""
    monkeypatch.setenv("PRELUDE_CACHE", str(tmp_path))
    device = on_gpu(torch.bfloat16).device
    assert isinstance(device, CudaDevice) and device.matmul_search is not None
    torch.manual_seed(1)
    with device.scope():
        for outputs, inner, dtype, add in (
            (4096, 1024, torch.bfloat16, False),
            (1024, 2048, torch.float32, True),
            (6144, 1024, torch.bfloat16, False),
            (1024, 3072, torch.float32, True),
        ):
            x, weight = (torch.randn(n, inner, device="cuda").bfloat16() / inner**0.25 for n in (128, outputs))
            out = torch.ones(128, outputs, device="cuda", dtype=dtype)
            device.warm(
                lambda x=x, weight=weight, out=out, add=add: device.matmul(x, weight, out, add=add), search=True
            )
            out.fill_(1)
            device.matmul(x, weight, out, add=add)
            wanted = x.float() @ weight.float().t() + (1 if add else 0)
            assert (out.float() - wanted).abs().max() < 2e-2 * wanted.abs().max()
        assert device.matmul_search.path.exists() and device.matmul_search.path.is_relative_to(tmp_path)
