"""tokenizer_config.json: which token means what, the chat template, and whether it agrees with tokenizer.json.

The file is optional and foreign; what cannot be understood in it is ignored, what contradicts tokenizer.json
is warned about (both files named), because whoever loads one through another library gets other ids.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import TokenizerConfigWarning

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class FileConfig:
    """What stands beside a tokenizer.json; ``source`` is its path, empty when there was none."""

    source: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    def token(self, role: str) -> str | None:
        value = self.values.get(role)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None


def beside(path: Path) -> FileConfig:
    """Read the configuration files in the directory of ``path``."""
    folder = path.parent
    values = _read_object(folder / "special_tokens_map.json")
    source = folder / "tokenizer_config.json"
    config = _read_object(source)
    values = {**values, **{k: v for k, v in config.items() if v is not None or k not in values}}
    template = _template(config.get("chat_template"))
    with contextlib.suppress(OSError, UnicodeDecodeError):
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return FileConfig(str(source) if config else "", values, template)


def warn_contradictions(
    config: FileConfig,
    tokenizer_file: str,
    token_to_id: Callable[[str], int | None],
    added_around: tuple[list[int], list[int]],
) -> None:
    """Warn, once per loading, about each member of the configuration that tokenizer.json does not bear out.

    ``added_around`` are the ids that the post-processor puts before and after a single sequence.
    """
    found = []
    for flag, role, ids, where in (
        ("add_bos_token", "bos_token", added_around[0], "begins"),
        ("add_eos_token", "eos_token", added_around[1], "ends"),
    ):
        wanted, token = config.values.get(flag), config.token(role)
        if not isinstance(wanted, bool) or token is None:
            continue
        present = token_to_id(token) in ids
        if wanted != present:
            found.append(
                f"{flag} is {str(wanted).lower()}, but the post_processor {'' if present else 'never '}{where} "
                f"a sequence with {role} {token!r}"
            )
    for role in _ROLES:
        token = config.token(role)
        if token is not None and token_to_id(token) is None:
            found.append(f"{role} {token!r} is not in the vocabulary")
    described = config.values.get("added_tokens_decoder")
    for key, value in described.items() if isinstance(described, dict) else ():
        content = value.get("content") if isinstance(value, dict) else None
        if isinstance(content, str) and str(token_to_id(content)) != str(key):
            found.append(
                f"added_tokens_decoder has {content!r} as id {key}, the vocabulary as {token_to_id(content)}"
            )
    if found:
        warnings.warn(
            f"{config.source} contradicts {tokenizer_file}, and tokenizer.json is followed: " + "; ".join(found[:8]),
            TokenizerConfigWarning,
            stacklevel=4,
        )


def _template(value: Any) -> str | None:
    """A template is a string, or a list of named ones of which ``default`` counts."""
    if isinstance(value, list):
        named = {v.get("name"): v.get("template") for v in value if isinstance(v, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
