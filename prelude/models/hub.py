"""From what a user typed to a directory: a local one as it is, a hub name through huggingface_hub.

A directory that exists always wins and involves nothing but the file system: no socket is opened,
no cache directory is needed, and huggingface_hub is not even imported. Downloads take configuration,
tokenizer and safetensors only, never a pickle and never code.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from prelude.errors import ModelError, shown
from prelude.models.files import check_directory

WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
UNWANTED = ("original/*", "onnx/*", "openvino/*", "consolidated*")
"""The same weights again, in other layouts."""

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_NAME = re.compile(rf"(?:{_PART}/)?{_PART}")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def resolve(
    path_or_name: str | os.PathLike[str], *, revision: str | None = None, cache_dir: str | Path | None = None
) -> Path:
    """The model directory meant by ``path_or_name``.

    A path object is always a path. A string is a path if something is there, or if it can be nothing
    else; otherwise it is a hub name, looked for in the local cache alone where ``HF_HUB_OFFLINE`` is set.
    """
    if isinstance(path_or_name, os.PathLike):
        return check_directory(path_or_name)
    if not isinstance(path_or_name, str) or not path_or_name or "\0" in path_or_name:
        raise ModelError(f"model is {shown(path_or_name)}: a directory or a hub name such as 'org/name' is needed")
    text = os.path.expanduser(path_or_name) if path_or_name.startswith("~") else path_or_name
    if os.path.lexists(text):
        return check_directory(text)
    if not _HUB_NAME.fullmatch(text) or ".." in text or "--" in text or len(text) > 96:
        raise ModelError(f"{shown(path_or_name)}: no such directory, and not a hub name such as 'org/name'")
    return _download(text, revision, cache_dir)


def _download(name: str, revision: str | None, cache_dir: str | Path | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as failure:
        raise ModelError(
            f"{name}: no such directory; to load it from the hub, pip install 'prelude-engine[engine]'"
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
            f"{name}: no such directory, and not loaded from the hub: {way_out} ({failure})"
        ) from failure
    return check_directory(found)
