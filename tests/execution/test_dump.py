from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prelude.execution.dump import load, save
from prelude.readouts.batch import DecodeBatch, DecodeRows, MixedBatch, OneShotBatch, PooledRows
from tests.execution.helpers import (
    Model,
    Segment,
    all_logprobs,
    decode_rows,
    i32,
    owned,
    prompts,
    random_ids,
    run,
    sampling,
    slices,
)

TREE = slices([Segment(random_ids(0, 20), write=[1, 2]), Segment(random_ids(1, 5), 0)])
ROWS = decode_rows([3, 4], [0, 17], [[5], [6, 7]])


@pytest.mark.parametrize(
    "batch",
    [
        OneShotBatch(TREE, all_logprobs(np.array([3, 24]), top=2, ranks=True)),
        OneShotBatch(prompts(random_ids(2, 9)), PooledRows(i32([1, 8]), i32([0, 2]), "mean")),
        DecodeBatch(ROWS, sampling([0, 1], 0.7, seeds=[2**64 - 1, 5], top_p=0.9)),
        MixedBatch(owned(TREE, [-1, 2]), (sampling([24]), all_logprobs(np.array([2]))), ROWS, None, i32([4, 0])),
    ],
)
def test_a_dumped_batch_runs_the_same(batch: object, model: Model, tmp_path: Path) -> None:
    save(tmp_path / "step", batch)  # type: ignore[arg-type]
    again = load(tmp_path / "step")
    assert repr(again) == repr(batch)
    first, second = (run(model.executor(deterministic=True), b) for b in (batch, again))
    for one, two in zip(first.outputs, second.outputs, strict=True):
        for name in one.__dataclass_fields__:
            assert np.array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize(
    ("batch", "arrays", "why"),
    [
        (None, [], "holds a NoneType, not a batch"),
        ({"type": "DecodeRows", "fields": dict.fromkeys(DecodeRows.__dataclass_fields__)}, [], "a DecodeRows,"),
        ({"type": "Path", "fields": {}}, [], "unknown type 'Path'"), ({"fields": {}}, [], "unknown type None"),
        ({"array": "b"}, [["a", "int32", [2]]], "'b'"), ({"array": "a"}, [["a", "int32", [2]]], "holds a ndarray"),
        (None, [["a", "object", [1]]], "array a of a batch has the type object"),
        (None, [["a", "int32", [3]]], "buffer is smaller"),
        (None, [["a", "int32", [1]], ["b", "int32", [1]]], "buffer"),  # each begins at a multiple of eight bytes
    ],
)  # fmt: skip
def test_what_is_no_batch_is_named(batch: object, arrays: list[object], why: str, tmp_path: Path) -> None:
    text = json.dumps({"batch": batch, "arrays": arrays}).encode()
    text += b" " * (-(4 + len(text)) % 8)
    (tmp_path / "other").write_bytes(len(text).to_bytes(4, "little") + text + bytes(8))
    with pytest.raises(ValueError, match="not a dumped batch") as refused:
        load(tmp_path / "other")
    assert why in str(refused.value)


@pytest.mark.parametrize("found", [b"", b"\x02\0\0\0{}", b"\x04\0\0\0null", b"PK\3\4 of another kind"])
def test_other_files_are_refused(found: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(found)
    with pytest.raises(ValueError, match="not a dumped batch"):
        load(tmp_path / "other")
