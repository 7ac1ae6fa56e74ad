"""On a GPU: the executor against the CPU one. Written without a GPU at hand; none of these has run yet.

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
from prelude.cuda import attention, weights
from prelude.cuda.cuda_device import CudaDevice
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from bench.gpu import exactness as gpu_exactness
from bench.gpu import loads as gpu_loads
from bench.gpu.models import MODELS, RandomSource, Reference
from prelude.batch import DecodeBatch, MixedBatch, OneShotBatch
from prelude.execution.cuda import attention_calls
from prelude.models.checkpoint import Checkpoint
from tests.checkpoints import save_model
from tests.cuda.plans import BLOCKS, random_batch, random_slices
from tests.cuda.test_ahead import play, requests, same_texts
from tests.cuda.test_parity import bits_in_any_company, same
from tests.execution.helpers import (
    BLOCK,
    VOCAB,
    Model,
    Segment,
    decode_rows,
    ends,
    hidden,
    i32,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(save_model(tmp_path_factory.mktemp("wide"), head_dim=128, hidden_size=128))


@pytest.fixture
def on_gpu(wide: Model) -> Iterator[Callable[..., CudaExecutor]]:
    made: list[CudaExecutor] = []

    def make(element: torch.dtype, *, deterministic: bool = False, **options: Any) -> CudaExecutor:
        config = wide.config
        device = CudaDevice(element, head_dim=config.spec.attention.head_dim, deterministic=deterministic)
        with device.scope(), Checkpoint.open(wide.path, config) as checkpoint:
            loaded = weights.load(device, checkpoint, config.spec, config.max_positions)
        settings: dict[str, Any] = {"step_tokens": 1024, "step_rows": 64, "logits_chunk_rows": 16}
        calls = attention_calls(config, device, "auto" if attention.missing() is None else "keys")
        executor = CudaExecutor(
            config, loaded, device, num_blocks=BLOCKS, block_size=BLOCK, calls=calls, **settings | options
        )
        made.append(executor)
        return executor

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
    """Every size up to 9, so that every bucket has padding; slots that are not written keep their values."""
    replayed = on_gpu(torch.bfloat16, policy=GraphPolicy(at_once=True))
    eager = on_gpu(torch.bfloat16, policy=GraphPolicy(enabled=False))
    order = np.random.default_rng(0).permutation(BLOCKS)
    tables = [order[i * 6 : i * 6 + 6].tolist() for i in range(9)]
    ids = [random_ids(i, 5 + 8 * i) for i in range(9)]
    fill = slices([Segment(x, write=t) for x, t in zip(ids, tables)])
    for executor in (replayed, eager):
        run(executor, OneShotBatch(fill, sampling(ends(fill))))
    for count in range(1, 10):
        rows = decode_rows(list(range(count)), [len(x) for x in ids[:count]], tables[:count])
        before = replayed.pool.clone()
        ours = run(replayed, DecodeBatch(rows, sampling(range(count), top=3)))
        plain = run(replayed, DecodeBatch(rows, sampling(range(count))))
        theirs = run(eager, DecodeBatch(rows, sampling(range(count))))
        assert not plain.eager and not ours.eager and theirs.eager
        assert plain.outputs[0].token_ids.tolist() == theirs.outputs[0].token_ids.tolist()
        changed = (before != replayed.pool).any(-1).any(-1).any(0).any(0).nonzero()[:, 0].tolist()
        scratch = range(BLOCKS * BLOCK, (BLOCKS + 1) * BLOCK)
        assert set(changed) <= {*rows.write_slots.tolist(), *scratch}


@pytest.mark.fault(74)
@pytest.mark.parametrize("element", [torch.float32, torch.bfloat16])
def test_bits_in_any_company(on_gpu: Callable[..., CudaExecutor], element: torch.dtype) -> None:
    bits_in_any_company(on_gpu(element, deterministic=True, policy=GraphPolicy(enabled=False)))


@pytest.mark.feature("H13")
def test_fed_on_the_device(wide: Model, on_gpu: Callable[..., CudaExecutor]) -> None:
    executor, reference = on_gpu(torch.float32, policy=GraphPolicy(at_once=True)), wide.executor(num_blocks=BLOCKS)
    s = slices([Segment(random_ids(0, 20), write=[4, 5, 6])])
    fill = MixedBatch(s, (sampling(ends(s)),), decode_rows([], [], [[]]), None)
    tickets = [executor.submit(fill)]
    for step in range(10):
        tickets.append(executor.submit(DecodeBatch(decode_rows([-1], [20 + step], [[4, 5, 6]]), sampling([0]))))
    ours = [int(executor.wait(t).outputs[0].token_ids[0]) for t in tickets]
    theirs = [int(run(reference, fill).outputs[0].token_ids[0])]
    for step in range(10):
        batch = DecodeBatch(decode_rows([theirs[-1]], [20 + step], [[4, 5, 6]]), sampling([0]))
        theirs.append(int(run(reference, batch).outputs[0].token_ids[0]))
    assert ours == theirs


@pytest.mark.feature("H13")
@pytest.mark.feature("H14")
def test_the_engine_keeps_decode_steps_in_flight(wide: Model, on_gpu: Callable[..., CudaExecutor]) -> None:
    prepared = requests(["greedy", "drawn", "logprobs", "early", "drawn", "penalised"] * 2)
    _, expected = play(wide.executor(num_blocks=BLOCKS), prepared, False)
    for overlap in (True, False):
        core, texts = play(on_gpu(torch.float32, policy=GraphPolicy(at_once=True)), prepared, overlap)
        same_texts(texts, expected)
        assert core.stats.graph_replays > 5


@needs_flashinfer
@pytest.mark.parametrize("name", ["tiny", "06b"])
def test_real_shapes_against_float32(name: str) -> None:
    bench = gpu_loads.Bench(1)
    try:
        executor = bench.executor(name, num_blocks=256, step_tokens=4096)
        reference = Reference(RandomSource(MODELS[name], "cuda", torch.bfloat16))
        error = gpu_exactness.worst_error(executor, reference, 0, exact=False)
        assert error <= gpu_exactness.allowed_ulps(MODELS[name])
    finally:
        bench.release()


def test_a_bad_row_fails_alone(on_gpu: Callable[..., CudaExecutor]) -> None:
    executor = on_gpu(torch.float32)
    with executor.device.scope():
        executor.weights.embeddings[5] = float("nan")
    s = prompts(i32([1, 2, 3]), i32([4, 5, 6]), i32([7, 8]))
    result = run(executor, OneShotBatch(s, sampling(ends(s))))
    assert result.bad_rows[0].tolist() == [1]


def test_searched_products_are_right_and_kept(
    on_gpu: Callable[..., CudaExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shapes of Qwen3-0.6B at 128 rows, through the real library; nothing may be wrong with any choice."""
    monkeypatch.setenv("PRELUDE_CACHE", str(tmp_path))
    device = on_gpu(torch.bfloat16).device
    assert isinstance(device, CudaDevice) and device.matmul_search is not None
    made = torch.Generator("cuda").manual_seed(1)
    with device.scope():
        for outputs, inner, dtype, add in (
            (4096, 1024, torch.bfloat16, False),
            (1024, 2048, torch.float32, True),
            (6144, 1024, torch.bfloat16, False),
            (1024, 3072, torch.float32, True),
        ):
            x, weight = (
                torch.randn(n, inner, device="cuda", generator=made).bfloat16() / inner**0.25 for n in (128, outputs)
            )
            out = torch.ones(128, outputs, device="cuda", dtype=dtype)
            wanted = x.float() @ weight.float().t() + (1 if add else 0)
            device._searching = True
            device.matmul(x, weight, out, add=add)
            device._searching = False
            assert (out.float() - wanted).abs().max() < 2e-2 * wanted.abs().max()
        assert device.matmul_search.path.exists() and device.matmul_search.path.is_relative_to(tmp_path)
