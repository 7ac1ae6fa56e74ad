"""The members of each component of a tokenizer.json, in HF's order, with the defaults that HF writes out, and the
arguments of HF's classes for them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from .errors import TokenizerError, TokenizersMutationError

REQUIRED = object()  # a file without it is refused when it is loaded
_SPACE = "\u2581"

Fields = tuple[tuple[str, Any], ...]

_METASPACE: Fields = (("replacement", _SPACE), ("prepend_scheme", "always"), ("split", True))
_AROUND: Fields = (("sep", REQUIRED), ("cls", REQUIRED))
_BYTE_LEVEL: Fields = (("add_prefix_space", True), ("trim_offsets", True), ("use_regex", True))

FIELDS: dict[str, dict[str, Fields]] = {
    "normalizer": {
        "BertNormalizer": (
            ("clean_text", True),
            ("handle_chinese_chars", True),
            ("strip_accents", None),
            ("lowercase", True),
        ),
        "ByteLevel": (),
        "Lowercase": (),
        "NFC": (),
        "NFD": (),
        "NFKC": (),
        "NFKD": (),
        "Nmt": (),
        "Precompiled": (("precompiled_charsmap", REQUIRED),),
        "Prepend": (("prepend", _SPACE),),
        "Replace": (("pattern", REQUIRED), ("content", REQUIRED)),
        "Sequence": (("normalizers", REQUIRED),),
        "Strip": (("strip_left", True), ("strip_right", True)),
        "StripAccents": (),
    },
    "pre_tokenizer": {
        "BertPreTokenizer": (),
        "ByteLevel": _BYTE_LEVEL,
        "CharDelimiterSplit": (("delimiter", REQUIRED),),
        "Digits": (("individual_digits", False),),
        "FixedLength": (("length", 5),),
        "Metaspace": _METASPACE,
        "Punctuation": (("behavior", "Isolated"),),
        "Sequence": (("pretokenizers", REQUIRED),),
        "Split": (("pattern", REQUIRED), ("behavior", REQUIRED), ("invert", False)),
        "UnicodeScripts": (),
        "Whitespace": (),
        "WhitespaceSplit": (),
    },
    "decoder": {
        "BPEDecoder": (("suffix", "</w>"),),
        "ByteFallback": (),
        "ByteLevel": _BYTE_LEVEL,
        "CTC": (("pad_token", "<pad>"), ("word_delimiter_token", "|"), ("cleanup", True)),
        "Fuse": (),
        "Metaspace": _METASPACE,
        "Replace": (("pattern", REQUIRED), ("content", REQUIRED)),
        "Sequence": (("decoders", REQUIRED),),
        "Strip": (("content", " "), ("start", 0), ("stop", 0)),
        "WordPiece": (("prefix", "##"), ("cleanup", True)),
    },
    "post_processor": {
        "BertProcessing": _AROUND,
        "ByteLevel": _BYTE_LEVEL,
        "RobertaProcessing": (*_AROUND, ("trim_offsets", True), ("add_prefix_space", True)),
        "Sequence": (("processors", REQUIRED),),
        "TemplateProcessing": (("single", REQUIRED), ("pair", REQUIRED), ("special_tokens", REQUIRED)),
    },
}
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
CUSTOM = "Custom"  # in place of a type's name: a component written in Python
# Names of files -> HF's names of arguments, if they differ.
_ARGUMENTS = {
    ("normalizer", "Strip"): {"strip_left": "left", "strip_right": "right"},
    ("decoder", "Strip"): {"start": "left", "stop": "right"},
    ("post_processor", "BertProcessing"): {"cls": "cls_token"},
    ("post_processor", "RobertaProcessing"): {"cls": "cls_token"},
}
# Of these HF takes the parts of a Sequence in a Sequence.
_FLATTENED = ("normalizers", "pretokenizers", "processors")
_ONE_CHARACTER = ("replacement", "delimiter")
_BEHAVIORS = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
_SCHEMES = ("always", "never", "first")
_TYPES = {"precompiled_charsmap": bytes, **dict.fromkeys(_LISTS, list)}


_ATTRIBUTES = ("normalizer", "Strip")  # the class whose attributes are named as its arguments


def canonical(kind: str, member: Any) -> Any:
    """``member`` as HF writes it: with defaults for absent keys, without keys that HF does not know."""
    if not isinstance(member, dict):
        return member
    fields = FIELDS[kind].get(member.get("type", ""))
    if fields is None:
        known = dict(member)
    else:
        known = {"type": member["type"]}
        for name, default in fields:
            if name in member or default is not REQUIRED:
                known[name] = member.get(name, default)
        if member.get("add_prefix_space") is False and "prepend_scheme" in known:
            known["prepend_scheme"] = "never"  # as files of before prepend_scheme said it
    for name in _LISTS:
        if isinstance(known.get(name), list):
            known[name] = [canonical(kind, one) for one in known[name]]
    return known


def argument_names(kind: str, name: str) -> dict[str, str]:
    """Argument of the constructor -> name in files, in order."""
    renamed = _ARGUMENTS.get((kind, name), {})
    return {renamed.get(field, field): field for field, _ in FIELDS[kind][name]}


def attribute_names(kind: str, name: str) -> dict[str, str]:
    """Attribute -> name in files."""
    names = (
        argument_names(kind, name) if (kind, name) == _ATTRIBUTES else {f: f for f, _ in FIELDS[kind].get(name, ())}
    )
    return {attribute: field for attribute, field in names.items() if field != "pattern"}


def member_of(kind: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the member that ``name(*args, **kwargs)`` describes."""
    if name not in FIELDS.get(kind, {}):
        raise TokenizersMutationError(
            f"{name} is not built here: build it with `tokenizers`, save the tokenizer, and load the file"
        )
    names = argument_names(kind, name)
    unread = (kind, name) == ("decoder", "ByteLevel")  # HF's takes no arguments by place, and reads none by name
    given = dict(zip(names, args)) | {k: v for k, v in kwargs.items() if not unread and (k, v) != ("type", name)}
    if set(given) - set(names) or len(args) > len(names) * (not unread):
        raise TypeError(f"{name} takes {', '.join(names) or 'no arguments'}, not {args}, {kwargs}")
    if name == "TemplateProcessing":
        return _template(**given)
    member: dict[str, Any] = {"type": name}
    for argument, (field, default) in zip(names, FIELDS[kind][name]):
        value = given.get(argument)
        if value is None and default is REQUIRED:
            raise TypeError(f"{name} needs {argument}")
        member[field] = default if value is None else file_value(field, value, default)
    return member


def file_value(field: str, value: Any, default: Any) -> Any:
    """Return a value from Python as a file has it. Raises ``TypeError`` and ``ValueError`` as HF does."""
    if field == "pattern":
        return _pattern(value)
    if field in ("sep", "cls"):
        return _token_and_id(field, value)
    if field in _LISTS and isinstance(value, (list, tuple)):
        return _parts(field, value)
    expected = _TYPES.get(field) or (bool if default is None else str if default is REQUIRED else type(default))
    if type(value) is not expected:
        raise TypeError(f"argument '{field}': expected {expected.__name__}, got {type(value).__name__}")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else _checked(field, value)


def _checked(field: str, value: Any) -> Any:
    if field in _ONE_CHARACTER and len(value) != 1:
        raise TokenizerError(f"argument '{field}': expected a string of length 1")
    known = {"prepend_scheme": _SCHEMES, "behavior": _BEHAVIORS}.get(field, (value,))
    if value not in known:
        raise TokenizerError(f"{value!r:.60} is not a {field}: expected one of {', '.join(known)}")
    if field == "behavior":  # "merged_with_next" in Python, "MergedWithNext" in files
        return "".join(part.capitalize() for part in value.split("_"))
    return value


def python_value(field: str, value: Any) -> Any:
    """Return a value from a file as HF's attributes give it."""
    if field == "behavior":
        return "".join("_" + c.lower() if c.isupper() else c for c in value).lstrip("_")
    return tuple(value) if field in ("sep", "cls") else value


def _pattern(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"String": value}
    if type(value).__name__ == "Regex":
        return {"Regex": value.pattern}
    raise TypeError(f"argument 'pattern': expected str or Regex, got {type(value).__name__}")


def _token_and_id(field: str, value: Any) -> list[Any]:
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and _is_id(value[1])):
        raise TypeError(f"argument '{field}': expected a tuple of a token and its id, got {value!r:.60}")
    return list(value)


def _parts(field: str, value: Iterable[Any]) -> list[Any]:
    """The members of a Sequence, shared with the components given: attributes set on those show in the Sequence."""
    members: list[Any] = []
    for one in value:
        inner = one._member if hasattr(one, "_member") else None
        if inner is None:
            raise TypeError(f"argument '{field}': expected components, got {type(one).__name__}")
        if inner["type"] == CUSTOM:
            raise TokenizersMutationError(f"argument '{field}': a component written in Python cannot be a part")
        members.extend(inner[field] if inner["type"] == "Sequence" and field in _FLATTENED else [inner])
    return members


# ---- templates


def _template(single: Any = None, pair: Any = None, special_tokens: Any = None) -> dict[str, Any]:
    tokens = [_special(one) for one in special_tokens or []]
    member = {
        "type": "TemplateProcessing",
        "single": _pieces("$0" if single is None else single),
        "pair": _pieces("$A:0 $B:1" if pair is None else pair),
        "special_tokens": {token["id"]: token for token in sorted(tokens, key=lambda token: token["id"])},
    }
    if {"A", "B"} - {piece["Sequence"]["id"] for piece in member["pair"] if "Sequence" in piece}:
        raise TokenizerError("Template for `pair` must use both sequences")
    used = [p["SpecialToken"]["id"] for p in [*member["single"], *member["pair"]] if "SpecialToken" in p]
    missing = [name for name in dict.fromkeys(used) if name not in member["special_tokens"]]
    if missing:
        raise TokenizerError(f"Missing SpecialToken(s) with id(s) {', '.join(missing)}")
    return member


def _pieces(template: Any) -> list[dict[str, Any]]:
    """``"[CLS] $A:0 [SEP]"``, or the list of its parts."""
    parts = template.split(" ") if isinstance(template, str) else template
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise TypeError("Expected Union[str, List[str]]")
    return [_piece(part) for part in parts]


def _piece(text: str) -> dict[str, Any]:
    name, colon, number = text.partition(":")
    if colon and not _is_decimal(number):
        raise TokenizerError(f'Cannot build Piece from string "{text}"')
    if not name.startswith("$"):
        return {"SpecialToken": {"id": name, "type_id": int(number or 0)}}
    rest = name[1:]
    if rest not in ("", "A", "a", "B", "b") and not _is_decimal(rest):
        raise TokenizerError(f'Cannot build Piece from string "{text}"')
    type_id = number or (rest if _is_decimal(rest) else 0)
    return {"Sequence": {"id": "B" if rest in ("B", "b") else "A", "type_id": int(type_id)}}


def _special(given: Any) -> dict[str, Any]:
    """Return a special token of a template: ``("[CLS]", 1)``, ``(1, "[CLS]")``, or a dict of id, ids and tokens."""
    if isinstance(given, dict):
        for name in ("id", "ids", "tokens"):
            if name not in given:
                raise TokenizerError(f"`{name}` must be specified")
        if len(given["ids"]) != len(given["tokens"]):
            raise TokenizerError("SpecialToken: ids and tokens must be of the same length")
        return {name: given[name] for name in ("id", "ids", "tokens")}
    if isinstance(given, tuple) and len(given) == 2:
        token, id = given if isinstance(given[0], str) else given[::-1]
        if isinstance(token, str) and _is_id(id):
            return {"id": token, "ids": [id], "tokens": [token]}
    raise TypeError("Expected Union[Tuple[str, int], Tuple[int, str], dict]")


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 1 << 32


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 32
