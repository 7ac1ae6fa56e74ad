"""A user's names of a model: directories first, hub names through a cache or a stand-in for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, Engine
from prelude.errors import ModelError
from prelude.models import names
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.names import resolve

from .conftest import Copy


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Calls of ``snapshot_download``, which finds nothing; the working directory is the test's own."""
    import huggingface_hub

    calls: list[tuple[str, dict[str, Any]]] = []

    def record(name: str, **options: Any) -> str:
        calls.append((name, options))
        raise ConnectionError("no route to the hub")

    for key in names._OFFLINE:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", record)
    monkeypatch.chdir(tmp_path)
    return calls


def started(*model: str, **options: Any) -> None:
    """Loads an ``AsyncEngine``."""
    asyncio.run(AsyncEngine.from_pretrained(*model, **options).start())


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise RuntimeError("a socket was opened")

    monkeypatch.setattr(socket, "socket", forbidden)


@pytest.mark.fault(49)
@pytest.mark.parametrize("how", ["absolute", "relative", "pathlike", "home", "like_a_hub_name"])
def test_directory_is_itself(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[Any], no_sockets: None
) -> None:
    directory = tmp_path / "org" / "name"
    directory.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    typed: Any = {
        "absolute": str(directory), "relative": "./org/name", "pathlike": directory, "home": "~/org/name",
        "like_a_hub_name": "org/name",
    }[how]  # fmt: skip
    assert resolve(typed) == directory
    assert downloads == []


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    "typed, match",
    [
        ("./nothing", "no such file or directory"), ("/nothing/here", "no such file or directory"),
        ("a/b/c", "no such file or directory, and it is not a hub name, which has the form 'org/name'"),
        ("my-finetune", "no such file or directory, and it is not a hub name, which has the form 'org/name'"),
        ("../up", "no such file or directory"), ("~nobody_at_all/x/y", "no such file or directory"),
        ("org/../name", "no such file or directory"), ("org/na me", "no such file or directory"),
        ("org\\name", "no such file or directory"), ("https://hub.example/org/name", "no such file or directory"),
        ("org/a..b", "not a hub name"), ("org/na--me", "not a hub name"), ("org/" + "n" * 93, "not a hub name"),
        ("org--name", "no such file or directory"), ("x" * 5000, "no such file or directory|cannot be read"),
        ("", "a directory or a hub name"), ("a\0b", "a directory or a hub name"), (None, "a directory or a hub name"),
        (7, "a directory or a hub name"), (b"org/name", "a directory or a hub name"),
        (Path("org/name"), "no such file or directory"),
    ],
)  # fmt: skip
def test_a_name_that_is_neither_a_directory_nor_a_repository(typed: Any, match: str, downloads: list[Any]) -> None:
    with pytest.raises(ModelError, match=match) as failure:
        resolve(typed)
    assert downloads == [] and len(str(failure.value)) < 1000


@pytest.mark.fault(47)
def test_file_or_dangling_link_instead_of_a_directory(tmp_path: Path, downloads: list[Any]) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(ModelError, match=r"a file; give the directory that holds config\.json"):
        resolve("model.safetensors")
    with pytest.raises(ModelError, match="no such file or directory"):
        resolve("gone")
    assert downloads == []


def test_hub_name_asks_for_safe_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[Any]
) -> None:
    import huggingface_hub
    from huggingface_hub.utils._paths import filter_repo_objects

    asked: dict[str, Any] = {}

    def found(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    assert resolve("org/name-1.5B", revision="abc", cache_dir=tmp_path) == tmp_path
    assert (asked["name"], asked["revision"], asked["cache_dir"]) == ("org/name-1.5B", "abc", tmp_path)
    assert asked["local_files_only"] is False
    wanted = [
        "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "tokenizer.json", "chat_template.jinja", "1_Pooling/config.json", "2_Dense/model.safetensors",
    ]  # fmt: skip
    unwanted = [
        "pytorch_model.bin", "modeling_own.py", "consolidated.safetensors", "original/model.safetensors",
        "onnx/config.json", "README.md", "model.gguf", "tokenizer.model", "qwen.tiktoken", "merges.txt", "vocab.txt",
    ]  # fmt: skip
    kept = filter_repo_objects(
        wanted + unwanted, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(kept) == wanted


@pytest.mark.fault(47)
def test_a_path_that_is_missing_is_no_hub_name(downloads: list[Any], tmp_path: Path) -> None:
    """``models/finetune`` with its last part misspelt would have been downloaded from the user named models."""
    (tmp_path / "models" / "finetune").mkdir(parents=True)
    with pytest.raises(
        ModelError, match=r"models/finetun: there is no such file .*, though models is here; .*revision='main'"
    ):
        resolve("models/finetun")
    assert downloads == []
    with pytest.raises(ModelError, match="not loaded from the hub"):
        resolve("models/finetun", revision="main")
    assert [(name, options["revision"]) for name, options in downloads] == [("models/finetun", "main")]


@pytest.mark.parametrize("make", [Engine.from_pretrained, started], ids=["sync", "async"])
def test_from_pretrained_takes_a_revision(make: Any, downloads: list[Any]) -> None:
    with pytest.raises(ModelError, match="not loaded from the hub"):
        make("org/name", revision="v1.5")
    assert [options["revision"] for _, options in downloads] == ["v1.5"]
    with pytest.raises(ModelError, match=r"revision='v1' is for a hub name"):
        make(revision="v1")
    with pytest.raises(ModelError, match="not loaded from the hub"):
        make("org/" + "n" * 92, revision="r" * 255)


@pytest.mark.parametrize("revision", ["", "../main", "a b", 7, "x" * 256, "a..b", "-r", "a\0"])
def test_bad_revisions(revision: Any, downloads: list[Any]) -> None:
    with pytest.raises(ModelError, match=r"revision is .*: the name of a commit, a tag or a branch is needed"):
        resolve("org/name", revision=revision)
    assert downloads == []


def test_a_path_has_no_revision(tmp_path: Path, downloads: list[Any]) -> None:
    for path in (tmp_path, str(tmp_path), "./org/name"):
        with pytest.raises(ModelError, match="a path"):
            resolve(path, revision="main")
    assert downloads == []


def test_hub_failure_says_the_way_out(downloads: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """A name without a revision is taken with a warning."""
    with pytest.raises(ModelError, match=r"org/name: no such file or dir.*check the name, the network.*no route"):
        resolve("org/name")
    assert "org/name: no such file or directory, so this is a hub name" in caplog.text
    caplog.clear()
    with pytest.raises(ModelError):
        resolve("org/name", revision="0123abc")
    assert caplog.text == ""
    assert [name for name, _ in downloads] == ["org/name"] * 2


@pytest.mark.parametrize("key, value", [("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "true")])
def test_offline_looks_in_the_cache_only(
    key: str, value: str, downloads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key, value)
    with pytest.raises(ModelError, match="stay offline; unset HF_HUB_OFFLINE"):
        resolve("org/name")
    assert downloads[0][1]["local_files_only"] is True


def test_without_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'prelude-engine\[hub\]'"):
        resolve("org/name")


@pytest.mark.fault(49)
def test_cached_snapshot_offline(
    checkpoint_dir: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_sockets: None
) -> None:
    repository, revision = tmp_path / "models--org--name", "0123456789" * 4
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision, encoding="utf-8")
    for path in checkpoint_dir("sharded").iterdir():
        shutil.copy(path, repository / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    found = resolve("org/name", cache_dir=tmp_path)
    assert os.path.samefile(found, snapshot)
    Checkpoint.open(found, ModelConfig.from_dir(found)).close()


def test_importing_the_package_needs_no_torch_and_no_hub() -> None:
    root = str(Path(names.__file__).parents[2])
    code = (
        "import sys, prelude.models.names, prelude.models.config, prelude.models.checkpoint;"
        "print([name for name in ('torch', 'numpy', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
