"""The members of each component of a tokenizer.json, in HF's order, with the defaults that HF writes out."""

from __future__ import annotations

from typing import Any

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
        if member.get("add_prefix_space") is False and "prepend_scheme" in known and "prepend_scheme" not in member:
            known["prepend_scheme"] = "never"  # as files of before prepend_scheme said it
    for name in _LISTS:
        if isinstance(known.get(name), list):
            known[name] = [canonical(kind, one) for one in known[name]]
    return known
