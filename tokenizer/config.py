"""tokenizer_config.json: the special tokens by name, the chat template, and whether it agrees with tokenizer.json.

The file is optional and foreign. Entries that cannot be understood are ignored. An entry that contradicts
tokenizer.json is warned about (both files named), because another library that loads it gets other ids.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from .backends.files import SETTINGS_LIMIT, TEMPLATE_LIMIT, read_plain
from .errors import TokenizerConfigWarning

Reader: TypeAlias = Callable[[str, int], "bytes | None"]
"""``(name, limit)`` to the content of that file of a tokenizer's directory; None if it is not there.
Its error for a file that it refuses ends the loading."""

BESIDE = (
    "special_tokens_map.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""The files beside a tokenizer.json that say more about its tokens."""

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class FileConfig:
    """The files beside a tokenizer.json; ``source`` is the path of its config, empty when there was none.

    ``templates`` are all chat templates, and ``chat_template`` is the one in use. ``named`` are the texts of the
    tokens that a file gives a role or flags as special, ``token_ids`` those that config.json and
    generation_config.json name (``eos_token_id``...)."""

    source: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    templates: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    token_ids: frozenset[int] = frozenset()

    def token(self, role: str) -> str | None:
        return content_of(self.values.get(role))


def folder_reader(folder: Path) -> Reader:
    """Reads the file beside a tokenizer.json that the caller named. A file that cannot be read is left out, with a
    warning, as its contents would be if they made no sense."""

    def read(name: str, limit: int) -> bytes | None:
        try:
            return read_plain(folder / name, limit)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            warnings.warn(f"{folder / name} is not used: {error.strerror}", TokenizerConfigWarning, stacklevel=4)
            return None

    return read


def beside(read: Reader, folder: str) -> FileConfig:
    """Return the configuration files that ``read`` gives, which are those in ``folder``."""
    *settings, own = map(read, BESIDE, [*[SETTINGS_LIMIT] * (len(BESIDE) - 1), TEMPLATE_LIMIT])
    tokens, config, *models = map(_object, settings)
    values = {**tokens, **{k: v for k, v in config.items() if v is not None or k not in tokens}}
    given = config.get("chat_template")  # a string, or a list of named ones, of which ``default`` counts
    templates = _templates(given)
    template = given if isinstance(given, str) else templates.get("default")
    every = [template, *templates.values()]
    if own is not None:
        with contextlib.suppress(UnicodeDecodeError):
            template = io.StringIO(own.decode("utf-8"), newline=None).read()  # every end of a line as \n
    return FileConfig(
        source=str(Path(folder) / "tokenizer_config.json") if config else "",
        values=values,
        chat_template=template,
        templates=tuple(one for one in dict.fromkeys([template, *every]) if one is not None),
        named=frozenset([*_named(tokens), *_named(config)]),
        token_ids=frozenset(id for model in (*models, models[0].get("text_config")) for id in _token_ids(model)),
    )


def content_of(value: Any) -> str | None:
    """Return the text of a token, which a configuration has as it is, or in an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def warn_contradictions(
    config: FileConfig,
    tokenizer_file: str,
    token_to_id: Callable[[str], int | None],
    added_around: tuple[list[int], list[int]],
    said: list[str],
) -> None:
    """Warn, once per loading, about each member of the configuration that tokenizer.json does not bear out.

    ``added_around`` are the ids that the post-processor puts before and after a single sequence; ``said`` are the
    settings of a class that are not followed.
    """
    found = list(said)
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
            f"{config.source or 'AutoTokenizer'} contradicts {tokenizer_file}, and tokenizer.json is followed: "
            + "; ".join(found[:8]),
            TokenizerConfigWarning,
            stacklevel=4,
        )


def _templates(value: Any) -> dict[str, str]:
    """Return the named templates of a list."""
    listed = [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
    return {str(v.get("name")): v["template"] for v in listed if isinstance(v.get("template"), str)}


def _named(values: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of the tokens that tokenizer_config.json or special_tokens_map.json gives a role."""
    found = [value for key, value in values.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"):
        several = values.get(key)
        found += several.values() if isinstance(several, dict) else several if isinstance(several, list) else []
    described = values.get("added_tokens_decoder")
    if isinstance(described, dict):
        found += [v for v in described.values() if isinstance(v, dict) and v.get("special") is True]
    return (content for content in map(content_of, found) if content is not None)


def _token_ids(model: Any) -> Iterator[int]:
    """What a model's config.json has under names such as ``eos_token_id``: an id, or a list of them."""
    for key, value in model.items() if isinstance(model, dict) else ():
        if key.endswith("_token_id"):
            yield from (id for id in (value if isinstance(value, list) else [value]) if type(id) is int)


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
