"""The decoder's parts, each against its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from prelude.batch import OneShotBatch
from prelude.models.ops import Bits, Linear, RotaryTable, rms_norm, rotate_, silu_gate
from prelude.models.weights import interleave
from tests.checkpoints import save_model
from tests.execution.helpers import Model, all_logprobs, hidden, prompts, random_ids, run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("decoder")
    return Model(save_model(path))


def test_rms_norm() -> None:
    x, gain = torch.randn(5, 24), torch.randn(24)
    expected = torch.nn.functional.rms_norm(x, (24,), gain, 1e-6)
    assert torch.allclose(rms_norm(x, 1e-6, gain, torch.float32), expected, atol=1e-6)
    assert rms_norm(torch.zeros(1, 24), 1e-6, None, torch.bfloat16).eq(0).all()


@pytest.mark.parametrize("bits", [Bits(), Bits(fixed=True)])
def test_rotation_of_interleaved_halves(bits: Bits) -> None:
    """Interleaved rotation, with the rows put back, is the half-split rotation of the plain layout."""
    heads, width, positions = 3, 8, torch.tensor([0, 5, 1023, 1024, 2000])
    frequencies = 1.0 / 100 ** (torch.arange(0, width, 2) / width)
    plain = torch.randn(5, heads, width)
    angles = torch.cat([positions[:, None] * frequencies] * 2, dim=-1)[:, None]
    a, b = plain.chunk(2, dim=-1)
    expected = plain * angles.cos() + torch.cat([-b, a], dim=-1) * angles.sin()
    mixed = torch.stack([interleave(row.reshape(-1, 1), width).view(heads, width) for row in plain])
    table = RotaryTable(frequencies, 1.0, 2048)
    rotate_(mixed, table(positions, 2000), bits)
    back = torch.cat([mixed[..., 0::2], mixed[..., 1::2]], dim=-1)
    assert torch.allclose(back, expected, atol=1e-5)


def test_a_position_has_the_same_turn_whenever_it_is_met() -> None:
    frequencies = torch.rand(16)
    late, early = RotaryTable(frequencies, 1.0, 5000), RotaryTable(frequencies, 1.0, 5000)
    late(torch.tensor([0]), 0)
    at = torch.tensor([3, 4001])
    assert torch.equal(late(at, 4001), early(at, 4001))
    with pytest.raises(IndexError, match="position 5000"):
        early(torch.tensor([5000]), 5000)


def test_silu_gate_of_extremes() -> None:
    gate_up = torch.tensor([[1e4, -1e4, 0.0, 3.0, 2.0, 2.0, 2.0, 2.0]])
    out = silu_gate(gate_up, 4, Bits())
    assert torch.allclose(out, torch.tensor([[2e4, 0.0, 0.0, 6 / (1 + float(np.exp(-3)))]]))


def test_linear_adds_in_place_also_when_padded() -> None:
    linear = Linear(torch.randn(6, 4), torch.randn(6))
    x, start = torch.randn(3, 4), torch.randn(3, 6)
    expected = start + x @ linear.weight.t() + linear.bias
    for least in (1, 16):
        linear.bits = Bits(fixed=True, min_rows=least)
        residual = start.clone()
        linear.add_to(residual, x)
        assert torch.allclose(residual, expected, atol=1e-5)
        assert torch.allclose(linear(x), expected - start, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_of_tokens_change_nothing(model: Model, dtype: str) -> None:
    """Linear layers over runs of 16, 64 or all tokens, the last run short: the same bits in deterministic mode."""
    executor = model.executor(deterministic=True, dtype=dtype)
    s, rows = prompts(random_ids(0, 90), random_ids(1, 45)), np.arange(135)
    whole = hidden(executor, s, rows)
    for executor.decoder.token_chunk in (16, 64, 130):
        assert np.array_equal(hidden(executor, s, rows), whole)


def test_the_last_layer_sees_only_rows_that_are_read(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = model.executor()
    seen: list[int] = []
    finish = executor.decoder._finish

    def counting(layer: object, x: torch.Tensor, attended: torch.Tensor) -> None:
        seen.append(len(x))
        finish(layer, x, attended)  # type: ignore[arg-type]

    monkeypatch.setattr(executor.decoder, "_finish", counting)
    run(executor, OneShotBatch(prompts(random_ids(0, 50)), all_logprobs(np.array([20, 49]))))
    assert seen == [50, 50, 2]


def test_weights_do_not_follow_their_files(tmp_path: Path) -> None:
    copied = Model(save_model(tmp_path))
    executor = copied.executor(deterministic=True)
    before = hidden(executor, prompts(random_ids(0, 9)), [8])
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(bytes(file.stat().st_size))
    assert np.array_equal(hidden(executor, prompts(random_ids(0, 9)), [8]), before)
