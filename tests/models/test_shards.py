"""The index of a sharded checkpoint, and links: nothing outside the directory is read."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from prelude.errors import ModelError
from tests.patience import open_files

from .conftest import FILE, INDEX, Copy, edit_weights, loaded, open_checkpoint, reference_weights, refused


def edit_map(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    raw = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    change(raw["weight_map"])
    (directory / INDEX).write_text(json.dumps(raw), encoding="utf-8")


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors", "..", ".", "", "./model-00001-of-00002.safetensors", "sub/model.safetensors",
        "/ABSOLUTE/outside.safetensors", "..\\outside.safetensors", "C:outside.safetensors", "model\0.safetensors",
        "model\n.safetensors", ".hidden.safetensors", "pytorch_model.bin", "config.json", "~/outside.safetensors",
        "x" * 244 + ".safetensors", None, 7, ["model-00001-of-00002.safetensors"], {"a": 1},
    ],
)  # fmt: skip
def test_index_naming_anything_but_a_file_beside_it(name: Any, copy_of: Copy) -> None:
    directory = copy_of("sharded")
    outside = directory.parent / "outside.safetensors"  # everything that the names could reach is really there
    shutil.copy(directory / "model-00001-of-00002.safetensors", outside)
    (directory / "sub").mkdir()
    shutil.copy(outside, directory / "sub" / FILE)
    shutil.copy(outside, directory / ".hidden.safetensors")
    if isinstance(name, str):
        name = name.replace("/ABSOLUTE", str(directory.parent))

    def point(weight_map: dict[str, Any]) -> None:
        for tensor, shard in weight_map.items():
            if shard.startswith("model-00001"):
                weight_map[tensor] = name

    edit_map(directory, point)
    refused(directory, "only the plain name of a .safetensors file beside the index")


@pytest.mark.fault(41)
def test_shard_that_links_out_of_the_directory(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    shard = directory / "model-00001-of-00002.safetensors"
    shard.rename(directory.parent / "elsewhere.safetensors")
    shard.symlink_to("../elsewhere.safetensors")
    refused(directory, "a link that leads out of the model directory")


def test_links_within_the_directory_are_fine(copy_of: Copy) -> None:
    directory = copy_of("tied")
    (directory / FILE).rename(directory / "real")
    (directory / FILE).symlink_to("real")
    link = directory.parent / "link_to_the_directory"
    link.symlink_to(directory)
    open_checkpoint(link).close()


@pytest.mark.fault(41)
def test_loop_of_links(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    shard = directory / "model-00001-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(shard.name)
    refused(directory, "cannot be resolved")


def hub_snapshot(source: Path, repository: Path, store: Path) -> Path:
    """The files of ``source`` laid out as a hub cache does: links to blobs, optionally to a common store."""
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    store.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(source.iterdir())):
        blob = repository / "blobs" / f"{number:040x}"
        shutil.copy(path, store / blob.name)
        if store != repository / "blobs":
            blob.symlink_to(os.path.relpath(store / blob.name, blob.parent))
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


@pytest.mark.fault(41)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["tied", "sharded"])
def test_snapshot_of_the_hub_cache(kind: str, shared: bool, checkpoint_dir: Copy, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    store = tmp_path / "hub" / "blobs" / "ab" if shared else repository / "blobs"
    snapshot = hub_snapshot(checkpoint_dir(kind), repository, store)
    with open_checkpoint(snapshot) as checkpoint:
        assert len(loaded(checkpoint)) == len(reference_weights(checkpoint_dir(kind)))


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "repository, store",
    [
        ("other/org--name", "other/org--name/blobs"), ("hub/models--org--name", "hub/models--org--other/blobs"),
        ("hub/models--org--name", "elsewhere/blobs"), ("hub/models--org--name", "hub/models--org--name/refs"),
    ],
)  # fmt: skip
def test_only_the_hub_cache_may_link_to_blobs(
    repository: str, store: str, checkpoint_dir: Copy, tmp_path: Path
) -> None:
    snapshot = hub_snapshot(checkpoint_dir("sharded"), tmp_path / repository, tmp_path / store)
    refused(snapshot, "a link that leads out of the model directory", ModelError)


@pytest.mark.fault(41)
def test_shard_that_is_a_directory(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    (directory / "model-00001-of-00002.safetensors").unlink()
    (directory / "model-00001-of-00002.safetensors").mkdir()
    refused(directory, "model-00001-of-00002.safetensors: not a regular file")


@pytest.mark.fault(41)
def test_shard_that_is_missing(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    (directory / "model-00002-of-00002.safetensors").unlink()
    refused(directory, "model-00002-of-00002.safetensors: missing; was the download completed")


@pytest.mark.fault(41)
def test_tensor_claimed_in_the_wrong_shard(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    norm = "model.layers.1.post_attention_layernorm.weight"
    edit_map(directory, lambda names: names.update({norm: "model-00001-of-00002.safetensors"}))
    refused(directory, f"00001-of.*: tensor '{norm}' is missing; it lies in model-00002")


@pytest.mark.fault(41)
def test_tensor_that_no_shard_has(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    edit_map(directory, lambda names: names.update({"model.more": "model-00001-of-00002.safetensors"}))
    refused(directory, "tensor 'model.more' is missing; no other shard has it")


@pytest.mark.fault(41)
@pytest.mark.parametrize("listed", [True, False])
def test_same_tensor_in_two_shards(listed: bool, copy_of: Copy) -> None:
    directory = copy_of("sharded")
    second = directory / "model-00002-of-00002.safetensors"
    name = "model.embed_tokens.weight" if listed else "model.unlisted"
    edit_weights(second, lambda tensors: {**tensors, name: torch.ones(64, 32)})
    refused(directory, f"holds tensor '{name}', but the index " + ("puts it in" if listed else "does not list"))


@pytest.mark.fault(41)
def test_same_tensor_with_and_without_prefix(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    second = directory / "model-00002-of-00002.safetensors"
    edit_weights(second, lambda tensors: {**tensors, "embed_tokens.weight": torch.ones(64, 32)})
    edit_map(directory, lambda names: names.update({"embed_tokens.weight": second.name}))
    refused(directory, "'model.embed_tokens.weight' is there twice")


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "content, match",
    [
        ("[]", "an object is needed"), ("{}", "weight_map is None"), ('{"weight_map": []}', "weight_map is \\[\\]"),
        ('{"weight_map": {}}', "weight_map is {}"),
        ('{"weight_map": "model.safetensors"}', "weight_map is 'model.safetensors'"),
        ('{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}', "'a' appears twice"),
        ('{"weight_map": ' + "[" * 100_000, "nested too deeply"), ("", "not usable JSON"),
        (" " * ((64 << 20) + 1), "larger than the limit of 67,108,864 bytes"),
    ],
    ids=["list", "no_map", "list_map", "empty_map", "text_map", "twice", "deep", "empty", "large"],
)  # fmt: skip
def test_index_that_is_not_one(content: str, match: str, copy_of: Copy) -> None:
    directory = copy_of("sharded")
    (directory / INDEX).write_text(content, encoding="utf-8")
    refused(directory, f"{INDEX}: .*{match}")


@pytest.mark.fault(41)
def test_index_with_too_many_entries(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    many = ",".join(f'"{number}":0' for number in range(100_001))
    (directory / INDEX).write_text('{"weight_map": {' + many + "}}", encoding="utf-8")
    refused(directory, "100,001 entries, the limit is 100,000")
    few = {str(number): f"{number}.safetensors" for number in range(10_001)}
    (directory / INDEX).write_text(json.dumps({"weight_map": few}), encoding="utf-8")
    refused(directory, "names 10,001 files, the limit is 10,000")


@pytest.mark.fault(41)
def test_malformed_shard_is_named_and_no_file_stays_open(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    os.truncate(directory / "model-00002-of-00002.safetensors", 100)
    before = open_files()
    refused(directory, "model-00002-of-00002.safetensors: .*truncated")
    assert not Counter(open_files()) - Counter(before)
