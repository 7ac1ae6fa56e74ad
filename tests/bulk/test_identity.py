"""What a journal's rows depend on: each part changed once, alone, makes other work."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prelude
from prelude import BulkError, Engine, EngineConfig
from prelude.bulk.files import Table
from prelude.bulk.form import Form
from prelude.bulk.journal import Journal
from prelude.bulk.run import BulkRun, configuration, configuration_hash
from prelude.models.identity import known_hash, model_hash
from tests.bulk.runs import write_rows

FORM: dict[str, Any] = {"verb": "decide", "state": "{text}", "questions": {"ok": {"question": "Is it polite?"}}}
MODEL = Path(prelude.__file__).parent / "default_model"


def of(form: dict[str, Any] = FORM, model: Path = MODEL, **load: Any) -> dict[str, Any]:
    config = EngineConfig(deterministic=True, **load.pop("config", {}))
    with Engine.from_pretrained(str(model), config=config, **load) as engine:
        return configuration(engine, Form(form))


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return of()


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(MODEL, folder / "model", ignore=shutil.ignore_patterns("__pycache__")))


def changed_model(folder: Path) -> dict[str, Any]:
    model = copied(folder)
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-1] ^= 1  # of the last number's mantissa or sign
    (model / "model.safetensors").write_bytes(data)
    return of(model=model)


CHANGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "form": lambda folder: of({**FORM, "length_norm": "token"}), "model": changed_model,
    "dtype": lambda folder: of(dtype="bfloat16"), "max_length": lambda folder: of(config={"max_length": 100}),
}  # fmt: skip


@pytest.mark.fault(71)
@pytest.mark.parametrize("name", CHANGES)
def test_each_part_changed_alone_is_refused_by_its_name(name: str, known: dict[str, Any], tmp_path: Path) -> None:
    other = CHANGES[name](tmp_path)
    assert {part for part in known if known[part] != other[part]} == {name}
    refused_by_name(name, known, other, tmp_path)


def choice(labels: list[str]) -> dict[str, Any]:
    return {"state": "{text}", "questions": {"ok": {"labels": dict.fromkeys(labels)}}}


@pytest.mark.fault(71)
def test_labels_in_another_order_are_another_form(known: dict[str, Any], tmp_path: Path) -> None:
    one, other = ({**known, "form": choice(labels)} for labels in (["a", "b"], ["b", "a"]))
    refused_by_name("form", one, other, tmp_path)


@pytest.mark.fault(71)
@pytest.mark.parametrize("kind,one,other", [
    ("jsonl", '{"text": {"a": 1, "b": 2}}\n', '{"text": {"b": 2, "a": 1}}\n'), ("csv", "text\na\n", "text\na,b\n"),
])  # fmt: skip
def test_keys_in_another_order_or_an_unread_row_are_another(kind: str, one: str, other: str, tmp_path: Path) -> None:
    source, target = tmp_path / f"in.{kind}", Table.of(str(tmp_path / "out.jsonl"))
    config = EngineConfig(deterministic=True)
    with Engine.from_pretrained(str(MODEL), config=config) as engine, Journal(tmp_path / "j", "", {}) as journal:
        for text, computed in ((one, 1), (other, 1), (one, 0)):
            source.write_text(text, "utf-8")
            assert BulkRun(engine, Form(FORM), Table.of(str(source)), target, 2).compute(journal).computed == computed


@pytest.mark.fault(71)
@pytest.mark.parametrize("name", ["version", "device"])
def test_another_version_or_device_is_refused_by_its_name(name: str, known: dict[str, Any], tmp_path: Path) -> None:
    assert known[name] == {"version": prelude.__version__, "device": "cpu"}[name]
    refused_by_name(name, known, {**known, name: "other"}, tmp_path)


def refused_by_name(name: str, known: dict[str, Any], other: dict[str, Any], folder: Path) -> None:
    with Journal(folder / "journal", configuration_hash(known), known) as journal:
        journal.append("0" * 32, {})
    with pytest.raises(BulkError, match=f"begun with another {name}; --restart"):
        Journal(folder / "journal", configuration_hash(other), other)
    with Journal(folder / "journal", configuration_hash(other), other, restart=True) as journal:
        assert journal.rows == 0


@pytest.mark.fault(71)
def test_the_prefix_and_the_place_of_the_files_are_no_part(known: dict[str, Any], tmp_path: Path) -> None:
    """Also a model that lies elsewhere, and the files of a run inside the model's folder."""
    model = copied(tmp_path)
    source = write_rows(model / "in.jsonl")
    with Engine.from_pretrained(str(model), config=EngineConfig(deterministic=True)) as engine:
        for prefix, target in (("", "out.jsonl"), ("new_", "other.csv")):
            says = configuration(engine, Form(FORM))
            assert says == known
            with Journal(model / "out.jsonl.journal", configuration_hash(says), says) as journal:
                bulk = BulkRun(engine, Form(FORM), Table.of(str(source)), Table.of(str(model / target)), 2, prefix)
                report = bulk.compute(journal)
                bulk.finish(journal, report)
            assert report.computed == (0 if prefix else 3)


class TestModelHash:
    SIZE = 40 << 20  # more than is hashed whole

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "config.json").write_text("{}", "utf-8")
        (tmp_path / "1_Pooling" / "config.json").write_text("{}", "utf-8")
        with open(tmp_path / "model.safetensors", "wb") as file:
            file.truncate(self.SIZE)
        return tmp_path

    @pytest.mark.fault(71)
    @pytest.mark.parametrize("part", [at / 63 for at in (0, 1, 20, 31, 32, 50, 62, 63)])
    def test_a_large_file_is_read_in_many_places(self, model: Path, part: float) -> None:
        before = model_hash(model)
        with open(model / "model.safetensors", "r+b") as file:
            file.seek(int(part * (self.SIZE - 1)) - (part > 0.5) * 100)
            file.write(b"\x01")
        assert model_hash(model) != before

    @pytest.mark.fault(71)
    @pytest.mark.parametrize(
        "name", ["config.json", "1_Pooling/config.json", "chat_template.jinja", "2_Dense/model.safetensors"]
    )
    def test_every_file_that_is_read_counts(self, model: Path, name: str) -> None:
        before = model_hash(model)
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(json.dumps({"pooling_mode_cls_token": True}), "utf-8")
        written = model_hash(model)
        (model / name).rename((model / name).with_stem("other"))
        assert len({before, written, model_hash(model)}) == 3

    def test_a_table_beside_it_does_not(self, model: Path) -> None:
        before = model_hash(model)
        for name in ("in.csv", "out.jsonl.journal", "out.parquet", "README.md", "vocab.txt", "pytorch_model.bin"):
            (model / name).write_text("text", "utf-8")
        assert model_hash(model) == before


def hashed(folder: Path, *names: str) -> str:
    """The hash of these files: those of more than 32 MiB count by 64 parts of 64 KiB, evenly spaced."""
    found = hashlib.blake2b(digest_size=16)
    for name in names:
        data = (folder / name).read_bytes()
        found.update(json.dumps([name, len(data)]).encode())
        places = [part * (len(data) - 65536) // 63 for part in range(64)] if len(data) > 32 << 20 else []
        found.update(b"".join(data[at : at + 65536] for at in places) or data)
    return found.hexdigest()


def test_the_hash_of_a_directory_and_of_a_file_are_those_of_the_files_that_are_read(tmp_path: Path) -> None:
    read = ["1_Pooling/config.json", "config.json", "model.safetensors", "other.sparrow", "template.jinja", "x.gguf"]
    for name in (*read, "1_Pooling/2_deeper/a.json", "named/config.json", "named.json/a.json", "vocab.txt", "x.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * 4000)
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere.json")
    numbers = np.arange(8 << 20, dtype=np.int32).tobytes()  # 32 MiB, no part like another
    for data in (numbers, numbers + b"1"):
        (tmp_path / "model.safetensors").write_bytes(data)
        assert model_hash(tmp_path) == hashed(tmp_path, *read)
    for file in ("x.gguf", "x.bin"):
        assert model_hash(tmp_path / file) == hashed(tmp_path, "config.json", "template.jinja", file), "beside it"
    assert known_hash(str(tmp_path)) == hashed(tmp_path, *read)
    assert known_hash(str(tmp_path / "none")) == known_hash("") == ""
