"""Long steps make queries for one run of tokens at a time: the same bits as steps that make all of them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude.cpu.executor import CpuExecutor
from prelude.execution.memory_plan import StepMemory, query_run
from tests.checkpoints import save_model
from tests.cuda.plans import BLOCKS, random_batch
from tests.cuda.test_parity import same
from tests.encoders import VARIANTS as ENCODERS
from tests.encoders import Encoder, write_encoder
from tests.execution.conftest import RECURRENT
from tests.execution.helpers import VOCAB, Model, Noted, Segment, hidden, i32, prompts, random_ids, run, slices
from tests.threads import use_threads

WHOLE = 1 << 20


def cut(executor: CpuExecutor, chunk: int, chunks: int) -> CpuExecutor:
    """The executor with runs of so many chunks of so many tokens."""
    executor.decoder.token_chunk, executor.decoder.run_chunks = chunk, chunks
    return executor


def sections(executor: CpuExecutor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each product of queries apart has, as they are made."""
    made: list[int] = []
    before: list[Any] = [
        (all_heads, Noted(queries, made), keys) for all_heads, queries, keys in executor.decoder.before
    ]
    monkeypatch.setattr(executor.decoder, "before", before)
    return made


@pytest.mark.feature("G8")
def test_random_batches_have_the_same_bits_in_runs_of_any_size(variant: Model) -> None:
    """Prompts, forests, chunks behind a context, decode rows beside them, windows, caps: what is read and what is
    written to the pool."""
    whole = cut(variant.executor(num_blocks=BLOCKS, deterministic=True), WHOLE, 1)
    runs = [
        cut(variant.executor(num_blocks=BLOCKS, deterministic=True), *sizes) for sizes in ((16, 1), (8, 3), (64, 1))
    ]
    rng = np.random.default_rng(17)
    for _ in range(8):
        batch = random_batch(rng, VOCAB)
        expected = run(whole, batch)
        for executor in runs:
            same(run(executor, batch), expected, 1e-30)  # that is, equal
    for executor in runs:
        assert np.array_equal(executor.pool.tensor, whole.pool.tensor)


@pytest.mark.feature("G8")
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_random_batches_in_the_default_mode(model: Model, options: dict[str, Any]) -> None:
    """Decode rows read their block tables, some of them in the middle of a run."""
    whole = cut(model.executor(num_blocks=BLOCKS, **options), WHOLE, 1)
    runs = cut(model.executor(num_blocks=BLOCKS, **options), 16, 2)
    rng = np.random.default_rng(18)
    for _ in range(12):
        batch = random_batch(rng, VOCAB)
        same(run(runs, batch), run(whole, batch), 3e-2 if options else 1e-4)


@pytest.mark.feature("G8")
@pytest.mark.parametrize("name", list(ENCODERS))
def test_encoders_see_their_whole_prompt_in_runs_of_any_size(name: str, tmp_path: Path) -> None:
    encoder = Encoder(write_encoder(tmp_path, **ENCODERS[name]))
    executor = encoder.executor(deterministic=True)
    lengths = (1, 17, 90, encoder.config.max_positions)
    ids = [i32(5 + random_ids(n, n, 200)) for n in lengths]
    s = slices([Segment(ids[0]), Segment(ids[1]), Segment(ids[2][:40]), Segment(ids[2][40:], 2), Segment(ids[3])])
    rows = np.arange(s.num_tokens)
    expected = hidden(cut(executor, WHOLE, 1), s, rows)
    for chunk, chunks in ((16, 1), (7, 3)):
        assert np.array_equal(hidden(cut(executor, chunk, chunks), s, rows), expected)
        assert np.array_equal(hidden(executor, s, rows[20:80]), expected[20:80])


@pytest.mark.feature("G8")
@pytest.mark.parametrize("name", list(RECURRENT))
def test_layers_with_a_state_beside_attention_in_runs(name: str, tmp_path: Path) -> None:
    model = Model(save_model(tmp_path, **RECURRENT[name]))
    executor = model.executor(deterministic=True)
    s = prompts(random_ids(0, 90), random_ids(1, 45))
    for rows in (np.arange(135), np.array([3, 89, 134])):
        expected = hidden(cut(executor, WHOLE, 1), s, rows)
        assert np.array_equal(hidden(cut(executor, 16, 2), s, rows), expected)


@pytest.mark.feature("G8")
def test_queries_of_one_run_exist_at_a_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of one run makes queries with keys and values, but for its last layer, of which rows are read."""
    executor = cut(model.executor(), 32, 2)
    made = sections(executor, monkeypatch)
    hidden(executor, prompts(random_ids(0, 150)), [149])
    assert made == [60, 60, 30, 60, 60, 30, 1]
    made.clear()
    hidden(executor, prompts(random_ids(0, 64)), [0, 63])
    assert made == [2]


def test_a_run_has_work_for_all_threads(model: Model) -> None:
    spec, found = model.config.spec, []
    for threads in (1, 2, 16, 64):
        use_threads(threads)
        found.append(query_run(spec))
    use_threads(1)
    assert found[0] == found[1] == 1024 and found[3] > 3 * found[2] > 3 * 1024
    assert all(run % 256 == 0 for run in found)


def test_bytes_of_a_step_by_its_shapes(tmp_path: Path) -> None:
    spec = Model(save_model(tmp_path, num_attention_heads=3, num_key_value_heads=1, head_dim=24)).config.spec
    found = StepMemory.of_shapes(spec, 2, chunk_rows=10, top=0)
    queries, keys_and_values, rotation = 3 * 24, 2 * 24, 4 * 24
    assert found.per_token == 4 * spec.hidden + 2 * keys_and_values + rotation + 96
    products = 256 * 4 * (spec.layers[0].mlp.up.outputs + 3 * spec.hidden)
    assert found.fixed == products + query_run(spec) * 2 * (2 * queries + keys_and_values)
    assert found.readout == 3 * 10 * spec.embeddings.vocab * 4


@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"dtype": "bfloat16"}], ids=str)
def test_queries_that_end_within_a_group_of_packed_outputs(options: dict[str, Any], tmp_path: Path) -> None:
    """Their keys are made in the layer's own memory, and of the values that it has."""
    sizes = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24}
    model = Model(save_model(tmp_path, **sizes))
    executor = model.executor(deterministic=True, **options)
    layer = executor.weights.layers[0].in_proj
    s = prompts(random_ids(0, 90), random_ids(1, 45))
    expected = hidden(cut(executor, WHOLE, 1), s, np.arange(135))
    assert np.array_equal(hidden(cut(executor, 16, 2), s, np.arange(135)), expected)
    both = executor.decoder._apart[0]
    assert both is not None
    layer.words[:] = 0
    x = np.ones((20, model.config.spec.hidden), np.float32)
    for linear, outputs in zip(both, (72, 48)):
        assert not linear.into(x, np.ones((20, outputs), np.float32)).any()
