"""From the name that a user gives to a directory: a local one as it is, a hub name through huggingface_hub.

A directory that exists involves nothing but the file system: no socket is opened, no cache directory is needed, and
huggingface_hub is not even imported. A path that is missing is an error, not a download. Downloads take
configuration, tokenizer and safetensors only, never a pickle and never code.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from prelude.errors import ModelError, shown
from prelude.models import installed
from prelude.models.files import check_directory, check_model

log = logging.getLogger(__name__)

WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
UNWANTED = ("original/*", "onnx/*", "openvino/*", "consolidated*")
"""The same weights again, in other layouts."""

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_NAME = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


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
            f"the form 'org/name', nor one of installed packages: {', '.join(installed.names())}"
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
