"""The entries of tokenizer_config.json that transformers' classes apply over tokenizer.json.

``Tokenizer.from_file`` follows tokenizer.json, as the tokenizers library does, and warns of such entries;
``Tokenizer.from_reader`` with a ``Model`` follows them, so that the ids are those of ``AutoTokenizer``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .added_token import AddedToken

MISSING = object()


@dataclass(frozen=True, slots=True)
class Model:
    """The model that a tokenizer is read for: its type names the class if the file does not. Tokens are added with
    ids below ``rows``. ``lower``: all text is lowered first, as sentence-transformers' ``do_lower_case`` asks."""

    type: str
    rows: int
    lower: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """The entry ``key`` is the ``member`` of the component ``kind`` in a section; ``value`` makes the one of the
    other."""

    key: str
    section: str
    kind: str
    member: str
    default: Any
    value: Callable[[Any, Mapping[str, Any]], Any] = lambda said, _: said


_BERT = (
    Setting("do_lower_case", "normalizer", "BertNormalizer", "lowercase", True),
    Setting("strip_accents", "normalizer", "BertNormalizer", "strip_accents", None),
    Setting("tokenize_chinese_chars", "normalizer", "BertNormalizer", "handle_chinese_chars", True),
)


def _prefix(otherwise: str, legacy: str = "always") -> tuple[Setting]:
    def scheme(said: Any, values: Mapping[str, Any]) -> str:
        return otherwise if said is False else "always" if values.get("legacy", False) else legacy

    return (Setting("add_prefix_space", "pre_tokenizer", "Metaspace", "prepend_scheme", True, scheme),)


_BYTES = (
    Setting("add_prefix_space", "pre_tokenizer", "ByteLevel", "add_prefix_space", False, lambda said, _: bool(said)),
)
_WITH_TYPES = ("Bert", "Electra", "MobileBert", "ConvBert", "LayoutLM", "SqueezeBert")
_CLASSES: dict[str, tuple[Setting, ...]] = {
    **dict.fromkeys((*_WITH_TYPES, "DistilBert", "MPNet"), _BERT),
    **dict.fromkeys(("Roberta", "GPT2", "Bart", "Longformer", "Deberta", "Qwen2"), _BYTES),
    **dict.fromkeys(("XLMRoberta", "Camembert"), _prefix("never")),
    "DebertaV2": _prefix("first"),
    "Llama": _prefix("never", "first"),
}
_OF_TYPE: dict[str | None, str] = {"bert": "Bert", "distilbert": "Bert", "electra": "Bert", "gpt2": "GPT2"}
_OF_TYPE |= {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "deberta-v2": "DebertaV2"}
_OF_TYPE |= {"qwen3": "Qwen2"}
_TYPED = (*_WITH_TYPES, "Deberta", "DebertaV2")
_NO_CLASS = ("modernbert", "phi3", "mistral")
"""Model types whose tokenizers follow tokenizer.json, whatever class the file names."""
_FRAMED = ("Bert", "DistilBert", "Electra", "MPNet", "Roberta", "DebertaV2")
_FRAMES = dict.fromkeys(_FRAMED, ("cls_token", "sep_token"))
_FRAMES["XLMRoberta"] = ("bos_token", "eos_token")
_MADE = {"DebertaV2": {"Lowercase": "do_lower_case", "Precompiled": "", "Punctuation": "split_by_punct"}}
"""Components that a class makes if an entry is true, or never, whatever tokenizer.json has."""
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(slots=True)
class Changes:
    """Sections and added tokens that are others than those of tokenizer.json, and the entries that differ, in
    words."""

    sections: dict[str, Any] = field(default_factory=dict)
    added: dict[int, dict[str, Any]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


def changes(
    values: Mapping[str, Any],
    section: Callable[[str], Any],
    added: Mapping[int, AddedToken],
    vocab_size: int,
    token_to_id: Callable[[str], int | None],
    model: Model | None,
) -> Changes:
    """``values``: the entries; ``added``: the tokens that tokenizer.json adds to its ``vocab_size`` others."""
    found = Changes()
    _of_class(found, values, section, model)
    _of_tokens(found, values, added, vocab_size, token_to_id, model)
    if values.get("split_special_tokens") is True:
        found.said.append("split_special_tokens is true, and special tokens in a text are found")
    if model is not None and model.lower:
        normalizer = found.sections.get("normalizer", section("normalizer"))
        if _component(normalizer, "Lowercase") is None:
            parts = [{"type": "Lowercase"}, *_parts(normalizer)]
            found.sections["normalizer"] = {"type": "Sequence", "normalizers": parts}
    return found


def _class_of(values: Mapping[str, Any], model_type: str | None) -> str | None:
    """Return the stem of a class's name: that of the file, else that of the model's type."""
    named = values.get("tokenizer_class")
    if model_type in _NO_CLASS:
        return None
    if not isinstance(named, str):
        return _OF_TYPE.get(model_type)
    return named.removesuffix("Fast").removesuffix("Tokenizer")


def gives_types(values: Mapping[str, Any], model_type: str) -> bool:
    """Return whether the second text of a pair has a token type of its own, as far as the model has types."""
    names = values.get("model_input_names")
    return "token_type_ids" in names if isinstance(names, list) else _class_of(values, model_type) in _TYPED


def _of_class(found: Changes, values: Mapping[str, Any], section: Callable[[str], Any], model: Model | None) -> None:
    name = _class_of(values, None if model is None else model.type)
    frame = json.dumps(section("post_processor"), ensure_ascii=False)
    for role in _FRAMES.get(name or "", ()):  # tokens that a class puts around a text
        flags = _flags(values.get(role), {})
        if flags is not None and json.dumps(flags["content"], ensure_ascii=False) not in frame:
            found.said.append(f"{role} is {flags['content']!r:.40}, and the post_processor does not add it")
    there = {part.get("type") for part in (*_parts(section("normalizer")), *_parts(section("pre_tokenizer")))}
    for kind, key in _MADE.get(name or "", {}).items():
        if (kind in there) != bool(values.get(key)):
            made, seen = ("no", "one") if kind in there else ("a", "none")
            found.said.append(f"{name}Tokenizer makes {made} {kind}, and tokenizer.json has {seen}")
    for setting in _CLASSES.get(name or "", ()):
        said = values.get(setting.key, MISSING)
        if said is MISSING and model is None:
            continue  # the class's default counts if a model is read, as AutoTokenizer does
        wanted = setting.value(setting.default if said is MISSING else said, values)
        whole = found.sections.get(setting.section, section(setting.section))
        here = _component(whole, setting.kind)
        if name == "Llama" and here is None:
            if _component(section("normalizer"), "Prepend") is None:
                continue  # of another kind, which has no class
            if wanted == "never":
                rest = [part for part in _parts(section("normalizer")) if part.get("type") != "Prepend"]
                found.sections["normalizer"] = {"type": "Sequence", "normalizers": rest} if rest else None
                found.said.append(f"{setting.key} is false, and the normalizer prepends one")
            elif model is not None:
                found.said.append(
                    "add_prefix_space of this tokenizer_class leaves a text alone that begins with a space, and "
                    "Prepend does not"
                )
        elif here is None and said is not MISSING:
            found.said.append(f"{setting.key} is {said!r:.40}, and no {setting.section} is a {setting.kind}")
        elif here is not None and here.get(setting.member, setting.default) != wanted:
            found.sections[setting.section] = _changed(whole, setting.kind, {setting.member: wanted})
            shown = "left out" if said is MISSING else repr(said)
            seen = f"{here.get(setting.member)!r:.40}"
            found.said.append(f"{setting.key} is {shown:.40}, and {setting.kind} has {seen}")


def _of_tokens(
    found: Changes,
    values: Mapping[str, Any],
    added: Mapping[int, AddedToken],
    vocab_size: int,
    token_to_id: Callable[[str], int | None],
    model: Model | None,
) -> None:
    """Special tokens that tokenizer.json does not add, and those that it adds with other flags."""
    known = {token.content: token.to_dict() for token in added.values()}
    wanted: dict[str, dict[str, Any]] = {}
    described = values.get("added_tokens_decoder")
    for token in described.values() if isinstance(described, dict) else ():
        flags = _flags(token, {})
        if flags is not None and model is not None and known.get(flags["content"]) != flags:
            wanted[flags["content"]] = flags
    for key, token in _special(values):
        flags = _flags(token, known)
        if flags is None or flags["content"] in known or flags["content"] in wanted:
            continue
        if token_to_id(flags["content"]) is None and key not in _ROLES:
            found.said.append(f"{flags['content']!r:.80} of {key} is not in the vocabulary")
        wanted[flags["content"]] = flags
    next_id = max([vocab_size, *(id + 1 for id in added)])
    for content, flags in wanted.items() if model is not None else ():
        id = token_to_id(content)
        if id is None and next_id < model.rows:  # type: ignore[union-attr]
            id, next_id = next_id, next_id + 1
        if id is not None:
            found.added[id] = flags


def _special(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the named tokens in the order of the file, then those of the model alone, then the others."""
    extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    names = [key for key in values if key in _ROLES]
    names += [key for key in values if key.endswith("_token") and key not in _ROLES and isinstance(values[key], str)]
    more = list(extra.values()) if isinstance(extra, dict) else extra if isinstance(extra, list) else []
    return [*((key, values[key]) for key in names), *(("extra_special_tokens", token) for token in more)]


def _flags(token: Any, known: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the members of an added token; those of a text are a special token's."""
    if isinstance(token, str):
        token = known.get(token, {"content": token, "special": True, "normalized": False})
    if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not token["content"]:
        return None
    special = bool(token.get("special", True))
    names = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
    return {"content": token["content"], **{k: bool(token.get(k, v)) for k, v in names.items()}, "special": special}


def _parts(component: Any) -> list[Any]:
    """Return a component in a list, or the members of a Sequence."""
    if not isinstance(component, dict):
        return []
    listed = component.get("normalizers", component.get("pretokenizers"))
    if component.get("type") != "Sequence" or not isinstance(listed, list):  # members that none has may be anything
        return [component]
    return [part for part in listed if isinstance(part, dict)]


def _component(section: Any, kind: str) -> dict[str, Any] | None:
    return next((part for part in _parts(section) if part.get("type") == kind), None)


def _changed(section: dict[str, Any], kind: str, members: dict[str, Any]) -> dict[str, Any]:
    if section.get("type") == kind:
        return {**section, **members}
    key = "normalizers" if "normalizers" in section else "pretokenizers"
    return {**section, key: [{**part, **members} if part.get("type") == kind else part for part in _parts(section)]}
