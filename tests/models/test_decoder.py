"""The decoder's parts, each against its definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prelude._native import cpu

from prelude.models.ops import RotaryTable
from prelude.models.read_weights import interleave
from prelude.models.spec import Rope
from tests.checkpoints import save_model
from tests.execution.helpers import Model, hidden, prompts, random_ids
from tests.tensors import array_of, on_tensors, torch_of

activate, layer_norm, rms_norm, rotate, write_pool = map(
    on_tensors, (cpu.activate, cpu.layer_norm, cpu.rms_norm, cpu.rotate, cpu.write_pool)
)


def half(x: torch.Tensor) -> torch.Tensor:
    """Room for the values of ``x`` in bfloat16."""
    return torch.empty(x.shape, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("decoder")
    return Model(save_model(path))


def test_rms_norm() -> None:
    x, gain = torch.randn(5, 24), torch.randn(24)
    expected = torch.nn.functional.rms_norm(x, (24,), gain, 1e-6)
    assert torch.allclose(rms_norm(x, 1e-6, gain), expected, atol=1e-6)
    assert torch.equal(rms_norm(x, 1e-6, gain, half(x)), rms_norm(x, 1e-6, gain).bfloat16())
    assert rms_norm(torch.zeros(1, 24), 1e-6, None, half(x[:1])).eq(0).all()
    room = torch.full((7, 24), 5.0)
    assert rms_norm(x, 1e-6, gain, room).data_ptr() == room.data_ptr() and room[5:].eq(5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [False, True])
def test_rotation_of_interleaved_halves(dtype: torch.dtype, normed: bool) -> None:
    """Interleaved rotation with the rows put back is the half-split rotation of the plain layout after the norm."""
    heads, width, positions = 3, 8, torch.tensor([0, 5, 1023, 1024, 2000])
    frequencies = 1.0 / 100 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    plain = torch.randn(5, heads, width).to(dtype)
    gain = torch.rand(heads, width)
    angles = torch.cat([positions[:, None] * frequencies] * 2, dim=-1)[:, None]
    x = plain.float()
    if normed:
        x = torch.nn.functional.rms_norm(x, (width,), None, 1e-6) * gain
    a, b = x.chunk(2, dim=-1)
    expected = (x * angles.cos() + torch.cat([-b, a], dim=-1) * angles.sin()).float()

    def mix(rows: torch.Tensor) -> torch.Tensor:
        mixed = [torch_of(interleave(array_of(row.reshape(-1, 1)), width, width)) for row in rows]
        return torch.stack(mixed).view(len(rows), heads, width)

    wide = torch.zeros(5, heads + 2, width, dtype=dtype)  # heads of others stand beside them
    wide[:, :heads] = mix(plain)
    table = torch_of(RotaryTable(Rope(100.0, width), 2048, width // 2).upto(2000))
    rotate(wide[:, :heads], mix(gain[None])[0] if normed else None, 1e-6, table, positions)
    back = torch.cat([wide[:, :heads, 0::2], wide[:, :heads, 1::2]], dim=-1).float()
    assert torch.allclose(back, expected, atol=1e-5 if dtype == torch.float32 else 2e-2)
    assert wide[:, heads:].eq(0).all()


def test_a_position_has_the_same_turn_whenever_it_is_met() -> None:
    late, early = (RotaryTable(Rope(1e4, 32), 5000, 16) for _ in range(2))
    late.upto(0)
    at = [3, 4001]
    assert np.array_equal(late.upto(4001)[at], early.upto(4001)[at])
    with pytest.raises(IndexError, match="position 5000"):
        early.upto(5000)


def test_gated_silu_of_extremes() -> None:
    inf, nan = float("inf"), float("nan")
    gate_up = torch.tensor([[1e4, -1e4, 0.0, 3.0, inf, -1e38, nan, 2.0] + [2.0] * 7 + [nan]])
    out = activate(gate_up, 8, "silu", True)[0]
    assert torch.allclose(out[:6], torch.tensor([2e4, 0.0, 0.0, 6 / (1 + float(np.exp(-3))), inf, 0.0]))
    assert out[6:].isnan().all()


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "relu": torch.nn.functional.relu,
}  # fmt: skip


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", list(ACTIVATIONS))
def test_activations(kind: Any, gated: bool) -> None:
    """Against float64, at every size of a value; tails of a row as its whole vectors."""
    inner = 2003
    x = torch.stack([torch.linspace(-limit, limit, inner) for limit in (30, 1, 1e-3)])
    factor = torch.randn(3, inner)
    expected = ACTIVATIONS[kind](x.double()) * (factor.double() if gated else 1.0)
    rows = torch.cat([x, factor], dim=1) if gated else x.clone()
    rounded = rows.bfloat16()
    found = activate(rows, inner, kind, gated).double()
    scale = (factor.abs() if gated else 1.0) * x.abs().clamp(min=1e-3)
    assert ((found - expected).abs() <= 4e-7 * scale.double()).all()
    assert torch.allclose(activate(rounded, inner, kind, gated).double(), expected, rtol=5e-2, atol=3e-2)
    again = torch.cat([x, factor], dim=1) if gated else x.clone()
    assert torch.equal(activate(again[1:2].clone(), inner, kind, gated), found[1:2].float())


@pytest.mark.parametrize("width", [1, 7, 24, 384, 771])
@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(width: int, biased: bool) -> None:
    x = 3.0 + torch.randn(5, width)
    gain, bias = torch.randn(width), torch.randn(width) if biased else None
    expected = torch.nn.functional.layer_norm(x, (width,), gain, bias, 1e-5)
    found = layer_norm(x, 1e-5, gain, bias)
    assert torch.allclose(found, expected, atol=2e-6)
    assert torch.equal(layer_norm(x, 1e-5, gain, bias, half(x)), found.bfloat16())
    assert torch.equal(layer_norm(x[3:4].clone(), 1e-5, gain, bias), found[3:4])
    assert layer_norm(x, 1e-5, gain, bias, x) is not None and torch.equal(x, found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_of_tokens_change_nothing(model: Model, dtype: str) -> None:
    """Projections over runs of 16, 64 or all tokens, the last run short: the same bits in deterministic mode."""
    executor = model.executor(deterministic=True, dtype=dtype)
    s, rows = prompts(random_ids(0, 90), random_ids(1, 45)), np.arange(135)
    whole = hidden(executor, s, rows)
    for executor.decoder.token_chunk in (16, 64, 130):
        assert np.array_equal(hidden(executor, s, rows), whole)
    executor.decoder.token_chunk = 64  # runs of 45 tokens, then one of 60 rows in the last layer
    assert np.array_equal(hidden(executor, s, rows[20:80]), whole[20:80])


def test_weights_do_not_follow_their_files(tmp_path: Path) -> None:
    copied = Model(save_model(tmp_path))
    executor = copied.executor(deterministic=True)
    before = hidden(executor, prompts(random_ids(0, 9)), [8])
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(bytes(file.stat().st_size))
    assert np.array_equal(hidden(executor, prompts(random_ids(0, 9)), [8]), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_go_to_their_slots_and_nowhere_else(dtype: torch.dtype) -> None:
    heads = torch.randn(300, 8, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    k, v = heads[:, 4:6], heads[:, 6:]
    pool = torch.full((2, 900, 2, 16), 5.0, dtype=dtype)
    expected = pool.clone()
    slots, tokens = torch.randperm(900)[:200], torch.randperm(300)[:200]
    expected[0, slots], expected[1, slots] = k[tokens], v[tokens]
    write_pool(k, v, pool[0], pool[1], slots, tokens)
    assert torch.equal(pool, expected)
    slots = torch.arange(300, 600)
    expected[0, slots], expected[1, slots] = k, v
    write_pool(k, v, pool[0], pool[1], slots, None)
    assert torch.equal(pool, expected)


def test_rows_are_added_one_after_the_other_to_sums_of_their_width() -> None:
    rows = np.random.default_rng(2).standard_normal((40, 12)).astype(np.float32)[::2, :10]
    totals = np.ones(10)
    wanted = totals.copy()
    for row in rows:
        wanted += row
    cpu.add_rows(rows, totals)
    assert np.array_equal(totals, wanted)
    for wrong in (np.zeros(9), np.zeros(10, np.float32), np.zeros((1, 10)), np.zeros(20)[::2]):
        with pytest.raises(ValueError, match="sums of float32"):
            cpu.add_rows(rows, wrong)
