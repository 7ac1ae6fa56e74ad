"""``prelude convert MODEL FOLDER``: a model directory whose projections are packed already, and loaded by mapping.

The new directory has the files of the old one but for its weights. ``packed.safetensors`` has those of projections
(``prelude/models/packed_file.py``), ``model.safetensors`` the others as they were stored. It is written beside
``FOLDER``, under a name that no other run has, and renamed when it is whole. A run that is killed leaves that folder.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prelude.errors import ModelError
from prelude.loading.open import model_path
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.files import ModelDirectory
from prelude.models.gguf.directory import GgufDirectory, open_directory
from prelude.models.packed import PackedLinear
from prelude.models.packed_file import FORMAT, LAYOUT, PACKED_FILE, VERSION, digest, write_safetensors
from prelude.models.precision import choose
from prelude.models.read_weights import load_weights
from prelude.terminal.command_line import add_model

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".onnx", ".onnx_data", ".gguf")
"""How files end that hold weights."""
_INDEX = ".safetensors.index.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a directory or a hub name")
    parser.add_argument("folder", type=Path, help="the new directory, which is not there yet")
    add_model(parser, named=False, quantization=True)


def main(chosen: argparse.Namespace) -> int:
    told = convert(model_path(chosen.model, chosen.revision), chosen.folder, chosen.dtype, chosen.quantization)
    print(told)
    return 0


def convert(model: Path, folder: Path, dtype: str = "auto", quantization: str | None = None) -> str:
    """What was written, in a sentence."""
    if os.path.lexists(folder):
        raise ModelError(f"{folder}: is there already; give a folder that is not there")
    directory = open_directory(model)
    if isinstance(directory, GgufDirectory):
        raise ModelError(f"{model}: a GGUF file is computed in its own packed form; it is not converted")
    config = ModelConfig.from_dir(directory)
    with Checkpoint.open(directory, config) as checkpoint:
        if checkpoint.converted is not None:
            raise ModelError(f"{model}: is converted already")
        precision = choose(dtype, checkpoint, config.spec, "int8" if quantization == "int8" else None)
        made: dict[tuple[str, ...], PackedLinear] = {}
        load_weights(checkpoint, config.spec, precision.dtype, precision.packing, made)
        packed = {name for names in made for name in names}
        beside = tuple(begins for _, begins in config.beside)
        with _written_beside(folder) as whole:
            _copy_others(directory, whole, {name for name, _ in config.beside})
            packed_words = {names[0]: made[names].words for names in sorted(made)}
            listed = {
                names[0]: {
                    "packing": linear.packing,
                    "inputs": linear.inputs,
                    "parts": [[name, checkpoint.shape(name)[0]] for name in names],
                }
                for names, linear in made.items()
            }
            metadata = {
                "format": FORMAT,
                "version": VERSION,
                "layout": LAYOUT,
                "dtype": precision.rows,
                "quantization": quantization or "",
                "packing": precision.packing,
                "sha256": digest(packed_words.values()),
                "weights": json.dumps(listed),
            }
            write_safetensors(whole / PACKED_FILE, packed_words, metadata)
            others = [name for name in checkpoint.names() if name not in packed and not name.startswith(beside)]
            stored = {name: checkpoint.tensor(name).copy() for name in others}
            write_safetensors(whole / "model.safetensors", stored, {"format": "pt"})
            checkpoint.check_unchanged()
    size = sum(words.nbytes for words in packed_words.values())
    return f"{folder}: {len(made)} packed weights, {size / 1e6:,.0f} MB; {precision.reason}"


@contextmanager
def _written_beside(folder: Path) -> Iterator[Path]:
    """A new folder, which becomes ``folder`` when the caller has written it, and is deleted when the caller fails."""
    whole = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.part")
    try:
        whole.mkdir(parents=True)
        try:
            yield whole
            whole.rename(folder)
        except BaseException:
            shutil.rmtree(whole, ignore_errors=True)
            raise
    except OSError as failure:
        at = "" if failure.filename is None else f"{failure.filename}: "
        raise ModelError(
            f"{folder}: cannot be written: {at}{failure.strerror or failure}; give a folder that is not there, where "
            "this user may write and where the model has room"
        ) from failure


def _copy_others(directory: ModelDirectory, target: Path, beside: set[str]) -> None:
    """The files that hold no weights, those of ``beside``, and the folders of sentence-transformers' modules."""
    modules = [Path(folder) for _, folder in directory.modules() if folder]
    for root, folders, names in os.walk(directory.path):
        inside = Path(root).relative_to(directory.path)
        numbered = inside == Path() and not modules  # a folder of Pooling without modules.json is read too
        folders[:] = [
            name
            for name in folders
            if (numbered and name[:1].isdigit()) or any((inside / name) in (one, *one.parents) for one in modules)
        ]
        for name in names:
            own = str(inside) in (".", directory.inner) and (
                name.endswith((*_WEIGHTS, _INDEX)) and name not in beside
            )
            if own or name.startswith("."):
                continue
            (target / inside).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory.file(str(inside / name)), target / inside / name)
