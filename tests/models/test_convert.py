"""Converted directories: the answers of the model that they were made of, and files that are not what was written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prelude._native import cpu

from prelude import Engine, EngineConfig, ExpertConfig, SamplingParams
from prelude.errors import CheckpointError, ExecutionError, ModelError, UnsupportedModel
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.packed import PackedLinear
from prelude.models.packed_file import LAYOUT, PACKED_FILE, PRODUCED, PackedWeights, write_safetensors
from prelude.tools.cli import main
from prelude.tools.convert import convert
from tests.checkpoints import make_checkpoint, save_model
from tests.encoders import CLASSES, Encoder, write_encoder
from tests.execution.conftest import RECURRENT, VARIANTS
from tests.execution.helpers import Model, hidden, i32, last_logprobs, prompts, random_ids

DECODERS = {**VARIANTS, **RECURRENT}
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
IDS = [random_ids(n, n) for n in (1, 17, 90)]


@pytest.mark.parametrize(("variant", "stored"), [*zip(sorted(DECODERS), cycle(("float32", "bfloat16", "float16")))])
def test_decoders_answer_as_before(variant: str, stored: str, tmp_path: Path) -> None:
    source = save_model(tmp_path / "source", **{**DECODERS[variant], "dtype": stored})
    folder = tmp_path / "converted"
    convert(source, folder)
    model = Model(source)
    before, after = model.executor(), converted(folder).executor()
    s = prompts(*IDS)
    rows = np.arange(108)
    assert np.array_equal(last_logprobs(before, s, rows), last_logprobs(after, s, rows))
    assert after.limits().weights == before.limits().weights
    assert [linear.packing for linear in after.weights.linears()] == [
        linear.packing for linear in before.weights.linears()
    ]


def converted(folder: Path) -> Any:
    """As ``Model``, without transformers, which does not read such a directory."""
    model = object.__new__(Model)
    model.path, model.config = folder, ModelConfig.from_dir(folder)
    return model


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("family", sorted(CLASSES))
def test_encoders_answer_as_before(family: str, quantization: str | None, tmp_path: Path) -> None:
    encoder = Encoder(write_encoder(tmp_path / "source", family=family))
    convert(encoder.path, tmp_path / "converted", quantization=quantization)
    other = object.__new__(Encoder)
    other.path, other.config = tmp_path / "converted", ModelConfig.from_dir(tmp_path / "converted")
    s, rows = prompts(*(i32(5 + random_ids(n, n, 200)) for n in (1, 17, 90))), np.arange(108)
    before = hidden(encoder.executor(quantization=quantization), s, rows)
    assert np.array_equal(before, hidden(other.executor(), s, rows))


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {}], ids=str)
@pytest.mark.parametrize("variant", ["biases", "qwen2"])
def test_a_bias_wider_than_the_working_type_stays_wide(variant: str, options: dict[str, Any], tmp_path: Path) -> None:
    if not options and "bfloat16" not in cpu.PACKED_KERNELS:
        pytest.skip("this processor has no products of bfloat16")
    source = save_model(tmp_path / "source", **VARIANTS[variant])
    folder = tmp_path / "converted"
    convert(source, folder, "bfloat16", **options)
    before, after = Model(source).executor(dtype="bfloat16", **options), converted(folder).executor()
    for one, other in zip(before.weights.linears(), after.weights.linears()):
        assert (one.bias is None) == (other.bias is None)
        assert one.bias is None or other.bias is None or np.array_equal(one.bias, other.bias)
    s, rows = prompts(*IDS), np.arange(108)
    assert np.array_equal(last_logprobs(before, s, rows), last_logprobs(after, s, rows))


def test_weights_are_used_where_they_lie(tmp_path: Path) -> None:
    source = save_model(tmp_path / "source", dtype="bfloat16", tie_word_embeddings=True)
    folder = tmp_path / "converted"
    convert(source, folder)
    executor = converted(folder).executor()
    down = executor.weights.layers[0].down
    assert isinstance(down, PackedLinear)
    maps = Path("/proc/self/maps")

    def mapped(linear: PackedLinear) -> bool:
        lines = [line for line in maps.read_text(encoding="utf-8").splitlines() if line.endswith(PACKED_FILE)]
        spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        return any(first <= linear.words.ctypes.data < last for first, last in spans)

    assert not maps.exists() or mapped(down)
    assert executor.weights.embeddings.tokens is executor.weights.lm_head
    os.chmod(folder / PACKED_FILE, 0o666)  # others may write it while it is mapped
    copied = converted(folder).executor()
    s = prompts(*IDS)
    assert np.array_equal(last_logprobs(executor, s, np.arange(108)), last_logprobs(copied, s, np.arange(108)))
    assert not maps.exists() or not mapped(copied.weights.layers[0].down)


@pytest.mark.parametrize("how", ["truncated", "overwritten", "replaced"])
def test_a_file_that_is_written_into_while_it_is_in_use(how: str, tmp_path: Path) -> None:
    """No step reads it any more. A file that another one was renamed over stays in use."""
    folder = tmp_path / "converted"
    convert(make_checkpoint(tmp_path / "source"), folder)
    path = folder / PACKED_FILE
    with Engine.from_pretrained(folder, config=EngineConfig(expert=ExpertConfig(kv_blocks=64))) as engine:
        before = engine.complete("a text", params=GREEDY).token_ids
        if how == "truncated":
            os.truncate(path, 0)
        elif how == "overwritten":
            with path.open("r+b") as file:
                file.seek(-4096, os.SEEK_END)
                file.write(b"\0" * 4096)
        else:
            (folder / "other").write_bytes(b"")
            os.replace(folder / "other", path)
            assert engine.complete("a text", params=GREEDY).token_ids == before
            return
        for _ in range(2):
            with pytest.raises(ExecutionError) as caught:
                engine.complete("a text", params=GREEDY)
            assert f"{path}: was written into while it is in use" in str(caught.value.__cause__ or caught.value)


def test_the_owner_is_that_of_the_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file of this name, which only this user may write, says nothing of the one that is mapped."""
    folder = tmp_path / "converted"
    convert(save_model(tmp_path / "source"), folder)
    path = folder / PACKED_FILE
    data = path.read_bytes()
    os.chmod(path, 0o666)

    opened = os.fdopen

    def replaced(*arguments: Any, **options: Any) -> Any:
        file = opened(*arguments, **options)
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o600)
        return file

    monkeypatch.setattr(os, "fdopen", replaced)
    weights = PackedWeights(path)
    monkeypatch.undo()
    kept = weights.find(["model.layers.0.mlp.down_proj.weight"])
    assert kept is not None
    assert weights.words(kept).ctypes.data != weights.view(weights.stored[kept.tensor]).ctypes.data
    weights.close()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    source, folder = save_model(tmp_path / "source"), tmp_path / "converted"
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.raises(ModelError, match=r"converted: cannot be written: .*; give a folder"):
        convert(source, tmp_path / "file" / "converted")
    (tmp_path / "converted.part").mkdir()  # as a run of another version left it
    convert(source, folder)
    assert [path.name for path in tmp_path.glob("*.part")] == ["converted.part"]


def test_the_command_and_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from prelude.default_model import path as packaged

    folder = tmp_path / "converted"
    assert main(["convert", str(packaged()), str(folder)]) == 0
    assert "packed weights" in capsys.readouterr().out
    texts = ["The bridge is closed.", "Who signed it?"]
    found = []
    for where in (str(packaged()), str(folder)):
        with Engine.from_pretrained(where, config=EngineConfig(expert=ExpertConfig(kv_blocks=64))) as engine:
            found.append([engine.complete(text, params=GREEDY).token_ids for text in texts])
    assert found[0] == found[1]
    assert main(["convert", str(packaged()), str(folder)]) == 2  # there already
    assert "is there already" in capsys.readouterr().err
    with pytest.raises(ModelError, match="is converted already"):
        convert(folder, tmp_path / "again")
    assert not list(tmp_path.glob("*.part"))


def test_folders_of_modules_are_copied_under_any_name(tmp_path: Path) -> None:
    source = write_encoder(tmp_path / "source", family="bert")
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "parts/pooler"}]
    (source / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (source / "parts" / "pooler").mkdir(parents=True)
    (source / "parts" / "other").mkdir()
    (source / "parts" / "pooler" / "config.json").write_text('{"pooling_mode": "max"}', encoding="utf-8")
    convert(source, tmp_path / "made")
    (source / "modules.json").unlink()
    (source / "1_Pooling").mkdir()
    convert(source, tmp_path / "plain")
    assert (tmp_path / "plain").exists() and not (tmp_path / "plain" / "parts").exists()
    kept = tmp_path / "made" / "parts" / "pooler" / "config.json"
    assert kept.read_text(encoding="utf-8") == '{"pooling_mode": "max"}' and not (kept.parents[1] / "other").exists()


def test_another_choice_is_refused(tmp_path: Path) -> None:
    source, folder = save_model(tmp_path / "source", dtype="bfloat16"), tmp_path / "converted"
    convert(source, folder)
    model = converted(folder)
    assert model.executor(dtype="float32").limits().weights == "bfloat16"
    with pytest.raises(ModelError, match="was converted for dtype='float32' and quantization=None"):
        model.executor(quantization="int8")
    with pytest.raises(ModelError, match="load the one that it was converted from"):
        model.executor(dtype="bfloat16")
    with Checkpoint.open(folder, model.config) as checkpoint, pytest.raises(CheckpointError, match="in packed form"):
        checkpoint.tensor("model.layers.0.mlp.down_proj.weight")


def test_the_digest_tells_of_changed_words(tmp_path: Path) -> None:
    source, folder = save_model(tmp_path / "source"), tmp_path / "converted"
    convert(source, folder)
    config = ModelConfig.from_dir(folder)
    Checkpoint.open(folder, config, scan=True).close()
    path = folder / PACKED_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    Checkpoint.open(folder, config).close()
    with pytest.raises(CheckpointError, match="not those that were written"):
        Checkpoint.open(folder, config, scan=True)


def _first(weights: dict[str, Any]) -> Any:
    return weights[next(iter(weights))]


EDITS: dict[str, tuple[Callable[[dict[str, str], dict[str, Any]], Any], type[ModelError], str]] = {
    "version": (lambda m, w: m.update(version="2"), UnsupportedModel, "version '2'"),
    "format": (lambda m, w: m.pop("format"), UnsupportedModel, "format None"),
    "layout": (lambda m, w: m.update(layout="16x32"), UnsupportedModel, "layout"),
    "dtype": (lambda m, w: m.update(dtype="float16"), CheckpointError, "dtype 'float16'"),
    "packing": (lambda m, w: m.update(packing="int4"), CheckpointError, "packing 'int4'"),
    "rows": (lambda m, w: _first(w)["parts"][0].__setitem__(1, 10**6), CheckpointError, "outputs of"),
    "negative": (lambda m, w: _first(w)["parts"][0].__setitem__(1, -32), CheckpointError, "is described by"),
    "inputs": (lambda m, w: _first(w).update(inputs=1 << 40), CheckpointError, "is described by"),
    "overflow": (
        lambda m, w: (_first(w).update(inputs=(1 << 31) - 1), _first(w)["parts"][0].__setitem__(1, (1 << 31) - 1)),
        CheckpointError,
        "is described by",
    ),
    "text": (lambda m, w: _first(w).update(inputs="48"), CheckpointError, "is described by"),
    "twice": (lambda m, w: _first(w)["parts"].append(_first(w)["parts"][0]), CheckpointError, "outputs of"),
    "unlisted": (lambda m, w: w.pop(next(iter(w))), CheckpointError, "list of weights"),
    "another packing": (lambda m, w: _first(w).update(packing="int8"), CheckpointError, "never gives"),
    "never given": (lambda m, w: _first(w).update(packing="widened"), CheckpointError, "never gives"),
    "list": (lambda m, w: _first(w).update(packing=[]), CheckpointError, "is described by"),
    "another type": (lambda m, w: m.update(dtype="bfloat16"), CheckpointError, "dtype 'bfloat16'"),
    "not quantized": (lambda m, w: m.update(quantization="int8"), CheckpointError, "quantization 'int8'"),
    "another name": (lambda m, w: _first(w)["parts"][0].__setitem__(0, "x"), CheckpointError, "missing"),
}


def _rewrite(path: Path, change: Callable[[dict[str, str], dict[str, Any]], Any]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header["__metadata__"]
    weights = json.loads(metadata["weights"])
    change(metadata, weights)
    metadata["weights"] = json.dumps(weights)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize("edit", sorted(EDITS))
def test_changed_headers_are_refused(edit: str, tmp_path: Path) -> None:
    source, folder = save_model(tmp_path / "source"), tmp_path / "converted"
    convert(source, folder)
    change, error, told = EDITS[edit]
    _rewrite(folder / PACKED_FILE, change)
    with pytest.raises(error, match=told):
        Checkpoint.open(folder, ModelConfig.from_dir(folder)).close()


def written(path: Path, weights: Any, **choice: str) -> Path:
    metadata = {"format": "prelude-packed", "version": "1", "layout": LAYOUT, "weights": json.dumps(weights)}
    choice = {"dtype": "float32", "quantization": "", "packing": "float32", **choice}
    write_safetensors(path, {name: np.zeros(1, np.int32) for name in weights}, {**metadata, **choice})
    return path


HALF, MOST = 1 << 28, (1 << 31) - 1
DESCRIBED: list[tuple[dict[str, Any], bool]] = [
    ({}, True), ({"packing": "int4"}, False), ({"packing": 5}, False), ({"more": 1}, False),
    ({"inputs": 0}, False), ({"inputs": 1}, True), ({"inputs": True}, False),
    ({"inputs": MOST, "parts": [["a", 1]]}, True), ({"inputs": MOST + 1, "parts": [["a", 1]]}, False),
    ({"inputs": 1, "parts": [["a", MOST]]}, True), ({"inputs": 1, "parts": [["a", MOST + 1]]}, False),
    ({"inputs": HALF - 1, "parts": [["a", HALF]]}, True), ({"inputs": HALF, "parts": [["a", HALF]]}, False),
    ({"parts": []}, False), ({"parts": {"a": 1}}, False), ({"parts": [["a", 0]]}, False),
    ({"parts": [["a", True]]}, False), ({"parts": [["a"]]}, False), ({"parts": [["a", 1, 1]]}, False),
    ({"parts": [[1, 1]]}, False), ({"parts": ["ab"]}, False), ({"parts": [["a", 1], ["b", 1]]}, True),
]  # fmt: skip


@pytest.mark.parametrize("changes, good", DESCRIBED)
def test_which_descriptions_are_some(changes: dict[str, Any], good: bool, tmp_path: Path) -> None:
    """Those that are have other sizes than their tensor."""
    described = {"packing": "float32", "inputs": 8, "parts": [["a", 4]], **changes}
    with pytest.raises(CheckpointError, match="are .* words" if good else "is described by"):
        PackedWeights(written(tmp_path / "w", {"w": described}))


def test_which_choices_agree(tmp_path: Path) -> None:
    agree = {("float32", "", packing) for packing in ("float32", "widened", "float16")}
    agree |= {("bfloat16", "", packing) for packing in ("bfloat16", "widened")}
    agree |= {(dtype, "int8", "int8") for dtype in ("float32", "bfloat16")}
    for choice in product(("float32", "bfloat16", "float16"), ("", "int8", "int4"), (*PRODUCED, "int4")):
        path = written(tmp_path / " ".join(choice), {}, **dict(zip(("dtype", "quantization", "packing"), choice)))
        with contextlib.nullcontext() if choice in agree else pytest.raises(CheckpointError, match="dtype '"):
            found = PackedWeights(path).converted
            assert (found.dtype, found.quantization, found.packing) == (choice[0], choice[1] or None, choice[2])
    for weights, told in (([], "the list of weights is not that of the tensors"), ({"w": 5}, "is described by 5")):
        with pytest.raises(CheckpointError, match=told):
            PackedWeights(written(tmp_path / told, weights))


def test_weights_in_another_order_are_refused(tmp_path: Path) -> None:
    """Keys and values have as many rows: nothing else tells them apart."""
    folder = tmp_path / "converted"
    convert(save_model(tmp_path / "source"), folder)

    def swap(_: dict[str, str], weights: dict[str, Any]) -> None:
        parts = next(one["parts"] for one in weights.values() if len(one["parts"]) == 3)
        parts[1], parts[2] = parts[2], parts[1]

    _rewrite(folder / PACKED_FILE, swap)
    with pytest.raises(CheckpointError, match="are not packed together"):
        converted(folder).executor()


def test_weights_that_lie_in_one_tensor_share_its_bytes(tmp_path: Path) -> None:
    """The memory that loading asks for is that of the file."""
    folder = tmp_path / "converted"
    convert(save_model(tmp_path / "source"), folder)
    packed = PackedWeights(folder / PACKED_FILE)
    asked, there = sum(info.nbytes for info in packed.tensors.values()), (folder / PACKED_FILE).stat().st_size
    packed.close()
    assert 0.9 * there < asked <= there


def test_the_layout_is_that_of_the_kernels() -> None:
    assert f"{cpu.PACKED_GROUP}x{cpu.INT8_BLOCK}" == LAYOUT


def test_cut_files_are_refused(tmp_path: Path) -> None:
    source, folder = save_model(tmp_path / "source"), tmp_path / "converted"
    convert(source, folder)
    path = folder / PACKED_FILE
    data = path.read_bytes()
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            PackedWeights(path)
