"""The file of a fitted question: safetensors.

    weight [labels, inputs], bias [labels]      F32
    scope [n, inputs]                           F32; none where it has no scope
    knots [k]                                   F64; the same
    metadata    format, version                 "prelude-head", "1"
                question                        JSON: name, kind, labels and the other facts of a ``FittedQuestion``
                report                          JSON of the ``FitReport``; none where it has none

The file is untrusted: it is bounded as a checkpoint is, and its values pass the checks of ``from_arrays``.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from prelude.errors import CheckpointError, UnsupportedModel, shown
from prelude.fitting.report import Scope, report_of
from prelude.models.packed_file import write_safetensors
from prelude.models.safetensors_file import SafetensorsFile
from prelude.values.arrays import F32
from prelude.values.strict_json import parse

FORMAT, VERSION = "prelude-head", "1"
FACTS = ("name", "kind", "labels", "question", "prompt_name", "pooling", "model")
MOST_KNOTS = 1 << 16


def write(path: Path, weight: F32, bias: F32, facts: dict[str, Any]) -> None:
    """``facts``: the keywords of ``from_arrays``."""
    scope, report = facts["scope"], facts["report"]
    said = {name: facts[name] for name in FACTS}
    arrays: dict[str, Any] = {"weight": weight, "bias": bias}
    if scope is not None:
        said["keep"] = scope.keep
        arrays |= {"scope": scope.rows, "knots": np.array(scope.knots)}
    metadata = {"format": FORMAT, "version": VERSION, "question": json.dumps(said)}
    if report is not None:
        metadata["report"] = json.dumps(asdict(report))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        made = Path(folder, path.name)
        write_safetensors(made, arrays, metadata)
        os.replace(made, path)


def read(path: Path) -> dict[str, Any]:
    """The arguments of ``from_arrays``, which checks their values."""
    file = SafetensorsFile(path)
    try:
        return _read(file, path)
    finally:
        file.close()


def _read(file: SafetensorsFile, path: Path) -> dict[str, Any]:
    metadata = file.metadata
    for key, wanted in (("format", FORMAT), ("version", VERSION)):
        if metadata.get(key) != wanted:
            raise UnsupportedModel(
                f"{path}: unsupported: {key} {shown(metadata.get(key))}, this version of prelude has {wanted!r}"
            )
    facts = _object(metadata.get("question", ""), f"{path}: question")
    scoped = "scope" in file
    names = {*FACTS, "keep"} if scoped else {*FACTS}
    arrays = {"weight", "bias", "scope", "knots"} if scoped else {"weight", "bias"}
    if facts.keys() != names or {*file} != arrays:
        said = f"fields {shown(sorted(facts))} and tensors {shown(sorted(file))} are no question"
        raise CheckpointError(f"{path}: {said}")
    if not isinstance(facts["labels"], list) or not isinstance(facts["model"], str):
        raise CheckpointError(f"{path}: labels {shown(facts['labels'])}, model {shown(facts['model'])}")
    facts |= {"weight": _tensor(file, "weight"), "bias": _tensor(file, "bias")}
    if scoped:
        facts["scope"] = _scope(file, path, facts.pop("keep"), facts["weight"].shape[1:])
    if "report" in metadata:
        facts["report"] = report_of(_object(metadata["report"], f"{path}: report"), f"{path}: report")
    return facts


def _scope(file: SafetensorsFile, path: Path, keep: Any, inputs: tuple[int, ...]) -> Scope:
    rows, knots = _tensor(file, "scope"), np.array(file.tensor("knots"))
    sound = knots.ndim == 1 and 2 <= len(knots) <= MOST_KNOTS and knots.dtype == np.float64
    if not sound or not np.isfinite(knots).all() or (np.diff(knots) < 0).any():
        raise CheckpointError(f"{path}: knots are 2 to {MOST_KNOTS} ascending numbers of F64")
    if not isinstance(keep, float) or not 0 < keep <= 1:
        raise CheckpointError(f"{path}: keep is {shown(keep)}; it takes a number from 0 to 1")
    if rows.shape[1:] != inputs or not rows.size:
        raise CheckpointError(f"{path}: scope {list(rows.shape)} beside {list(inputs)} inputs")
    return Scope(rows, tuple(knots.tolist()), keep)


def _tensor(file: SafetensorsFile, name: str) -> Any:
    info = file.tensors.get(name)
    if info is None or info.dtype != "F32":
        raise CheckpointError(f"{file.path}: tensor {name!r} of F32 is missing")
    return np.array(file.tensor(name))


def _object(text: str, where: str) -> dict[str, Any]:
    found = parse(text, where, CheckpointError)
    if not isinstance(found, dict):
        raise CheckpointError(f"{where}: {shown(found)} is not an object")
    return found
