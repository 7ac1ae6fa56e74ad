"""Packed projections: int8 against integers, float32 and weights of bfloat16 against float64, and the same bits on
every machine, in any company, at any threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from prelude._native import cpu

from prelude import Engine
from prelude.errors import DeviceUnavailable
from prelude.models.arrays import Packing
from prelude.models.gguf.blocks import Blocks
from prelude.models.packed import Arena, PackedLinear
from tests.tensors import on_tensors
from tests.threads import use_threads

ROWS, INPUTS, OUTPUTS = 29, 90, 200
BLOCK = cpu.INT8_BLOCK
SAME_BITS: tuple[Packing, ...] = ("int8", "float32", "widened", "float16")
"""Packings whose products have the same bits on every machine."""
linear_of = on_tensors(PackedLinear)
SHAPES = [(1, 1, 1), (7, 48, 33), (81, 192, 576), (256, 100, 40)]


def given(rows: int, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + inputs + outputs)
    x, weight, bias = (
        torch.randn(*shape, generator=generator) for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    return x, weight, bias


def stored(weight: torch.Tensor, packing: Packing) -> torch.Tensor:
    return weight.to({"widened": torch.bfloat16, "float16": torch.float16}.get(packing, torch.float32))


def blocks(x: torch.Tensor) -> np.ndarray:
    """Rows as [rows, blocks, 32]; the last block is filled up with zeros."""
    rows, inputs = x.shape
    return np.pad(x.numpy(), ((0, 0), (0, -inputs % BLOCK))).reshape(rows, -1, BLOCK)


def of_row(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The integers of the blocks of rows, and the scale of each block."""
    values = blocks(x)
    most = np.abs(values).max(axis=2, keepdims=True)
    by = (np.float32(127) / most).astype(np.float64)
    return np.rint(values.astype(np.float64) * by).astype(np.int64), most[..., 0] / np.float32(127)


def of_weight(weight: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    values = blocks(weight)
    scale = (np.abs(values).max(axis=2) / np.float32(127)).astype(np.float16).astype(np.float32)
    return np.clip(np.rint(values / scale[..., None]), -127, 127).astype(np.int64), scale


def product(x: torch.Tensor, weight: torch.Tensor) -> np.ndarray:
    """[rows, outputs] by the definition: exact sums of blocks, which are added in float32, each rounded once."""
    (a, a_scale), (w, w_scale) = of_row(x), of_weight(weight)
    total = np.zeros((len(x), len(weight)), np.float32)
    for block in range(a.shape[1]):
        scaled = (a[:, block] @ w[:, block].T).astype(np.float32) * w_scale[:, block]
        total = (scaled.astype(np.float64) * a_scale[:, block, None] + total).astype(np.float32)
    return total


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_is_the_integer_product(shape: tuple[int, int, int]) -> None:
    x, weight, bias = given(*shape)
    wanted = product(x, weight)
    linear = linear_of(weight, bias)
    assert np.array_equal(linear(x).numpy(), wanted + bias.numpy())
    residual = torch.ones(len(x), len(weight))
    linear.add_to(residual, x)
    assert np.array_equal(residual.numpy(), wanted + (1 + bias.numpy()))
    w, w_scale = of_weight(weight)
    values = (w * w_scale[..., None]).astype(np.float32).reshape(len(weight), -1)
    assert np.array_equal(linear.gather(torch.arange(len(weight))).numpy(), values[:, : weight.shape[1]])
    pairs = torch.arange(len(x)) % len(weight)
    plain = linear_of(weight)
    assert torch.equal(plain.of_pairs(x, pairs), plain(x)[torch.arange(len(x)), pairs].double())


def test_rows_of_q8_keep_their_values() -> None:
    """float16 and int8 as they lie in a file, -128 and the smallest scales among them."""
    generator = np.random.default_rng(5)
    rows, width = 70, 96
    scales = np.abs(generator.standard_normal((rows, width // BLOCK))).astype(np.float16)
    scales[3] = [6e-8, 0, 65504]
    integers = generator.integers(-128, 128, (rows, width // BLOCK, BLOCK), np.int8)
    packed = np.concatenate([scales.view(np.uint8).reshape(rows, -1, 2), integers.view(np.uint8)], axis=2)
    linear = linear_of.of_blocks([Blocks("Q8_0", (rows, width), packed.reshape(rows, -1))])
    wanted = (scales.astype(np.float32)[..., None] * integers).reshape(rows, width)
    assert np.array_equal(linear.gather(torch.arange(rows)).numpy(), wanted)
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(1))
    assert np.allclose(
        linear(x).numpy(), x.numpy() @ wanted.T, rtol=0.02, atol=0.02 * np.abs(x.numpy() @ wanted.T).max()
    )
    with pytest.raises(ValueError, match="whole blocks"):
        PackedLinear.of_blocks([Blocks("Q8_0", (2, 33), np.zeros((2, 35), np.uint8))])


def test_weights_beyond_float16_are_not_packed() -> None:
    for size, fits in ((0.0, True), (1e-4, False), (1e-3, True), (8e6, True), (9e6, False)):
        assert PackedLinear.fits([np.full((2, 3), -size, np.float32), np.zeros((1, 3), np.float32)]) is fits


@pytest.mark.parametrize("packing", ["float32", "widened", "float16"])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 3072, 65), (81, 3000, 33)])
def test_rows_of_float32_meet_weights_of_each_type(shape: tuple[int, int, int], packing: Packing) -> None:
    x, weight, bias = given(*shape)
    kept = stored(weight, packing)
    linear = linear_of(kept, bias, packing)
    wanted = x.double() @ kept.double().t() + bias
    size = x.double().abs() @ kept.double().abs().t() + bias.abs()  # of the terms of each sum
    assert ((linear(x) - wanted).abs() <= 5e-7 * size).all()
    residual = torch.ones(len(x), len(weight))
    linear.add_to(residual, x)
    assert ((residual - 1 - wanted).abs() <= 5e-7 * (size + 1)).all()
    assert torch.equal(linear.gather(torch.arange(len(weight))), kept.float())
    pairs = torch.arange(len(x)) % len(weight)
    found = linear_of(kept, None, packing).of_pairs(x, pairs)
    assert torch.allclose(found, (wanted - bias)[torch.arange(len(x)), pairs], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(81, 193, 577), (3, 5, 70)])
def test_float16_has_the_bits_of_float32(shape: tuple[int, int, int]) -> None:
    """The smallest and the largest values among them, and a weight that is packed in parts."""
    x, weight, bias = given(*shape)
    half = weight.half()
    half[0, :4] = torch.tensor([6e-8, -6e-5, 65504, -0.0])
    linear, wide = linear_of(half, bias, "float16"), linear_of(half.float(), bias, "float32")
    assert torch.equal(linear(x), wide(x)) and torch.equal(linear(x[:1]), wide(x[:1]))
    assert torch.equal(linear.gather(torch.arange(len(half))), half.float())
    parts = [half.numpy()[:13], half.numpy()[13:32], half.numpy()[32:]]
    made = PackedLinear.of_parts(parts, len(half), half.shape[1], None, "float16", Arena())
    assert np.array_equal(made.words, PackedLinear(half.numpy(), None, "float16").words)
    for wrong, packing, told in ((half.float(), "float16", "float16"), (half, "float32", "bfloat16 or float32")):
        with pytest.raises(ValueError, match=f"{told} side by side"):
            linear_of(wrong, None, packing)


@pytest.mark.parametrize("packing", [name for name in cpu.PACKED_KERNELS if name not in ("q4_k", "q6_k")])
def test_a_row_has_its_bits_in_any_company(packing: Packing) -> None:
    x, weight, bias = given(ROWS, INPUTS, OUTPUTS)
    linear = linear_of(stored(weight, packing), bias, packing)
    whole = linear(x)
    for few in (1, 2, 6, 7, 12, 13):
        assert torch.equal(linear(x[5 : 5 + few].clone()), whole[5 : 5 + few])
    before = use_threads(1)
    try:
        for threads in (1, 2, 3):
            use_threads(threads)
            assert torch.equal(linear(x), whole)
    finally:
        use_threads(before)


@pytest.mark.parametrize("packing", ["float32", "int8"])
def test_the_first_product_of_a_thread_has_many_rows(packing: Packing) -> None:
    x, weight, bias = given(3000, 512, 40)
    linear = linear_of(weight, bias, packing)
    before = use_threads(1)
    with ThreadPoolExecutor(1) as new:
        found = new.submit(linear, x).result()
    use_threads(before)
    assert torch.equal(found[:7], linear(x[:7]))


@pytest.mark.parametrize("packing", SAME_BITS)
def test_some_outputs_of_a_weight(packing: Packing) -> None:
    x, weight, bias = given(ROWS, INPUTS, OUTPUTS)
    linear = linear_of(stored(weight, packing), bias, packing)
    whole = linear(x)
    for start, stop in ((0, 7), (32, 200), (64, 65)):
        assert torch.equal(linear.rows(start, stop)(x), whole[:, start:stop])
    with pytest.raises(ValueError, match="begins within a group of 32 outputs"):
        linear.rows(33, 90)


@pytest.mark.parametrize("packing", SAME_BITS)
def test_bfloat16_goes_in_and_comes_out(packing: Packing) -> None:
    x, weight, bias = given(ROWS, INPUTS, OUTPUTS)
    linear = linear_of(stored(weight, packing), bias, packing)
    half = x.to(torch.bfloat16)
    found = linear.into(half, torch.empty(ROWS, OUTPUTS, dtype=torch.bfloat16))
    assert torch.equal(found, linear(half.float()).to(torch.bfloat16))


def test_a_value_that_is_not_finite_stays_in_its_row() -> None:
    x, weight, _ = given(ROWS, INPUTS, OUTPUTS)
    linear = linear_of(weight)
    whole = linear(x)
    x[3, 4], x[5, 6] = float("nan"), float("-inf")
    found = linear(x)
    bad = found.isnan().all(dim=1)
    assert bad.nonzero().flatten().tolist() == [3, 5]
    assert torch.equal(found[~bad], whole[~bad])


def digest(packing: Packing) -> str:
    """Of the products of all shapes, with the kernels of this process."""
    found = hashlib.sha256()
    for shape in SHAPES:
        x, weight, bias = given(*shape)
        found.update(linear_of(stored(weight, packing), bias, packing)(x).numpy().tobytes())
    return found.hexdigest()


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["portable", "avx2", "avx512", "neon"])
def test_every_instruction_set_gives_the_same_bits(kernels: str) -> None:
    code = "from tests.models import test_packed as t; from prelude._native import cpu; "
    code += "print(*map(cpu.PACKED_KERNELS.get, t.SAME_BITS), *map(t.digest, t.SAME_BITS))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PRELUDE_CPU_KERNELS": kernels},
        capture_output=True,
        text=True,
        check=True,
    )
    found = ran.stdout.split()
    names, digests = found[: len(SAME_BITS)], found[len(SAME_BITS) :]
    if names[0] != kernels:
        pytest.skip(f"this machine has no {kernels} kernels")
    assert names == [kernels] * len(SAME_BITS) and digests == list(map(digest, SAME_BITS))


def test_a_processor_without_vectors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products in plain C++ are taken only when they are asked for by name."""
    monkeypatch.setitem(cpu.PACKED_KERNELS, "float32", "portable")
    monkeypatch.delenv("PRELUDE_CPU_KERNELS", raising=False)
    with pytest.raises(DeviceUnavailable, match=r"need AVX2, FMA and F16C, or NEON"):
        Engine.from_pretrained(None)
    monkeypatch.setenv("PRELUDE_CPU_KERNELS", "portable")
    Engine.from_pretrained(None).close()
