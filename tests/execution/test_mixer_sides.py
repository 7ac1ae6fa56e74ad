"""A layer's two sides of its mixer: one native call gives the bits of the operations one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude.cpu.executor import CpuExecutor
from tests.checkpoints import save_model
from tests.encoders import CLASSES, Encoder, write_encoder
from tests.execution.conftest import RECURRENT, VARIANTS
from tests.execution.helpers import Model, hidden, i32, prompts, random_ids
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
