"""The ``tokenizer.json`` and ``tokenizer_config.json`` that a GGUF file's metadata describe.

gpt2    byte-level BPE with merges; how text is cut into words is a name (``tokenizer.ggml.pre``)
llama   BPE of sentencepiece with bytes for unknown characters; merges follow from the tokens' scores
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.records import dataclass

_MOST_ADDED = 1 << 16
"""Control tokens and tokens of the user; the most that we know of are 6,400."""
_MORE_MERGES, _MORE_CHARS = 1_000_000, 16_000_000
"""Merges beyond four times the tokens and their characters; Gemma's 262,144 tokens make 514,906."""
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = 1, 2, 3, 4, 5
_SPACE = "\u2581"
_WORD = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
_REST = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
_UPPER, _LOWER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
_TEKKEN = (
    f"[^\\r\\n\\p{{L}}\\p{{N}}]?{_UPPER}*{_LOWER}+|[^\\r\\n\\p{{L}}\\p{{N}}]?{_UPPER}+{_LOWER}*|\\p{{N}}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


@dataclass(frozen=True, slots=True)
class _Words:
    """How a named pre-tokenizer cuts text. Without ``pattern``: as GPT-2 does."""

    pattern: str | None = None
    digits: bool = False
    composed: bool = False
    """Text is put into Unicode's form NFC first."""
    whole: bool = False
    """A word that is a token is taken without merging."""
    begins: bool = False
    """The first token of a text is added if the file does not say."""


_GPT2 = _Words()
_LLAMA3 = _Words(_WORD + "\\p{N}{1,3}" + _REST, whole=True, begins=True)
_QWEN2 = _Words(_WORD + "\\p{N}" + _REST, composed=True)
_DIGITS = _Words(digits=True)
_PRE: dict[str, _Words] = {"gpt-2": _GPT2, "mpt": _GPT2, "olmo": _GPT2, "jais": _GPT2, "phi-2": _GPT2}
_PRE |= {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3}
_PRE |= {"qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "megrez": _QWEN2}
_PRE |= {"smollm": _DIGITS, "starcoder": _DIGITS, "refact": _DIGITS, "command-r": _DIGITS, "codeshell": _DIGITS}
_PRE |= {"tekken": _Words(_TEKKEN, whole=True, begins=True)}


class GgufTokenizer:
    def __init__(self, metadata: dict[str, Any], path: Path) -> None:
        self.metadata, self.path = metadata, path
        self.tokens: list[str] = self._list("tokens", str)
        kinds = self._list("token_type", int, needed=False)
        self.kinds: Sequence[int] = kinds or [_NORMAL] * len(self.tokens)
        if len(self.kinds) != len(self.tokens):
            raise self._wrong(f"{len(self.kinds):,} token types for {len(self.tokens):,} tokens")

    def file(self) -> bytes:
        """``tokenizer.json``."""
        kind = self._get("model")
        if kind == "gpt2":
            found, begins = self._byte_level()
        elif kind == "llama":
            found, begins = self._scored(), True
        else:
            raise UnsupportedModel(
                f"{self.path}: unsupported: tokenizer.ggml.model {shown(kind)}; gpt2 and llama are read, for others "
                "put the model's tokenizer.json beside the file"
            )
        others = [token for token, kind in enumerate(self.kinds) if kind in (_UNKNOWN, _CONTROL, _USER)]
        if len(others) > _MOST_ADDED:
            raise self._wrong(
                f"tokenizer.ggml.token_type has {len(others):,} added tokens, the limit is {_MOST_ADDED:,}"
            )
        added = [self._added(token) for token in others]
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **found}
        return json.dumps({**whole, "post_processor": self._post_processor(begins)}, ensure_ascii=False).encode()

    def config(self) -> bytes:
        """``tokenizer_config.json``: the template and the tokens that it may name."""
        found: dict[str, Any] = {}
        template = self.metadata.get("tokenizer.chat_template")
        if isinstance(template, str):
            found["chat_template"] = template
        for theirs, ours in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
            token = self._token(f"{theirs}_token_id")
            if token is not None:
                found[f"{ours}_token"] = self.tokens[token]
        return json.dumps(found).encode()

    def _byte_level(self) -> tuple[dict[str, Any], bool]:
        name = self._get("pre")
        words = _PRE.get(name) if isinstance(name, str) else None
        if words is None:
            raise UnsupportedModel(
                f"{self.path}: unsupported: tokenizer.ggml.pre {shown(name)}; supported: {', '.join(sorted(_PRE))}; "
                "for others put the model's tokenizer.json beside the file"
            )
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        cuts: list[dict[str, Any]] = []
        if words.digits:
            cuts.append({"type": "Digits", "individual_digits": True})
        if words.pattern is not None:
            pattern = {"Regex": words.pattern}
            cuts.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
        cuts.append({**level, "use_regex": words.pattern is None})
        merges = self._list("merges", str)
        if bad := next((merge for merge in merges if merge.count(" ") != 1), None):
            raise self._wrong(f"tokenizer.ggml.merges has {shown(bad)}, two tokens and a space are needed")
        vocabulary = self._vocabulary((_UNUSED,))
        return {
            "normalizer": {"type": "NFC"} if words.composed else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
            "decoder": {**level, "use_regex": False},
            "model": self._bpe(vocabulary, merges, None, ignore_merges=words.whole),
        }, words.begins

    def _scored(self) -> dict[str, Any]:
        scores = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise self._wrong(f"{len(scores):,} scores for {len(self.tokens):,} tokens")
        vocabulary = self._vocabulary(())
        prefix = self._get("add_space_prefix") is not False
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        before = [{"type": "Prepend", "prepend": _SPACE}, replace] if prefix else [replace]
        back: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}]
        back += [{"type": "ByteFallback"}, {"type": "Fuse"}]
        if prefix:
            back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        unknown = self._token("unknown_token_id")
        if unknown is None and _UNKNOWN in self.kinds:
            unknown = list(self.kinds).index(_UNKNOWN)
        return {
            "normalizer": {"type": "Sequence", "normalizers": before},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": back},
            "model": self._bpe(
                vocabulary,
                self._merges(vocabulary, scores),
                None if unknown is None else self.tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            ),
        }

    def _merges(self, vocabulary: dict[str, int], scores: list[float]) -> list[list[str]]:
        """Both halves of each token wherever they are tokens, the best first. Of texts in texts there are as many as
        the square of the file's size, so they are counted while they are ids."""
        import numpy as np

        lengths = np.array([len(text) for text in self.tokens], np.int64)
        most, most_chars = 4 * len(self.tokens) + _MORE_MERGES, 4 * int(lengths.sum()) + _MORE_CHARS
        made, lefts, rights, chars = array("q"), array("q"), array("q"), 0
        for token, (text, kind) in enumerate(zip(self.tokens, self.kinds)):
            if kind not in (_NORMAL, _USER) or len(text) > 256:
                continue
            for at in range(1, len(text)):
                left = vocabulary.get(text[:at])
                right = None if left is None else vocabulary.get(text[at:])
                if left is not None and right is not None:
                    made.append(token)
                    lefts.append(left)
                    rights.append(right)
                    chars += len(text)
            if len(made) > most or chars > most_chars:
                raise self._wrong(
                    f"tokenizer.ggml.tokens makes more than {most:,} merges, or of more than {most_chars:,} "
                    "characters: too many of its tokens are put together of others"
                )
        first, second, whole = (np.array(one) for one in (lefts, rights, made))
        by = (whole, -lengths[second], -lengths[first], -np.array(scores)[whole])
        order = np.lexsort(by)
        halves = zip(first[order].tolist(), second[order].tolist())
        return [[self.tokens[left], self.tokens[right]] for left, right in halves]

    def _bpe(
        self, vocabulary: dict[str, int], merges: list[Any], unknown: str | None, **more: bool
    ) -> dict[str, Any]:
        switches = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **more}
        nothing = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
        return {"type": "BPE", "unk_token": unknown, **nothing, **switches, "vocab": vocabulary, "merges": merges}

    def _vocabulary(self, without: tuple[int, ...]) -> dict[str, int]:
        found: dict[str, int] = {}
        for token, (text, kind) in enumerate(zip(self.tokens, self.kinds)):
            if kind not in without and found.setdefault(text, token) != token:
                raise self._wrong(f"token {shown(text)} has the ids {found[text]:,} and {token:,}")
        return found

    def _added(self, token: int) -> dict[str, Any]:
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return {"id": token, "content": self.tokens[token], **plain, "special": self.kinds[token] != _USER}

    def _post_processor(self, begins: bool) -> dict[str, Any] | None:
        first = self._token("bos_token_id") if self._switch("add_bos_token", begins) else None
        last = self._token("eos_token_id") if self._switch("add_eos_token", False) else None
        if first is None and last is None:
            return None
        used = [token for token in (first, last) if token is not None]

        def around(letter: str, kind: int) -> list[dict[str, Any]]:
            one = [{"Sequence": {"id": letter, "type_id": kind}}]
            front, back = (
                [] if token is None else [{"SpecialToken": {"id": self.tokens[token], "type_id": kind}}]
                for token in (first, last)
            )
            return [*front, *one, *back]

        tokens = {
            self.tokens[one]: {"id": self.tokens[one], "ids": [one], "tokens": [self.tokens[one]]} for one in used
        }
        single = around("A", 0)
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": single + around("B", 1),
            "special_tokens": tokens,
        }

    def _get(self, key: str) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}")

    def _list(self, key: str, kind: type, needed: bool = True) -> list[Any]:
        value = self._get(key)
        if value is None and not needed:
            return []
        if not isinstance(value, list) or not all(type(one) is kind for one in value):
            raise self._wrong(f"tokenizer.ggml.{key} is {shown(value)}, an array of {kind.__name__} is needed")
        return value

    def _switch(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is not None and type(value) is not bool:
            raise self._wrong(f"tokenizer.ggml.{key} is {shown(value)}, a boolean is needed")
        return default if value is None else value

    def _token(self, key: str) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise self._wrong(f"tokenizer.ggml.{key} is {shown(value)}, there are {len(self.tokens):,} tokens")
        return value

    def _wrong(self, why: str) -> ModelError:
        return ModelError(f"{self.path}: {why}")
