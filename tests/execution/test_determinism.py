"""Deterministic mode: the bits of a row do not depend on its company. Hidden states are compared, all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from prelude.cpu.executor import CpuExecutor
from prelude.models.config import ModelConfig
from prelude.readouts.batch import DecodeBatch, HeadRows, LogprobRows, MixedBatch, OneShotBatch
from tests.checkpoints import SMALL, save_model, write_checkpoint
from tests.encoders import CLASSES as ENCODERS
from tests.encoders import run_encoder, write_encoder
from tests.execution.conftest import RECURRENT, VARIANTS
from tests.execution.helpers import (
    Model,
    Segment,
    all_logprobs,
    cpu_executor,
    decode_rows,
    ends,
    hidden,
    i32,
    last_logprobs,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
)
from tests.threads import use_threads

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 80, 129, 200, 513, 700)


@pytest.fixture(
    scope="module", params=["float32", "bfloat16", "int8", "bf16-files", "qwen3-windows", "gemma2", "gemma3"]
)
def served(
    request: pytest.FixtureRequest, model: Model, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, str]:
    """A model, and the type that it runs in."""
    if request.param not in VARIANTS:
        return model, request.param
    path = tmp_path_factory.mktemp(request.param)
    return Model(save_model(path, **VARIANTS[request.param])), "auto"


def options_of(name: str) -> dict[str, str]:
    return {"quantization": "int8"} if name == "int8" else {"dtype": name}


@pytest.fixture(scope="module")
def executor(served: tuple[Model, str]) -> CpuExecutor:
    return served[0].executor(**options_of(served[1]), deterministic=True)


@pytest.fixture(scope="module")
def alone(executor: CpuExecutor) -> Callable[[np.ndarray], np.ndarray]:
    """All rows of one prompt that is alone in its step."""
    return lambda ids: hidden(executor, prompts(ids), np.arange(len(ids)))


@pytest.mark.feature("A17")
@pytest.mark.fault(74)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_company_and_order(executor: CpuExecutor, alone: Callable[..., np.ndarray], rows: int) -> None:
    rng = np.random.default_rng(rows)
    ids = [random_ids(i, LENGTHS[i % len(LENGTHS)] if rows < 10 else int(rng.integers(1, 120))) for i in range(rows)]
    for order in (np.arange(rows), rng.permutation(rows)):
        s = prompts(*[ids[i] for i in order])
        together = hidden(executor, s, np.arange(s.num_tokens))
        last = hidden(executor, s, ends(s))  # through the last layer's shorter plan
        assert np.array_equal(last, together[ends(s)])
        for n, i in enumerate(order):
            assert np.array_equal(together[s.starts[n] : s.starts[n + 1]], alone(ids[i]))


@pytest.mark.fault(74)
def test_logits_of_given_tokens_in_company(executor: CpuExecutor) -> None:
    ids = [random_ids(i, n) for i, n in enumerate((5, 17, 64, 80, 33))]

    def read(*some: np.ndarray) -> np.ndarray:
        s = prompts(*some)
        rows = ends(s)
        pairs = np.arange(3 * len(rows))
        readout = LogprobRows(rows, i32(pairs // 3), i32(np.tile([1, 7, 200], len(rows))), raw=True)
        return np.asarray(run(executor, OneShotBatch(s, readout)).outputs[0].logprobs).reshape(-1, 3)

    together = read(*ids)
    for n, one in enumerate(ids):
        assert np.array_equal(read(one)[0], together[n])


@pytest.mark.fault(74)
def test_wide_products_have_the_same_bits_in_any_company_with_any_thread_count(tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 8}
    model = Model(write_checkpoint(tmp_path, {**SMALL, **sizes}))
    some = [random_ids(i, n) for i, n in enumerate((40, 3, 90, 17))]
    before = use_threads(2)
    try:
        executor = model.executor(deterministic=True)
        s = prompts(*some)
        together = hidden(executor, s, np.arange(s.num_tokens))
        for threads in (1, 2, 4):
            use_threads(threads)
            for n, ids in enumerate(some):
                alone = hidden(executor, prompts(ids), np.arange(len(ids)))
                assert np.array_equal(alone, together[s.starts[n] : s.starts[n + 1]]), (threads, n)
    finally:
        use_threads(before)


FAMILIES: dict[str, Callable[[Path], object]] = {
    **{
        name: partial(save_model, **{**VARIANTS, **RECURRENT}[name])
        for name in ("plain", "qwen2", "llama", "mistral", "phi3", "smollm3", "gemma", "gemma2", "gemma3", "qwen3_5")
    },
    "lfm2": partial(save_model, **RECURRENT["lfm2"]),
    "decoder with a head": partial(save_model, kind="ForSequenceClassification", num_labels=3),
    **{name: partial(write_encoder, family=name) for name in ENCODERS},
    "encoder with a head": partial(write_encoder, family="bert", kind="ForSequenceClassification", num_labels=3),
    "encoder with a masked head": partial(write_encoder, family="modernbert", kind="ForMaskedLM"),
}


@pytest.mark.fault(74)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_any_thread_count_alone_and_in_company(name: str, kind: str, tmp_path: Path) -> None:
    FAMILIES[name](tmp_path)
    config = ModelConfig.from_dir(tmp_path)
    executor = cpu_executor(tmp_path, config, num_blocks=32, **options_of(kind), deterministic=True)
    limits = executor.limits()
    ids = [5 + random_ids(n, n, 200) for n in (33, 1, 130)]

    def read(*some: np.ndarray) -> list[bytes]:
        """The hidden rows of each prompt, then what its heads say of its last row."""
        s = prompts(*some)
        found = [hidden(executor, s, np.arange(s.num_tokens))]
        if limits.num_labels:
            whole = HeadRows(i32(range(s.num_tokens)), s.starts) if config.spec.bidirectional else HeadRows(ends(s))
            found.append(run(executor, OneShotBatch(s, whole)).outputs[0].logits)
        if limits.lm_head or limits.masked_lm:
            found.append(last_logprobs(executor, s))
        rows = [found[0][s.starts[n] : s.starts[n + 1]].tobytes() for n in range(len(some))]
        return [one + b"".join(part[n].tobytes() for part in found[1:]) for n, one in enumerate(rows)]

    expected = [read(one)[0] for one in ids]
    before = use_threads(1)
    try:
        for threads in (1, 2, 3):
            use_threads(threads)
            assert read(*ids) == expected and read(ids[2]) == expected[2:], threads
    finally:
        use_threads(before)


def differing(path: str, deterministic: bool) -> list[int]:
    """Lengths of prompts whose rows in bfloat16 have other bits alone than in company, with two threads."""
    use_threads(2)
    executor = run_encoder(Path(path), dtype="bfloat16", deterministic=deterministic)
    ids = [5 + random_ids(n, n, 200) for n in (1, 21, 17, 34, 9, 63, 31)]
    s = prompts(*ids)
    together = hidden(executor, s, np.arange(s.num_tokens))
    alone = [hidden(executor, prompts(x), np.arange(len(x))) for x in ids]
    starts = s.starts
    return [len(x) for n, x in enumerate(ids) if not np.array_equal(together[starts[n] : starts[n + 1]], alone[n])]


@pytest.mark.fault(74)
def test_company_in_bfloat16_on_a_processor_without_products_of_it(tmp_path: Path) -> None:
    """Products of widened weights have the same bits in any company, in each mode."""
    path = write_encoder(tmp_path, family="bert", hidden_size=384, num_attention_heads=6, intermediate_size=192)
    code = "import sys; from tests.execution.test_determinism import differing as d; "
    code += "print(d(sys.argv[1], True), d(sys.argv[1], False))"
    limited = {"PRELUDE_CPU_KERNELS": "avx2"}
    ran = subprocess.run(
        [sys.executable, "-c", code, path], env={**os.environ, **limited}, capture_output=True, text=True
    )
    assert ran.stdout == "[] []\n", ran.stderr


@pytest.mark.fault(74)
def test_folded(executor: CpuExecutor, alone: Callable[..., np.ndarray]) -> None:
    state = random_ids(0, 300)
    tails = [random_ids(1 + i, n) for i, n in enumerate((12, 5, 30, 1, 84, 70))]
    s = slices(
        [Segment(state), *[Segment(x, 0) for x in tails], Segment(random_ids(50, 3), 5), Segment(random_ids(51, 90))]
    )
    whole = [state, *[np.concatenate([state, x]) for x in tails]]
    whole += [np.concatenate([whole[5], random_ids(50, 3)]), random_ids(51, 90)]
    rows = hidden(executor, s, np.arange(s.num_tokens))
    assert np.array_equal(hidden(executor, s, ends(s)), rows[ends(s)])
    for i, ids in enumerate(whole):
        mine = rows[s.starts[i] : s.starts[i + 1]]
        assert np.array_equal(mine, alone(ids)[-len(mine) :])


@pytest.mark.feature("D5")
@pytest.mark.fault(74)
def test_context_in_scattered_blocks(executor: CpuExecutor, alone: Callable[..., np.ndarray]) -> None:
    state = random_ids(0, 288)
    order = np.random.default_rng(1).permutation(60)
    for table in (list(range(70, 88)), order[:18].tolist()):
        fill = slices([Segment(state, write=table)])
        run(executor, OneShotBatch(fill, all_logprobs(ends(fill))))
        tails = [random_ids(1 + i, n) for i, n in enumerate((12, 1, 70))]
        roots = [Segment(x, context=288, blocks=table) for x in tails]
        s = slices([*roots, Segment(random_ids(9, 0), context=288, blocks=table), Segment(tails[0], 3)])
        rows = hidden(executor, s, np.arange(s.num_tokens))
        for i, x in ((0, tails[0]), (1, tails[1]), (2, tails[2]), (4, tails[0])):
            expected = alone(np.concatenate([state, x]))[288:]
            assert np.array_equal(rows[s.starts[i] : s.starts[i + 1]], expected)


@pytest.mark.fault(74)
@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 100])
def test_chunked(executor: CpuExecutor, alone: Callable[..., np.ndarray], chunk: int) -> None:
    ids = random_ids(3, 150 if chunk > 1 else 40)
    table = np.random.default_rng(2).permutation(100)[:10].tolist()
    whole = alone(ids)
    for done in range(0, len(ids), chunk):
        part = Segment(ids[done : done + chunk], context=done, blocks=table[: -(-done // 16)], write=table)
        s = slices([Segment(random_ids(chunk, 33)), part])
        rows = hidden(executor, s, np.arange(33, s.num_tokens))
        assert np.array_equal(rows, whole[done : done + chunk])


@pytest.mark.feature("A21")
@pytest.mark.fault(74)
def test_decode_rows_and_prefill_rows(executor: CpuExecutor) -> None:
    """A token computed as a decode row, alone or in company, has the logprobs of the same token in a prompt."""
    texts = [random_ids(i, n) for i, n in enumerate((3, 63, 64, 65, 130, 299))]
    order, tables = np.random.default_rng(3).permutation(120), []
    for i, ids in enumerate(texts):
        tables.append(order[i * 20 : i * 20 + 20].tolist())
        fill = slices([Segment(ids[:-1], write=tables[-1])])
        run(executor, OneShotBatch(fill, all_logprobs(ends(fill))))
    expected = [last_logprobs(executor, prompts(ids))[0] for ids in texts]
    vocab = executor.config.vocab_size
    lengths, tokens = [len(x) - 1 for x in texts], [int(x[-1]) for x in texts]

    def check(result: object, rows: list[int]) -> None:
        for n, i in enumerate(rows):
            ids, values = result.top_ids[n], result.top_logprobs[n]  # type: ignore[attr-defined]
            assert np.array_equal(values, expected[i][ids].astype(np.float32))

    for rows in ([4], list(range(6)), [5, 0, 3]):
        batch = decode_rows([tokens[i] for i in rows], [lengths[i] for i in rows], [tables[i] for i in rows])
        read = sampling(range(len(rows)), top=vocab)
        check(run(executor, DecodeBatch(batch, read)).outputs[0], rows)
        mixed = MixedBatch(prompts(random_ids(7, 90)), (), batch, read)
        check(run(executor, mixed).outputs[0], rows)


def test_close_to_the_default_mode(served: tuple[Model, str], executor: CpuExecutor) -> None:
    s = prompts(*[random_ids(i, n) for i, n in enumerate((1, 40, 300))])
    rows = np.arange(s.num_tokens)
    name = served[1]
    default = hidden(served[0].executor(**options_of(name)), s, rows)
    error = np.abs(default - hidden(executor, s, rows)).max() / np.abs(default).max()
    assert error < (1e-5 if name in ("float32", "int8") else 2e-2)
