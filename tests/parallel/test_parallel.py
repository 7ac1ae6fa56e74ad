"""A model on two and on four real processes: its numbers, its bits, its refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prelude import ConfigError, Engine, EngineConfig, UnsupportedModel, serve_rank
from tests.checkpoints import TINY, make_checkpoint, write_checkpoint
from tests.parallel import uses
from tests.parallel.world import World

pytest.importorskip("torch.distributed")

LIMITS: dict[str, Any] = {"kv_blocks": 64, "max_running": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {}, "qwen2": {"tie_word_embeddings": False}, "phi3": {},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 20.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return make_checkpoint(folder / "qwen3", scale=0.1)


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[World]:
    world = World(2, folder / "two")
    yield world
    world.close()


@pytest.fixture(scope="module")
def four(folder: Path) -> Iterator[World]:
    world = World(4, folder / "four")
    yield world
    world.close()


def alone(model: Path, use: Any, load: dict[str, Any] | None = None, **config: Any) -> Any:
    with Engine.from_pretrained(
        model, config=EngineConfig().changed(**{**LIMITS, **config}), **(load or {})
    ) as engine:
        return use(engine)


def close(found: Any, wanted: Any, within: float = 1e-5) -> None:
    """Equal, and floats within ``within``."""
    assert type(found) is type(wanted) or isinstance(wanted, float)
    if isinstance(wanted, float):
        assert abs(found - wanted) <= within, (found, wanted)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            if key == "ranks":  # among thousands of logits some are as close as two roundings
                assert all(one == other or abs(one - other) <= 2 for one, other in zip(found[key], wanted[key]))
            else:
                close(found[key], wanted[key], within)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            close(one, other, within)
    else:
        assert found == wanted


@pytest.mark.feature("H11")
@pytest.mark.feature("H12")
@pytest.mark.feature("Q15")
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_have_the_numbers_of_one_process(folder: Path, model: Path, two: World, family: str) -> None:
    path = (
        model if family == "qwen3" else make_checkpoint(folder / family, family=family, scale=0.1, **FAMILIES[family])
    )
    found = two.answers(path, uses.numbers, **LIMITS)
    close(found, alone(path, uses.numbers))
    assert found["cached"] > 0


@pytest.mark.feature("H11")
@pytest.mark.parametrize("overlap", [False, True])
def test_four_ranks_share_two_key_value_heads(model: Path, four: World, overlap: bool) -> None:
    found = four.answers(model, uses.numbers, overlap=overlap, **LIMITS)
    close(found, alone(model, uses.numbers))


@pytest.mark.feature("H11")
def test_weights_of_bfloat16_and_int8(folder: Path, two: World) -> None:
    path = make_checkpoint(folder / "halves", scale=0.1, dtype="bfloat16", head_dim=32, intermediate_size=128)
    close(two.answers(path, uses.numbers, **LIMITS), alone(path, uses.numbers))
    found = two.answers(path, uses.numbers, quantization="int8", **LIMITS)
    wanted = alone(path, uses.numbers, quantization="int8")
    # Weights have the same 8 bits. An input that lies between two steps of int8 may be rounded the other way.
    for name in ("likely", "vector", "prompt"):
        close(found[name], wanted[name], within=5e-3)


@pytest.mark.feature("H11")
@pytest.mark.parametrize("size", [2, 4])
def test_deterministic_mode_has_the_same_bits_in_any_company(model: Path, two: World, four: World, size: int) -> None:
    found = (two if size == 2 else four).answers(model, uses.bits, deterministic=True, **LIMITS)
    assert found["alone"] == found["together"] == found["cached"]
    assert all(found["texts"]) and found["hits"] > 0


@pytest.mark.feature("H11")
def test_a_rank_has_its_part_of_the_weights_and_of_the_pool(model: Path, two: World) -> None:
    limits = {"kv_bytes": 1 << 20, "max_running": 8}
    part, tokens = two.answers(model, uses.own_bytes, **limits)
    whole, fewer = alone(model, uses.own_bytes, kv_blocks=None, kv_bytes=1 << 20)
    assert 0.5 <= part / whole < 0.52 and tokens == 2 * fewer


@pytest.mark.feature("Q15")
def test_ranks_that_load_otherwise_are_refused_on_both_sides(folder: Path, model: Path, two: World) -> None:
    own = {"tensor_parallel": 2, **LIMITS}
    found = two.run(model, uses.numbers, [own, {**own, "deterministic": True}])
    assert [one.kind for one in found] == ["ConfigError"] * 2
    assert all("deterministic is False on rank 0 and True on rank 1" in one.said for one in found)
    other = make_checkpoint(folder / "other", scale=0.1, seed=1)
    two.pipes[0].send((str(model), uses.numbers, own, {}))
    two.pipes[1].send((str(other), uses.numbers, own, {}))
    found = [two.end(0), two.end(1)]
    assert [one.kind for one in found] == ["ConfigError"] * 2 and "checksum of the model" in found[0].said


@pytest.mark.feature("Q15")
def test_a_rank_that_fails_while_loading_ends_the_others(folder: Path, model: Path, two: World) -> None:
    broken = make_checkpoint(folder / "broken", scale=0.1)
    (broken / "model.safetensors").unlink()
    config = {"tensor_parallel": 2, **LIMITS}
    two.pipes[0].send((str(model), uses.numbers, config, {}))
    two.pipes[1].send((str(broken), uses.numbers, config, {}))
    found = [two.end(0), two.end(1)]
    assert [one.kind for one in found] == ["RankLost", "ModelError"] or found[1].kind == "CheckpointError"
    assert found[0].kind == "RankLost"


def test_an_indivisible_model_is_refused_before_any_other_process_is_asked(folder: Path, model: Path) -> None:
    def refusal(path: Path = model, kind: type[Exception] = ConfigError, **config: Any) -> str:
        with pytest.raises(kind) as refused:
            Engine.from_pretrained(path, config=EngineConfig().changed(**config))
        with pytest.raises(kind) as other:
            serve_rank(path, config=EngineConfig().changed(**config))
        assert str(refused.value) == str(other.value)
        return str(refused.value)

    assert "tensor_parallel=3: the model has 4 query heads" in refusal(tensor_parallel=3)
    assert "takes 1, 2 or 4" in refusal(tensor_parallel=3)
    assert "tensor_parallel=2: this process is not one of 2: start the program with torchrun" in refusal(
        tensor_parallel=2
    )
    assert "a rank's 48 of intermediate_size=96" in refusal(tensor_parallel=2, quantization="int8")
    recurrent = write_checkpoint(folder / "lfm2", {**TINY, "layer_types": ["conv", "full_attention"]}, family="lfm2")
    assert "layers with a state" in refusal(recurrent, UnsupportedModel, tensor_parallel=2)
    with pytest.raises(ConfigError, match="tensor_parallel"):
        EngineConfig(tensor_parallel=0)
    with pytest.raises(ConfigError, match="2 or more"):
        serve_rank(model, config=EngineConfig())
    for wrong, said in (({"device": "abacus"}, "device='abacus'"), ({"dtype": "int1"}, "dtype='int1'")):
        with pytest.raises(ConfigError, match=said):
            serve_rank(model, config=EngineConfig().changed(tensor_parallel=2), **wrong)


@pytest.mark.long
@pytest.mark.feature("H12")
def test_a_program_under_torchrun(folder: Path, model: Path) -> None:
    program = folder / "program.py"
    program.write_text(
        "import os, sys\n"
        "from prelude import Engine, EngineConfig, Generate, SamplingParams, serve_rank\n"
        "load = {'config': EngineConfig(tensor_parallel=2).changed(kv_blocks=64)}\n"
        "if int(os.environ['RANK']):\n"
        "    print('served', serve_rank(sys.argv[1], **load))\n"
        "else:\n"
        "    engine = Engine.from_pretrained(sys.argv[1], **load)\n"  # not closed: the others end with the program
        "    text = engine.run(Generate([1, 2, 3], SamplingParams(max_tokens=4, temperature=0)))\n"
        "    print('wrote', list(text.token_ids))\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "one"]
    command += ["--local-addr", "127.0.0.1"]  # else the host's full name is looked up
    here = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ran = subprocess.run(
        [*command, str(program), str(model)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    from prelude import Generate, SamplingParams

    params = SamplingParams(max_tokens=4, temperature=0)
    wanted = alone(model, lambda engine: list(engine.run(Generate([1, 2, 3], params)).token_ids))
    assert f"wrote {wanted}" in ran.stdout and "served " in ran.stdout
