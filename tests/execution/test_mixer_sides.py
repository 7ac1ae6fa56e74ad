"""A layer's two sides of its mixer: one native call gives the bits of the operations one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prelude._native import cpu

from prelude.cpu.executor import CpuExecutor
from prelude.models.arrays import Array
from prelude.models.packed import PackedLinear
from tests.checkpoints import save_model
from tests.encoders import CLASSES, Encoder, write_encoder
from tests.execution.conftest import RECURRENT, VARIANTS
from tests.execution.helpers import Model, hidden, i32, prompts, random_ids
from tests.tensors import array_of, on_tensors
from tests.threads import use_threads

DECODERS = {**VARIANTS, **RECURRENT}


def bits(executor: CpuExecutor, ids: list[Any]) -> bytes:
    return hidden(executor, prompts(*ids), np.arange(sum(map(len, ids)))).tobytes()


def take_apart(executor: CpuExecutor) -> int:
    """From now on a pass runs the operations one by one; the number of native calls that it made before."""
    decoder = executor.decoder
    sides = [*(side for layer in decoder.before for side in layer), *decoder.behind]
    native = sum(side.native is not None for side in sides)
    for side in sides:
        side.native = None
    return native


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("variant", sorted(DECODERS))
def test_of_decoders(variant: str, quantization: str | None, tmp_path: Path) -> None:
    model = Model(save_model(tmp_path, **DECODERS[variant]))
    executor = model.executor(quantization=quantization)
    ids = [random_ids(n, n) for n in (1, 17, 230)]
    together = bits(executor, ids)
    assert take_apart(executor) >= len(executor.weights.layers)
    assert bits(executor, ids) == together


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(CLASSES))
def test_of_encoders(family: str, dtype: str, tmp_path: Path) -> None:
    executor = Encoder(write_encoder(tmp_path, family=family)).executor(dtype=dtype)
    ids = [i32(5 + random_ids(n, n, 200)) for n in (1, 17, 90, 120, 130)]
    together = bits(executor, ids)
    native = take_apart(executor)
    assert native >= len(executor.weights.layers) or dtype == "bfloat16"  # some processors have no such products
    assert bits(executor, ids) == together


@pytest.mark.parametrize("variant", ["plain", "gemma2"])
def test_several_threads_do_not_change_bits(variant: str, tmp_path: Path) -> None:
    executor = Model(save_model(tmp_path, **VARIANTS[variant])).executor()
    ids = [random_ids(n, n) for n in (1, 17, 230)]
    threads, found = use_threads(1), set()
    try:
        for count in (1, 2, 3):
            use_threads(count)
            found.add(bits(executor, ids))
    finally:
        use_threads(threads)
    assert len(found) == 1


class Given:
    """A projection that notes the memory it writes to."""

    def __init__(self, of: Any) -> None:
        self.of = of
        self.memory: list[Array] = []

    def into(self, x: Array, out: Array) -> Array:
        self.memory.append(out)
        return self.of.into(x, out)


def test_operations_one_by_one_make_no_view_for_a_step_of_one_chunk(tmp_path: Path) -> None:
    executor = Model(save_model(tmp_path)).executor()
    side, mixer = executor.decoder.before[0][1], executor.config.spec.attention
    x, normed, whole, parts = (
        np.ones((9, width), np.float32) for width in 2 * (executor.config.hidden_size,) + 2 * (mixer.query_width,)
    )
    table, positions = np.ones((9, mixer.head_dim // 2), np.complex64), np.arange(9)
    given = side._in_proj = Given(side._in_proj)
    side.native = None
    side(x, whole, 9, normed, table, positions)
    assert given.memory[0] is whole
    side(x, parts, 4, normed, table, positions)
    assert [len(memory) for memory in given.memory] == [9, 4, 4, 1]


def product(outputs: int, inputs: int) -> cpu.PackedProduct:
    return PackedLinear(*map(array_of, (torch.randn(outputs, inputs), torch.randn(outputs))), "float32").product


def test_sizes_that_do_not_fit_are_refused() -> None:
    product_of = on_tensors(cpu.PackedProduct)
    words = torch.zeros(cpu.packed_words(32, 8, cpu.PACKINGS["float32"]), dtype=torch.int32)
    for given in (words[1:], words[::2], words.to(torch.int64)[:8], words.view(-1, 8)):
        with pytest.raises(ValueError, match="are not the words"):
            product_of(given, None, 32, 8, cpu.PACKINGS["float32"])
    with pytest.raises(ValueError, match=r"are not the words of \[32, 0\]"):
        product_of(words, None, 32, 0, cpu.PACKINGS["float32"])
    with pytest.raises(ValueError, match=r"bias: float32 \[32\]"):
        product_of(words, torch.zeros(31), 32, 8, cpu.PACKINGS["float32"])
    with pytest.raises(ValueError, match="no packing 9"):
        product_of(words, None, 32, 8, 9)
    by = on_tensors(product(32, 8))
    with pytest.raises(ValueError, match="rows of 8 values"):
        by(torch.zeros(3, 7), torch.zeros(3, 32))
    with pytest.raises(ValueError, match="added in float32"):
        by(torch.zeros(3, 8), torch.zeros(3, 32, dtype=torch.bfloat16), True)


def test_a_side_before_the_mixer_refuses_arrays_that_do_not_fit() -> None:
    norm = ("rms", 1e-6, np.ones(8, np.float32), None)
    x, out, room = torch.randn(3, 8), torch.zeros(3, 32), torch.zeros(3, 8)
    side = on_tensors(cpu.BeforeMixer(product(32, 8), norm, (0, 2, 8, 1e-6, np.ones((2, 8), np.float32))))
    table, positions = torch.ones(4, 4, dtype=torch.complex64), torch.zeros(3, dtype=torch.int64)
    side(x, out, 2, room, table, positions)
    wrong: list[tuple[Any, ...]] = [
        (torch.randn(3, 9), out, 2, room, table, positions),
        (x.to(torch.float64), out, 2, room, table, positions),
        (x, torch.zeros(2, 32), 2, room, table, positions),
        (x, torch.zeros(3, 31), 2, room, table, positions),
        (x, out, 0, room, table, positions),
        (x, out, 2, room[:1], table, positions),
        (x, out, 2, room.to(torch.bfloat16), table, positions),
        (x, out, 2, torch.zeros(3, 16)[:, ::2], table, positions),
        (x, out, 2, room, table[:, :3], positions),
        (x, out, 2, room, table, positions[:2]),
        (x, out, 2, room, table, positions.to(torch.int32)),
    ]
    for arguments in wrong:
        with pytest.raises((TypeError, ValueError)):
            side(*arguments)
    for rotation in ((0, 5, 8, 0.0, None), (8, 4, 8, 0.0, None), (-8, 1, 8, 0.0, None), (0, 0, 8, 0.0, None)):
        with pytest.raises(ValueError, match="do not lie in 32 values"):
            cpu.BeforeMixer(product(32, 8), norm, rotation)
    with pytest.raises(ValueError, match=r"gain: float32 \[2, 8\]"):
        cpu.BeforeMixer(product(32, 8), norm, (0, 2, 8, 0.0, np.ones((3, 8), np.float32)))
    with pytest.raises(ValueError, match="no native norm 'batch'"):
        cpu.BeforeMixer(product(32, 8), ("batch", 1e-6, None, None))


def test_a_side_behind_the_mixer_refuses_arrays_that_do_not_fit() -> None:
    norm = ("layer", 1e-6, np.ones(8, np.float32), np.zeros(8, np.float32))
    x, mixed, normed, up = torch.randn(3, 8), torch.randn(3, 16), torch.zeros(3, 8), torch.zeros(3, 20)
    products = product(8, 16), product(20, 8), product(8, 20)
    side = on_tensors(cpu.BehindMixer(*products, "gelu", False, True, None, norm, None, norm))
    made = torch.zeros(3, 8)
    side(x, mixed, 2, normed, up, made)
    wrong: list[tuple[Any, ...]] = [
        (torch.randn(3, 9), mixed, 2, normed, up, made),
        (x.to(torch.bfloat16), mixed, 2, normed, up, made),
        (x, mixed[:2], 2, normed, up, made),
        (x, torch.randn(3, 15), 2, normed, up, made),
        (x, mixed, 0, normed, up, made),
        (x, mixed, 2, normed[:1], up, made),
        (x, mixed, 2, normed, up[:1], made),
        (x, mixed, 2, normed, torch.zeros(3, 19), made),
        (x, mixed, 2, normed, up, made[:1]),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError):
            side(*arguments)
    with pytest.raises(ValueError, match="do not make a layer of 8"):
        cpu.BehindMixer(*products, "gelu", True, True, None, norm, None, None)
    with pytest.raises(ValueError, match="do not make a layer"):
        cpu.BehindMixer(*products, "gelu", False, True, None, None, None, None)
    with pytest.raises(KeyError):
        cpu.BehindMixer(*products, "swish", False, True, None, norm, None, None)
