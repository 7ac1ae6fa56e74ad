"""A model directory as a thing on a disk: pickles, permissions, later changes, memory, a bare process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from prelude import Engine, EngineConfig, ExpertConfig, default_model
from prelude.errors import CheckpointError, InsufficientMemory, ModelError
from prelude.models import checkpoint as checkpoint_module
from prelude.models import memory, read_weights
from prelude.models.arrays import FLOAT32
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.read_weights import load_weights
from prelude.tools import convert
from tests.checkpoints import TINY, make_checkpoint, write_checkpoint
from tests.patience import shown
from tests.tensors import torch_of

from .conftest import FILE, Copy, edit_weights, loaded, open_checkpoint, reference_weights, refused

# -- 45: pickles -----------------------------------------------------------------------------------


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


# -- 47: the directory, before and after -----------------------------------------------------------


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """As a user that permissions stop."""
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
    with pytest.raises(ModelError, match="no such file or directory"):
        ModelConfig.from_dir(directory / "nothing")
    with pytest.raises(ModelError, match=r"a file; give the directory that holds config\.json"):
        ModelConfig.from_dir(directory / FILE)
    with pytest.raises(ModelError, match="cannot be read"):
        ModelConfig.from_dir("a\0b")
    config = ModelConfig.from_dir(directory)
    with pytest.raises(ModelError, match="no such file or directory"):
        Checkpoint.open(directory / "nothing", config)
    (directory / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        ModelConfig.from_dir(directory)


@pytest.mark.fault(47)
@pytest.mark.parametrize("name", [".", "config.json", FILE])
def test_files_that_may_not_be_read(name: str, copy_of: Copy) -> None:
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
    with open_checkpoint(directory) as checkpoint:
        weights = loaded(checkpoint)
    assert str(directory) not in Path("/proc/self/maps").read_text(encoding="utf-8")
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
        weights = loaded(checkpoint)
    assert all(torch.equal(weights[name], value) for name, value in reference.items())


@pytest.mark.fault(47)
@pytest.mark.parametrize("size", [0, 8])
def test_overwritten_between_opening_and_loading(size: int, copy_of: Copy) -> None:
    directory = copy_of("tied")
    with open_checkpoint(directory) as checkpoint:
        checkpoint.check_unchanged()
        before = (directory / FILE).stat()
        os.truncate(directory / FILE, before.st_size + size)
        os.utime(directory / FILE, ns=(1, before.st_mtime_ns + (size == 0)))
        for use in (checkpoint.check_unchanged, lambda: loaded(checkpoint)):
            with pytest.raises(CheckpointError, match="changed while it was being loaded"):
                use()


def test_overwritten_while_an_engine_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwritten(*given: Any) -> Any:
        weights = load_weights(*given)
        os.utime(path / FILE, ns=(1, (path / FILE).stat().st_mtime_ns + 1))
        return weights

    path, made = make_checkpoint(tmp_path), tmp_path / "converted"
    for module, use in ((read_weights, Engine.from_pretrained), (convert, lambda path: convert.convert(path, made))):
        monkeypatch.setattr(module, "load_weights", overwritten)
        with pytest.raises(CheckpointError, match="changed while it was being loaded"):
            use(path)
    assert not made.exists()


# -- 48: memory ------------------------------------------------------------------------------------


@pytest.mark.fault(48)
def test_not_enough_memory_is_said_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> Any:
        raise RuntimeError("read before memory was checked")

    path = make_checkpoint(tmp_path)
    with open_checkpoint(path) as checkpoint:
        needed = checkpoint.nbytes(4)
    monkeypatch.setattr(memory, "available_memory", lambda: needed - 1)
    monkeypatch.setattr(Checkpoint, "finite", touched)
    with pytest.raises(InsufficientMemory, match=f"needs {needed:,} bytes .*{needed - 1:,} bytes") as failure:
        Engine.from_pretrained(path)
    assert (failure.value.needed, failure.value.available) == (needed, needed - 1)


@pytest.mark.fault(48)
def test_file_larger_than_memory_is_refused_without_touching_it(tmp_path: Path) -> None:
    """A sparse file of eight TiB: mapped and checked, and then there is no room for its copy."""
    sizes = {"hidden_size": 1 << 20, "vocab_size": 1 << 21, "intermediate_size": 4, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(
        json.dumps(
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
        ),
        encoding="utf-8",
    )
    shutil.copy(default_model.path() / "tokenizer.json", tmp_path / "tokenizer.json")
    config = ModelConfig.from_dir(tmp_path)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in config.spec.tensors().items():
        begin, end = end, end + 4 * int(torch.Size(shape).numel())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (tmp_path / FILE).write_bytes(len(text).to_bytes(8, "little") + text)
    try:
        os.truncate(tmp_path / FILE, 8 + len(text) + end)
    except OSError:
        pytest.skip("this file system has no sparse files of that size")
    with pytest.raises(InsufficientMemory, match=r"needs 8,7\d\d,.* are available"):
        Engine.from_pretrained(tmp_path)


PEAK = """
import re, sys
from prelude.models.arrays import FLOAT32
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.read_weights import load_weights
def now(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
config = ModelConfig.from_dir(sys.argv[1])
with Checkpoint.open(sys.argv[1], config) as checkpoint:
    before = now("VmRSS")
    weights = load_weights(checkpoint, config.spec, FLOAT32, *sys.argv[2:])
    print(now("VmHWM") - before, weights.nbytes, now("RssFile"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize(
    "dtype, packing", [("float32", []), ("bfloat16", []), ("bfloat16", ["widened"]), ("float16", ["float16"])]
)
def test_loading_takes_its_copies_and_not_the_files_beside_them(
    dtype: str, packing: list[str], tmp_path: Path
) -> None:
    """170 MB of weights in float32, half of it where two bytes are kept, the largest has 4; a file that stayed would
    add half or all of that."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 10, "vocab_size": 2048}
    write_checkpoint(tmp_path, {**TINY, **sizes, "num_attention_heads": 8, "head_dim": 64}, dtype=dtype)
    seen = []

    def takes_its_copies() -> bool:
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path), *packing],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            # Freed copies go back to the system at once: how many glibc keeps differs from run to run, by half of the
            # weights and more.
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)},
        )
        peak, weights, _ = map(int, done.stdout.split())
        assert 144 << 20 < weights * (2 if packing else 1) < 200 << 20
        seen.append(f"{peak:,} bytes for {weights:,} of weights")
        return peak < weights + (48 << 20)

    assert shown(takes_its_copies, 3), seen


def test_a_released_weight_is_still_there(checkpoint_dir: Copy) -> None:
    reference = reference_weights(checkpoint_dir("untied"))
    with open_checkpoint(checkpoint_dir("untied")) as checkpoint:
        views = {name: checkpoint.tensor(name) for name in checkpoint}
        assert all(torch.equal(torch_of(view), reference[name]) for name, view in views.items())


@pytest.mark.fault(48)
def test_memory_that_ends_while_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError

    make_checkpoint(tmp_path)
    monkeypatch.setattr(read_weights, "load_weights", fail)
    with pytest.raises(InsufficientMemory, match=r"ended while loading; weights and states need \d+ bytes"):
        Engine.from_pretrained(tmp_path, config=EngineConfig(expert=ExpertConfig(kv_blocks=8)))


# -- the contents of the files ---------------------------------------------------------------------


@pytest.mark.fault(42)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named_at_load(value: float, copy_of: Copy) -> None:
    directory = copy_of("bf16")
    name = "model.layers.1.mlp.down_proj.weight"

    def spoil(tensors: dict[str, Any]) -> None:
        tensors[name][3, 4] = value

    edit_weights(directory / FILE, spoil)
    with (
        open_checkpoint(directory) as checkpoint,
        pytest.raises(CheckpointError, match=f"{name}: 1 of 1,536 values are NaN or infinite"),
    ):
        load_weights(checkpoint, checkpoint.config.spec, FLOAT32)


def test_large_weights_whose_sum_overflows_are_finite(copy_of: Copy) -> None:
    directory = copy_of("tied")
    name = "model.embed_tokens.weight"
    edit_weights(directory / FILE, lambda tensors: {**tensors, name: torch.full_like(tensors[name], 3e38)})
    with open_checkpoint(directory) as checkpoint:
        checkpoint.scan()


@pytest.mark.fault(42)
def test_weights_of_heads_that_the_model_does_not_have(copy_of: Copy, caplog: pytest.LogCaptureFixture) -> None:
    directory = copy_of("untied")
    edit_weights(directory / FILE, lambda tensors: {**tensors, "value_head.weight": torch.ones(1, 32)})
    with open_checkpoint(directory) as checkpoint:
        assert len(checkpoint) == len(reference_weights(directory)) - 1
    assert "tensor 'value_head.weight' is not part of a Qwen3ForCausalLM and ignored" in caplog.text


@pytest.mark.parametrize("name", [FILE, "config.json", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named(name: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    shutil.copy(default_model.path() / "tokenizer.json", directory)
    (directory / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", encoding="utf-8"
    )
    with pytest.raises(ModelError, match=rf"{name}: a git-LFS pointer, not the file itself; run `git lfs pull`"):
        Engine.from_pretrained(directory)


@pytest.mark.parametrize("content", ["{", '{"model": {"type": "BPE"}}', "[]"])
def test_a_bad_tokenizer_file_is_a_model_error_that_names_it(content: str, copy_of: Copy) -> None:
    directory = copy_of("tied")
    (directory / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=rf"{directory}/tokenizer.json: not a usable tokenizer: "):
        Engine.from_pretrained(directory)


# -- 49: a bare process ----------------------------------------------------------------------------


BARE = """
import sys
directory = sys.argv[1]
def forbid(event, arguments):
    if event.startswith("socket.") or event in ("os.mkdir", "os.rename", "os.remove", "subprocess.Popen"):
        raise SystemError(f"{event} {arguments}")
    if event == "open" and (set(str(arguments[1] or "r")) & set("wax+") or arguments[2] & 0o103):
        raise SystemError(f"{event} {arguments}")
sys.addaudithook(forbid)
from prelude.models.names import resolve
from prelude.models.config import ModelConfig
from prelude.models.arrays import FLOAT32
from prelude.models.checkpoint import Checkpoint
path = resolve(directory)
with Checkpoint.open(path, ModelConfig.from_dir(path), scan=True) as checkpoint:
    weights = [checkpoint.tensor(name).copy() for name in checkpoint]
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
        check=False,
    )
    directory.chmod(0o755)
    assert done.stdout.split() == ["25", "[]"], done.stderr
