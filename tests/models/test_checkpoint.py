"""A model directory: weights against config, index and links, memory, what happens to the files later."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from prelude.errors import CheckpointError, InsufficientMemory, ModelError, UnsupportedModel
from prelude.models import checkpoint as checkpoint_module
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig, expected_tensors
from prelude.models.safetensors_file import MAX_TENSORS, SafetensorsFile

from .conftest import edit_json, edit_weights, reference_weights

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
Copy = Callable[[str], Path]


def open_checkpoint(directory: Path, **options: Any) -> Checkpoint:
    return Checkpoint.open(directory, ModelConfig.from_dir(directory), **options)


def refused(directory: Path, match: str, error: type[ModelError] = CheckpointError, **options: Any) -> None:
    with pytest.raises(error, match=match) as failure:
        open_checkpoint(directory, **options)
    assert len(str(failure.value)) < 1000


# -- what loads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["untied", "tied", "bf16", "sharded", "sharded_tied", "biased", "multi_query"])
def test_weights_equal_those_of_the_reference(kind: str, checkpoint_dir: Copy) -> None:
    directory = checkpoint_dir(kind)
    reference = reference_weights(directory)
    assert (len(list(directory.glob("*.safetensors"))) > 1) == ("shard" in kind)
    with open_checkpoint(directory, scan=True) as checkpoint:
        assert checkpoint.head == ("tied" if kind.endswith("tied") and kind != "untied" else "own")
        assert checkpoint.names() == list(checkpoint) == list(expected_tensors(checkpoint.config))
        assert set(checkpoint.names()) == set(reference) and len(checkpoint) == len(reference)
        for name, value in reference.items():
            assert torch.equal(checkpoint.tensor(name), value) and checkpoint.tensor(name).dtype == value.dtype
            assert checkpoint.shape(name) == tuple(value.shape)
        elements = sum(value.numel() for value in reference.values())
        assert checkpoint.nbytes() == sum(value.nbytes for value in reference.values())
        assert checkpoint.nbytes(torch.float32) == 4 * elements
        weights = checkpoint.load(torch.float32)
    for name, value in reference.items():
        assert weights[name].dtype == torch.float32 and torch.equal(weights[name], value.float())


def test_loaded_weights_give_the_logits_of_transformers(checkpoint_dir: Copy) -> None:
    from transformers import AutoModelForCausalLM

    directory = checkpoint_dir("sharded")
    with open_checkpoint(directory) as checkpoint:
        weights = checkpoint.load(torch.float32)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(ids).logits
        for parameter in model.parameters():
            parameter.zero_()
        model.load_state_dict(weights)
        assert torch.equal(model(ids).logits, expected)


@pytest.mark.fault(42)
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_names_with_and_without_prefix(kind: str, copy_of: Copy) -> None:
    directory = copy_of(kind)
    with open_checkpoint(directory) as checkpoint:
        expected = checkpoint.load(torch.float32)
    edit_weights(directory / FILE, lambda tensors: {k.removeprefix("model."): v for k, v in tensors.items()})
    with open_checkpoint(directory) as checkpoint:
        found = checkpoint.load(torch.float32)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.fault(42)
def test_mixed_dtypes_are_converted_tensor_by_tensor(copy_of: Copy) -> None:
    directory = copy_of("tied")
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    edit_weights(
        directory / FILE, lambda tensors: {k: t.to(kinds[i % 4]) for i, (k, t) in enumerate(tensors.items())}
    )
    reference = reference_weights(directory)
    with open_checkpoint(directory) as checkpoint:
        assert {checkpoint.tensor(name).dtype for name in checkpoint} == set(kinds)
        for dtype in (torch.float32, torch.bfloat16):
            weights = checkpoint.load(dtype)
            assert all(torch.equal(weights[name], reference[name].to(dtype)) for name in reference)


def test_buffers_of_old_versions_are_ignored(copy_of: Copy) -> None:
    directory = copy_of("tied")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(directory / FILE, lambda tensors: {**tensors, name: torch.ones(4)})
    with open_checkpoint(directory) as checkpoint:
        assert name not in checkpoint.names()


def test_one_file_is_preferred_to_an_index(copy_of: Copy, caplog: pytest.LogCaptureFixture) -> None:
    directory = copy_of("tied")
    (directory / INDEX).write_text("nonsense")
    open_checkpoint(directory).close()
    assert "the index is not used" in caplog.text


# -- 42: the set of tensors, shapes, types --------------------------------------------------------

NORM = "model.layers.1.post_attention_layernorm.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


def plus(**added: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {**tensors, **{name.replace("__", "."): value for name, value in added.items()}}


def replaced(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {**tensors, name: change(tensors[name]).contiguous()}


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "change, match",
    [
        (without(NORM), f"tensor '{NORM}' is missing"),
        (without(NORM, Q_PROJ), "2 tensors .* are missing"),
        (without("model.embed_tokens.weight"), "embed_tokens.weight' is missing"),
        (lambda tensors: {"x": torch.ones(1)}, "24 tensors .* are missing"),
        (plus(model__layers__2__mlp__up_proj__weight=torch.ones(1)), "layers.2.mlp.up_proj.weight' is not part"),
        (plus(model__layers__0__self_attn__q_proj__bias=torch.ones(32)), "q_proj.bias' is not part"),
        (plus(something=torch.ones(1)), "'model.something' is not part"),
        (replaced(NORM, lambda t: t[:-1]), f"{NORM} has shape \\[31\\], config.json implies \\[32\\]"),
        (replaced(NORM, lambda t: t[None]), f"{NORM} has shape \\[1, 32\\]"),
        (replaced(NORM, lambda t: t[:0]), f"{NORM} has shape \\[0\\]"),
        (replaced("model.layers.0.mlp.up_proj.weight", lambda t: t.T), "shape \\[32, 48\\], .*\\[48, 32\\]"),
        (replaced("model.embed_tokens.weight", lambda t: t[:60]), "shape \\[60, 32\\]"),
        (plus(norm__weight=torch.ones(32)), "'model.norm.weight' is there twice"),
    ],
)
def test_tensors_that_are_not_what_the_config_implies(change: Any, match: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_weights(directory / FILE, change)
    refused(directory, match)


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "changes, match",
    [
        ({"num_hidden_layers": 3, "layer_types": None}, "11 tensors .* are missing"),
        ({"num_hidden_layers": 1, "layer_types": None}, "11 tensors .* are not part"),
        ({"hidden_size": 64}, "has shape .*, config.json implies"),
        ({"vocab_size": 65}, "embed_tokens.weight has shape \\[64, 32\\], config.json implies \\[65, 32\\]"),
        ({"attention_bias": True}, "8 tensors .* are missing"),
    ],
)
def test_config_that_does_not_fit_the_weights(changes: dict[str, Any], match: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_json(directory / "config.json", **changes)
    refused(directory, match)


@pytest.mark.fault(42)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool, torch.int64])
def test_weights_that_are_not_floats(dtype: torch.dtype, copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_weights(directory / FILE, replaced(Q_PROJ, lambda t: t.to(dtype)))
    refused(directory, f"unsupported: tensor {Q_PROJ} is stored as", UnsupportedModel)


@pytest.mark.fault(42)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["tied", "bf16"])
def test_scan_finds_what_is_not_finite(value: float, kind: str, copy_of: Copy) -> None:
    directory = copy_of(kind)

    def spoil(weight: torch.Tensor) -> torch.Tensor:
        weight[3, 5] = weight[0, 0] = value
        return weight

    edit_weights(directory / FILE, replaced(Q_PROJ, spoil))
    open_checkpoint(directory).close()
    refused(directory, f"{Q_PROJ}: 2 of 1,024 values are NaN or infinite", scan=True)


@pytest.mark.fault(42)
def test_untied_without_a_head_is_an_error(copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_json(directory / "config.json", tie_word_embeddings=False)
    refused(directory, "lm_head.weight is missing and tie_word_embeddings is false; .*set tie_word_embeddings")


@pytest.mark.fault(42)
def test_untied_body_saved_alone_has_no_head(copy_of: Copy, caplog: pytest.LogCaptureFixture) -> None:
    directory = copy_of("untied")
    edit_weights(
        directory / FILE,
        lambda tensors: {k.removeprefix("model."): v for k, v in tensors.items() if k != "lm_head.weight"},
    )
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "none" and "lm_head.weight" not in checkpoint.names()
    assert "no logits" in caplog.text


def test_architecture_without_a_head_ignores_one(copy_of: Copy) -> None:
    directory = copy_of("untied")
    edit_json(directory / "config.json", architectures=["Qwen3Model"])
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "none" and "lm_head.weight" not in checkpoint.names()


@pytest.mark.fault(42)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tied_with_an_identical_head_ignores_it(
    dtype: torch.dtype, copy_of: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    directory = copy_of("tied")
    edit_weights(
        directory / FILE, lambda t: {**t, "lm_head.weight": t["model.embed_tokens.weight"].to(dtype, copy=True)}
    )
    with caplog.at_level(logging.WARNING), open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "tied" and "lm_head.weight" not in checkpoint.names()
    assert not caplog.text


@pytest.mark.fault(42)
def test_tied_with_another_head_uses_it_as_the_reference_does(
    copy_of: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModelForCausalLM

    directory = copy_of("tied")
    edit_weights(directory / FILE, lambda t: {**t, "lm_head.weight": torch.ones(64, 32)})
    with caplog.at_level(logging.WARNING), open_checkpoint(directory) as checkpoint:
        assert checkpoint.head == "own" and checkpoint.names()[-1] == "lm_head.weight"
        assert torch.equal(checkpoint.tensor("lm_head.weight"), torch.ones(64, 32))
    assert "lm_head.weight differs from the embeddings" in caplog.text
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert torch.equal(model.lm_head.weight, torch.ones(64, 32))


@pytest.mark.fault(42)
def test_tied_with_a_head_of_another_shape(copy_of: Copy) -> None:
    directory = copy_of("tied")
    edit_weights(directory / FILE, lambda t: {**t, "lm_head.weight": torch.ones(63, 32)})
    refused(directory, "lm_head.weight has shape \\[63, 32\\]")


def test_unknown_weight(checkpoint_dir: Copy) -> None:
    with open_checkpoint(checkpoint_dir("tied")) as checkpoint, pytest.raises(CheckpointError, match="no weight 'a'"):
        checkpoint.tensor("a")


# -- 41: the index --------------------------------------------------------------------------------


def edit_map(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    raw = json.loads((directory / INDEX).read_text())
    change(raw["weight_map"])
    (directory / INDEX).write_text(json.dumps(raw))


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "..",
        ".",
        "",
        "./model-00001-of-00002.safetensors",
        "sub/model.safetensors",
        "/ABSOLUTE/outside.safetensors",
        "..\\outside.safetensors",
        "C:outside.safetensors",
        "model\0.safetensors",
        "model\n.safetensors",
        ".hidden.safetensors",
        "pytorch_model.bin",
        "config.json",
        "~/outside.safetensors",
        "x" * 300 + ".safetensors",
        None,
        7,
        ["model-00001-of-00002.safetensors"],
        {"a": 1},
    ],
)
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


@pytest.mark.fault(41)
@pytest.mark.parametrize("name", [FILE, "config.json", "generation_config.json"])
def test_any_other_file_that_links_out_of_the_directory(name: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    (directory / name).rename(directory.parent / "elsewhere")
    (directory / name).symlink_to("../elsewhere")
    refused(directory, "a link that leads out of the model directory", ModelError)


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
        assert len(checkpoint.load(torch.float32)) == len(reference_weights(checkpoint_dir(kind)))


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "repository, store",
    [
        ("other/org--name", "other/org--name/blobs"),
        ("hub/models--org--name", "hub/models--org--other/blobs"),
        ("hub/models--org--name", "elsewhere/blobs"),
        ("hub/models--org--name", "hub/models--org--name/refs"),
    ],
)
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
    edit_map(directory, lambda names: names.update({NORM: "model-00001-of-00002.safetensors"}))
    refused(directory, f"00001-of.*: tensor '{NORM}' is missing; it lies in model-00002")


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
        ("[]", "an object is needed"),
        ("{}", "weight_map is None"),
        ('{"weight_map": []}', "weight_map is \\[\\]"),
        ('{"weight_map": {}}', "weight_map is {}"),
        ('{"weight_map": "model.safetensors"}', "weight_map is 'model.safetensors'"),
        ('{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}', "'a' appears twice"),
        ('{"weight_map": ' + "[" * 100_000, "nested too deeply"),
        ("", "not usable JSON"),
        (" " * (65 << 20), "larger than the limit"),
    ],
    ids=["list", "no_map", "list_map", "empty_map", "text_map", "twice", "deep", "empty", "large"],
)
def test_index_that_is_not_one(content: str, match: str, copy_of: Copy) -> None:
    directory = copy_of("sharded")
    (directory / INDEX).write_text(content)
    refused(directory, f"{INDEX}: .*{match}")


@pytest.mark.fault(41)
def test_index_with_too_many_entries(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    many = {str(number): "a" for number in range(1_000_000)}
    (directory / INDEX).write_text(json.dumps({"weight_map": many}))
    refused(directory, f"1,000,000 entries, the limit is {MAX_TENSORS:,}")
    few = {str(number): f"{number}.safetensors" for number in range(20_000)}
    (directory / INDEX).write_text(json.dumps({"weight_map": few}))
    refused(directory, "names 20,000 files, the limit is 10,000")


@pytest.mark.fault(41)
def test_malformed_shard_is_named_and_no_file_stays_open(copy_of: Copy) -> None:
    directory = copy_of("sharded")
    os.truncate(directory / "model-00002-of-00002.safetensors", 100)
    before = len(os.listdir("/proc/self/fd"))
    refused(directory, "model-00002-of-00002.safetensors: .*truncated")
    assert len(os.listdir("/proc/self/fd")) == before


# -- 45: pickles ----------------------------------------------------------------------------------


@pytest.mark.fault(45)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "epoch.ckpt"])
def test_pickles_alone_are_refused_unread(name: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    marker = directory / "was_run"
    payload = b"cbuiltins\nopen\n(V" + str(marker).encode() + b"\nVw\ntR."
    (directory / FILE).unlink()
    (directory / name).write_bytes(payload)
    refused(directory, f"only pickled weights \\({name}\\).*save_pretrained", ModelError)
    assert not marker.exists()


@pytest.mark.fault(45)
def test_pickles_beside_safetensors_are_left_alone(copy_of: Copy) -> None:
    directory = copy_of("tied")
    (directory / "pytorch_model.bin").write_bytes(b"not a pickle")
    open_checkpoint(directory).close()


@pytest.mark.fault(45)
def test_no_weights_at_all(copy_of: Copy) -> None:
    directory = copy_of("tied")
    (directory / FILE).rename(directory / "weights.safetensors")
    refused(directory, "weights.safetensors.* but neither model.safetensors nor")
    (directory / "weights.safetensors").unlink()
    refused(directory, "no weights: model.safetensors or", ModelError)


# -- 47: the directory, before and after ----------------------------------------------------------


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody whom permissions stop."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.fault(47)
def test_directory_that_is_missing_or_a_file(copy_of: Copy) -> None:
    directory = copy_of("tied")
    with pytest.raises(ModelError, match="no such directory"):
        ModelConfig.from_dir(directory / "nothing")
    with pytest.raises(ModelError, match=r"a file; give the directory that holds config\.json"):
        ModelConfig.from_dir(directory / FILE)
    with pytest.raises(ModelError, match="cannot be read"):
        ModelConfig.from_dir("a\0b")
    config = ModelConfig.from_dir(directory)
    with pytest.raises(ModelError, match="no such directory"):
        Checkpoint.open(directory / "nothing", config)
    (directory / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        ModelConfig.from_dir(directory)


@pytest.mark.fault(47)
@pytest.mark.parametrize("name", [".", "config.json", FILE])
def test_what_may_not_be_read(name: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    for parent in directory.parents[:3]:  # those of the test run itself are private
        parent.chmod(0o755)
    (directory / name).chmod(0)
    try:
        with unprivileged():
            refused(directory, "cannot be .*: Permission denied", ModelError)
    finally:
        (directory / name).chmod(0o755)


@pytest.mark.fault(47)
@pytest.mark.parametrize("kind", ["tied", "sharded"])
def test_files_deleted_or_overwritten_after_loading(kind: str, copy_of: Copy) -> None:
    directory = copy_of(kind)
    reference = reference_weights(directory)
    dtype = torch.bfloat16 if kind == "sharded" else torch.float32  # no conversion: a copy all the same
    with open_checkpoint(directory) as checkpoint:
        weights = checkpoint.load(dtype)
    assert str(directory) not in Path("/proc/self/maps").read_text()
    for path in directory.iterdir():
        path.write_bytes(b"\xff" * 64)  # truncated and overwritten in place: a mapping would fault
    shutil.rmtree(directory)
    assert all(torch.equal(weights[name], value) for name, value in reference.items())


@pytest.mark.fault(47)
def test_deleted_or_replaced_between_opening_and_loading(copy_of: Copy) -> None:
    directory = copy_of("tied")
    reference = reference_weights(directory)
    with open_checkpoint(directory) as checkpoint:
        shutil.rmtree(directory)
        weights = checkpoint.load(torch.float32)
    assert all(torch.equal(weights[name], value) for name, value in reference.items())


@pytest.mark.fault(47)
def test_overwritten_between_opening_and_loading(copy_of: Copy) -> None:
    directory = copy_of("tied")
    with open_checkpoint(directory) as checkpoint:
        with open(directory / FILE, "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"\0" * 8)
        os.utime(directory / FILE, ns=(1, 1))
        with pytest.raises(CheckpointError, match="changed while it was being loaded"):
            checkpoint.load(torch.float32)


# -- 48: memory -----------------------------------------------------------------------------------


@pytest.mark.fault(48)
def test_not_enough_memory_is_said_before_anything_is_read(
    checkpoint_dir: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(*_: Any) -> Any:
        raise RuntimeError("read before memory was checked")

    with open_checkpoint(checkpoint_dir("untied")) as checkpoint:
        needed = checkpoint.nbytes(torch.float32)
        monkeypatch.setattr(checkpoint_module, "available_memory", lambda: needed - 1)
        monkeypatch.setattr(SafetensorsFile, "tensor", touched)
        with pytest.raises(InsufficientMemory, match=f"needs {needed:,} bytes .*{needed - 1:,} bytes") as failure:
            checkpoint.load(torch.float32)
        assert (failure.value.needed, failure.value.available) == (needed, needed - 1)
        checkpoint.require_memory(torch.bfloat16)
        monkeypatch.setattr(checkpoint_module, "available_memory", lambda: None)
        checkpoint.require_memory(torch.float32)


@pytest.mark.fault(48)
def test_file_larger_than_memory_is_refused_without_touching_it(tmp_path: Path) -> None:
    """A sparse file of eight TiB: mapped and checked, and then there is no room for its copy."""
    sizes = {"hidden_size": 1 << 20, "vocab_size": 1 << 21, "intermediate_size": 4, "num_hidden_layers": 1}
    config = ModelConfig.from_dict(
        {
            **sizes,
            "architectures": ["Qwen3ForCausalLM"],
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 2,
            "max_position_embeddings": 16,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e4,
            "tie_word_embeddings": True,
        }
    )
    header: dict[str, Any] = {}
    end = 0
    for name, shape in expected_tensors(config).items():
        begin, end = end, end + 4 * int(torch.Size(shape).numel())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (tmp_path / FILE).write_bytes(len(text).to_bytes(8, "little") + text)
    try:
        os.truncate(tmp_path / FILE, 8 + len(text) + end)
    except OSError:
        pytest.skip("this file system has no sparse files of that size")
    with (
        Checkpoint.open(tmp_path, config) as checkpoint,
        pytest.raises(InsufficientMemory, match=r"needs 8,7\d\d,.* are available"),
    ):
        checkpoint.load(torch.float32)


# -- 49: a bare process ---------------------------------------------------------------------------

BARE = """
import sys, torch
directory = sys.argv[1]
def forbid(event, arguments):
    if event.startswith("socket.") or event in ("os.mkdir", "os.rename", "os.remove", "subprocess.Popen"):
        raise SystemError(f"{event} {arguments}")
    if event == "open" and (set(str(arguments[1] or "r")) & set("wax+") or arguments[2] & 0o103):
        raise SystemError(f"{event} {arguments}")
sys.addaudithook(forbid)
from prelude.models.hub import resolve
from prelude.models.config import ModelConfig
from prelude.models.checkpoint import Checkpoint
path = resolve(directory)
with Checkpoint.open(path, ModelConfig.from_dir(path), scan=True) as checkpoint:
    weights = checkpoint.load(torch.float32)
loaded = [name for name in ("huggingface_hub", "transformers", "safetensors") if name in sys.modules]
print(len(weights), loaded)
"""


@pytest.mark.fault(49)
@pytest.mark.parametrize("optimised", [False, True])
def test_no_home_no_network_nothing_written(optimised: bool, copy_of: Copy) -> None:
    directory = copy_of("sharded")
    directory.chmod(0o555)
    root = str(Path(checkpoint_module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-B", *(["-O"] if optimised else []), "-c", BARE, str(directory)],
        env={"PYTHONPATH": root},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    directory.chmod(0o755)
    assert done.stdout.split() == ["25", "[]"], done.stderr
