"""``max_memory``: a step's memory is measured at load, the rest becomes blocks, and the longest prompt follows."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Embed, Engine, EngineConfig, Loglikelihood
from prelude.cpu.profile import peak_bytes, profile, resident_bytes
from prelude.errors import InsufficientMemory
from prelude.execution import memory_plan
from prelude.execution.memory_plan import MemoryPlan, StepMemory
from prelude.models import memory
from prelude.tools.cli import main
from tests.checkpoints import make_checkpoint
from tests.patience import shown

MB = 1 << 20

pytestmark = pytest.mark.skipif(resident_bytes() is None, reason="the system does not count a process's memory")


def loaded(**limits: object) -> Engine:
    return Engine.from_pretrained(config=EngineConfig().changed(max_running=8, **limits))


def step_of(engine: Engine) -> StepMemory:
    step = engine._core.executor.limits().step_memory
    assert step is not None
    return step


@pytest.mark.feature("G1")
def test_memory_that_a_step_leaves_becomes_blocks() -> None:
    with loaded(max_memory=700 * MB) as engine:
        said, limits = engine.stats()["memory"], engine._core.executor.limits()
        block = limits.kv_bytes_per_token * limits.block_size
        assert said["measured"] and said["kv_bytes"] == limits.num_blocks * block
        rest = 700 * MB - said["weight_bytes"] - said["step_bytes"] - memory_plan.HOST_BYTES
        assert 0 <= rest - said["kv_bytes"] < 64 * MB, "the tokenizer has the difference"
    with loaded(max_memory=600 * MB) as smaller:
        lost = limits.num_blocks - smaller._core.executor.limits().num_blocks
        assert abs(lost * block - 100 * MB) < 24 * MB, "a run differs from the next by some megabytes"


@pytest.mark.feature("G1")
@pytest.mark.fault(53)
def test_a_length_that_does_not_fit_is_refused_with_the_longest_that_does() -> None:
    longest = 8000
    for _ in range(6):  # a run may measure more than the one before; a length that is named in vain fails every time
        try:
            engine = loaded(max_memory=100 * MB, max_length=longest)
        except InsufficientMemory as refused:
            named = int(re.findall(r"the largest max_length that surely fits is (\d+)", str(refused))[0])
            assert 100 < named < longest
            longest = named
        else:
            break
    assert longest < 8000
    with engine:
        assert engine.max_length == longest
        assert engine.run(Loglikelihood([5] * (longest - 20), [6] * 20)).total < 0


@pytest.mark.parametrize("beside", [0, 5])
def test_the_largest_step_is_the_last_one_that_the_room_holds(beside: int) -> None:
    step = StepMemory(fixed=100, per_token=7, readout=50, row_bytes=3, measured=False)
    assert [step.step_bytes(tokens) for tokens in (0, 1, 9)] == [150, 160, 240]
    for room in range(400):
        fit = [tokens for tokens in range(1, 60) if step.step_bytes(tokens) + tokens * beside <= room]
        assert step.most_tokens(room, beside) == max(fit, default=0)


class Noted:
    """An executor of which a test asks what it ran."""

    def __init__(self, lm_head: bool) -> None:
        self.lm_head, self.logits_chunk_rows = lm_head, 64
        self.batches: list[Any] = []

    def limits(self) -> Any:
        return self

    def submit(self, batch: Any) -> Any:
        return self.batches.append(batch)

    def wait(self, handle: None) -> None:
        pass


@pytest.mark.parametrize(
    "longest, lm_head, many", [(8192, True, 2048), (100, True, 100), (1, True, 2), (300, False, 300)]
)
def test_the_profile_runs_the_worst_readout_on_prompts_no_longer_than_the_longest(
    longest: int, lm_head: bool, many: int
) -> None:
    executor: Any = Noted(lm_head)
    shapes = StepMemory(fixed=1000, per_token=10, readout=5000, row_bytes=3, measured=False)
    assert profile(executor, longest, shapes).measured
    ran = [(batch.slices.num_tokens, len(batch.readout.rows)) for batch in executor.batches]
    few = many // 2
    assert set(ran[1:]) == {(few, 1), (many, 1), (few, min(few, 64))} and ran[0][0] <= 16
    worst = executor.batches[-1].readout
    assert worst.rows.tolist() == list(range(few - min(few, 64), few))
    if lm_head:
        assert worst.logits_rows == min(few, 64) and (worst.top, worst.ranks) == (int(few > 1), few > 1)
    else:
        assert worst.indptr.tolist() == [0, 64] and worst.pooling == "mean"


def test_parts_of_a_step_from_three_runs() -> None:
    shapes = StepMemory(fixed=1000, per_token=10, readout=5000, row_bytes=3, measured=False)
    token = memory_plan._HOST_BYTES + 100
    found = memory_plan.from_runs(shapes, (10, 20_000), (30, 22_000), 40_000)  # a tenth, and a megabyte, is added
    fixed = (20_000 - 10 * token) * 11 // 10 + MB
    assert found == StepMemory(fixed, token * 11 // 10, 22_000, 3, measured=True)
    flat = memory_plan.from_runs(shapes, (10, 900), (10, 900), 0)  # runs as noisy as that tell nothing
    assert flat == StepMemory(MB, (memory_plan._HOST_BYTES + 1) * 11 // 10, 5000, 3, measured=True)
    shapes = replace(shapes, fixed=9 * MB, per_token=9000)
    least = memory_plan.from_runs(shapes, (10, 900), (30, 900), 0)
    assert least == StepMemory(9 * MB, 9900, 5000, 3, measured=True)


@pytest.mark.feature("G1")
def test_the_length_that_a_refusal_names_fits_a_step_that_measures_more() -> None:
    with loaded(kv_blocks=8) as engine:
        spec = engine._core.executor.config.spec
    found = StepMemory(fixed=2 * MB, per_token=4_000, readout=16 * MB, row_bytes=45_000, measured=True)
    more = StepMemory(fixed=2 * MB, per_token=4_400, readout=20 * MB, row_bytes=45_000, measured=True)

    def plan(available: int = 1 << 40, **limits: Any) -> MemoryPlan:
        config = EngineConfig(**{"max_running": 8, "max_memory": 100 * MB, **limits})
        return MemoryPlan(config, spec, available, held=4 * MB, host=8 * MB, block_bytes=32_768)

    with pytest.raises(InsufficientMemory) as refused:
        plan(max_length=8000).fitted(found)
    named = int(re.findall(r"the largest max_length that surely fits is (\d+)", str(refused.value))[0])
    assert plan(max_length=named).fitted(more).resolved_length(spec.max_positions) == named
    step = found.step_bytes(plan().step_tokens)
    assert plan(max_memory=1 << 40).is_close(found), "of a budget a step is measured"
    for missing in (0, 1):  # to the byte: a step and one block beside weights, and of a budget beside the tokenizer
        assert plan(4 * MB + 2 * step - missing, max_memory=None).is_close(found) == bool(missing)
        room = step + 32_768 - missing
        for tight in (plan(4 * MB + room, max_memory=None), plan(max_memory=12 * MB + room)):
            assert (tight.fitted(found) is tight.config) == (not missing) and tight.blocks(found) == 1
    assert plan(max_length=8).fitted(found).max_step_tokens == 16, "fewer prompts in a step, of the length asked for"
    with pytest.raises(InsufficientMemory):
        plan(max_length=8, max_step_tokens=8192).fitted(found)
    assert named > 500


@pytest.mark.feature("G1")
def test_without_a_length_the_longest_that_fits_is_taken_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 100 * MB)  # of a small machine; nothing is set
    with caplog.at_level(logging.INFO, "prelude.engine"), loaded() as engine:
        assert 100 < engine.max_length < 8192
        assert f"max_length is lowered from 8192 to {engine.max_length}" in caplog.text
        assert f"prompts of up to {engine.max_length} tokens" in caplog.text
        engine.run(Embed([5] * engine.max_length, pooling="mean"))


def test_a_budget_below_the_weights_is_refused_before_they_are_read() -> None:
    with pytest.raises(InsufficientMemory, match=r"max_memory=1000000\); lower kv_bytes"):
        loaded(max_memory=1_000_000)


@pytest.mark.feature("G2")
def test_the_budget_counts_the_worst_readout() -> None:
    """The most alternatives that a request may ask for shorten the longest prompt."""
    with loaded(max_memory=100 * MB) as most, loaded(max_memory=100 * MB, max_top=1) as least:
        assert step_of(most).row_bytes > 50 * step_of(least).row_bytes
        assert least.max_length > 2 * most.max_length


@pytest.mark.feature("G1")
@pytest.mark.feature("G2")
@pytest.mark.fault(48)
def test_no_mix_of_requests_passes_the_budget() -> None:
    """Longest prompts and the worst logprobs among them; ``python -m tests.memory_mixes --mixes 1000`` is longer."""
    command = [sys.executable, "-m", "tests.memory_mixes", "--mixes", "12", "--megabytes", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["mixes"] == 12 and 100 * MB > found["grown"] > 25 * MB


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLP eight times as wide as the stream, and positions for a long prompt."""
    options = {"hidden_size": 128, "intermediate_size": 2048, "num_hidden_layers": 3, "max_position_embeddings": 8192}
    return make_checkpoint(tmp_path_factory.mktemp("wide"), **options)


@pytest.mark.feature("G8")
def test_a_prompt_in_runs_of_tokens_takes_less_memory_and_gives_the_same_bits(wide: Path) -> None:
    config = EngineConfig(deterministic=True, prefix_cache=False)
    with Engine.from_pretrained(wide, config=config) as engine:
        decoder, ids = engine._core.executor.decoder, [i % 4000 for i in range(6000)]
        found: dict[int, tuple[int, np.ndarray]] = {}
        for chunk in (256, 64, 1 << 20):  # 1 << 20: whole layers
            decoder.token_chunk = chunk
            engine.run(Embed(ids[:300], pooling="last"))
            vectors: list[np.ndarray] = []
            taken = peak_bytes(lambda: vectors.append(np.asarray(engine.run(Embed(ids, pooling="last")))))  # noqa: B023
            found[chunk] = (taken or 0, vectors[0])
        assert (found[256][1] == found[1 << 20][1]).all() and (found[64][1] == found[256][1]).all()
        whole = 6000 * 2 * 2048 * 4  # bytes of the MLP's activations of all tokens
        assert found[1 << 20][0] - found[256][0] > whole * 3 // 4


@pytest.mark.feature("G9")
def test_a_prompt_of_which_nothing_is_kept_has_keys_and_values_of_one_layer(wide: Path) -> None:
    with Engine.from_pretrained(wide, config=EngineConfig(deterministic=True)) as engine:
        ids = [i % 4000 for i in range(6000)]
        engine.run(Embed(ids[:300], pooling="last", cache="never"))
        executor, before = engine._core.executor, engine.stats()["blocks_free"]
        engine.run(Embed(ids, pooling="last", cache="never"))
        assert engine.stats()["blocks_free"] == before and not executor.pool.tensor[:, :, 512:].any()
        spec, limits = executor.config.spec, executor.limits()
        all_layers = 6000 * limits.kv_bytes_per_token
        bound = StepMemory.of_shapes(spec, 4, limits.logits_chunk_rows, 0)
        # The allocators and the threads of a loaded machine add to a peak: 12.5 to 15.2 MB were measured here.
        most = bound.fixed + 6000 * bound.per_token + 4 * MB
        ask = partial(engine.run, Embed(ids, pooling="last", cache="never"))
        assert shown(lambda: (peak_bytes(ask) or 0) < most, tries=12)
        alone = np.asarray(engine.run(Embed(ids, pooling="last", cache="never")))
        kept = np.asarray(engine.run(Embed(ids, pooling="last")))
        assert (alone == kept).all() and engine.stats()["memory"]["kv_used_bytes"] >= all_layers * 9 // 10


@pytest.mark.feature("G11")
def test_where_the_memory_goes_is_said_before_and_after_loading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--max-memory", str(60 * MB), "--max-top", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("default_model: Qwen3ForCausalLM, ")
    assert [line.split()[0] for line in lines[-3:]] == ["512", "2,048", "8,192"]
    assert lines[-1].split()[-1] in ("all", "pass", "no") and lines[-3].split()[-1] == "all"
    assert main(["memory", "--max-memory", str(60 * MB)]) == 0
    assert capsys.readouterr().out.splitlines() != lines, "more alternatives take more memory"
    with loaded() as engine:
        said = engine.stats()["memory"]
        assert said["kv_used_bytes"] == 0 and not said["measured"]
        engine.complete([5] * 100)
        assert 0 < engine.stats()["memory"]["kv_used_bytes"] < said["kv_bytes"]
        weights = next(line for line in lines if line.strip().startswith("weights"))
        assert abs(said["weight_bytes"] / MB - float(weights.split()[1])) < 1
