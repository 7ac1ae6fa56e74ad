"""The bounds of a tokenizer.json, and of the texts of calls, before HF ``tokenizers`` gets them.

HF makes lists as long as the largest id and texts as long as replacements make them, and takes the sizes in a
``precompiled_charsmap`` as they are. If memory ends it ends the process, so that no error can be raised. No model was
trained with a tokenizer that these bounds refuse. They are those of the native core (``core/errors.hpp``), but for
``LITTLE``: how long a step can make a text is only known from above here, and honest files of many steps must not be
refused for that.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

from ..errors import TokenizerError, TokenizerFileError

MOST_HOLES = 1 << 24  # how far ids may go past four times the number of tokens
MOST_NODES = 1 << 23  # of a Unigram's trie; HF takes some 350 bytes for each
MOST_ADDED = 1 << 22  # bytes of all added tokens
MOST_STEPS = 1024  # of normalizers, of pre-tokenizers, of decoders
MOST_CONTENT = 1 << 16  # bytes that one step inserts at a time
MOST_TIMES = 1 << 16  # times that all normalizers, or all decoders, may make a text longer
MOST_CUT_TIMES = 64  # the same of the pre-tokenizers, which no call looks at
MOST_TEXT = 1 << 29  # bytes of a text
LITTLE = 1 << 26  # bytes that any text may become; HF takes twenty times as many for offsets
TIMES = 32  # a longer text may become this many times as long

# In bytes, the most that one character of Unicode takes.
_NORMALIZERS = {"ByteLevel": 2, "NFD": 3, "NFC": 3, "NFKD": 11, "NFKC": 11, "Lowercase": 2, "BertNormalizer": 10}
_CUTS = {"ByteLevel": 2, "Metaspace": 4}
_DECODERS = {"ByteLevel": 3, "WordPiece": 2, "BPEDecoder": 2, "CTC": 2}
_KINDS = (
    ("normalizer", "normalizers", _NORMALIZERS, MOST_TIMES),
    ("pre_tokenizer", "pretokenizers", _CUTS, MOST_CUT_TIMES),
    ("decoder", "decoders", _DECODERS, MOST_TIMES),
)


def checked(data: bytes) -> tuple[str, Growth]:
    """The file as HF shall read it, and its bounds on the growth of a text; ``TokenizerFileError`` if it is past a
    bound, or is no JSON object.

    The text is written anew from the checked values: HF and the checks cannot read a repeated name differently.
    """
    try:
        whole = json.loads(data)
        text = json.dumps(whole)
    except (ValueError, RecursionError) as error:
        raise TokenizerFileError("the file", f"not JSON: {error}") from None
    if not isinstance(whole, dict):
        raise TokenizerFileError("$", "expected an object")
    model, added = whole.get("model"), whole.get("added_tokens")
    model = model if isinstance(model, dict) else {}
    vocab = model.get("vocab")
    contents = [t.get("content") for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    if isinstance(vocab, dict):
        _check_ids(vocab)
    tokens: Iterable[Any] = vocab if isinstance(vocab, dict) else ()
    if isinstance(vocab, list):
        tokens = [one[0] for one in vocab if isinstance(one, list) and one]
        _check_trie([token.encode(errors="replace") for token in tokens if isinstance(token, str)])
    _check_merges(model.get("continuing_subword_prefix"), model.get("merges"))
    longest = max((len(token) for token in (*tokens, *contents) if isinstance(token, str)), default=0)
    return text, Growth(whole, sum(_size(c) for c in contents if isinstance(c, str)), longest)


def _check_ids(vocab: dict[str, Any]) -> None:
    limit = 4 * len(vocab) + MOST_HOLES
    for token, id in vocab.items():
        if isinstance(id, int) and id >= limit:
            raise TokenizerFileError(
                f"model.vocab[{token[:60]!r}]", f"the id {id}, of {len(vocab)} tokens; ids are taken below {limit}"
            )


def _check_merges(prefix: Any, merges: Any) -> None:
    """HF takes the prefix's bytes off the second token. It names the merged token in its error, as UTF-8 unchecked:
    half a character there ends the process."""
    if not isinstance(prefix, str) or not isinstance(merges, list) or not prefix:
        return
    size = len(prefix.encode(errors="replace"))
    for i, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        second = pair[-1] if isinstance(pair, list) and pair else None
        if not isinstance(second, str):
            continue
        rest = second.encode(errors="replace")[size:]
        if rest and rest[0] & 0xC0 == 0x80:
            raise TokenizerFileError(
                f"model.merges[{i}]",
                f"the continuing_subword_prefix {prefix[:60]!r} has {size} bytes, and no character of "
                f"{second[:60]!r} starts there",
            )


def _check_trie(tokens: list[bytes]) -> None:
    nodes, before = sum(map(len, tokens)), b""
    if nodes <= MOST_NODES:
        return
    for token in sorted(tokens):
        low, high = 0, min(len(before), len(token))  # bytes that both begin with: slices are compared fast
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if before[low:middle] == token[low:middle] else (low, middle - 1)
        nodes, before = nodes - low, token
    if nodes > MOST_NODES:
        raise TokenizerFileError(
            "model.vocab",
            f"the tokens make a trie of more than {MOST_NODES} nodes, one for each beginning of a token",
        )


class Growth:
    """How much longer the steps of a file may make a text. ``TokenizerFileError`` if a bound of the file is passed.

    ``added``: bytes of all added tokens, which HF normalizes while it loads; ``longest``: characters of the longest
    token."""

    def __init__(self, whole: dict[str, Any], added: int, longest: int) -> None:
        self._steps, _, decoders = (self._read(whole, *kind) for kind in _KINDS)
        self._decoded = 4 * longest, _product(decoders)  # bytes of a token, and how many times as long they become
        times = _product(self._steps)
        self.free = LITTLE // (4 * times)
        """Characters of a text that no call has to look at."""
        if added > MOST_ADDED or added * times > LITTLE:
            raise TokenizerFileError(
                "added_tokens",
                f"contents of {added} bytes; {MOST_ADDED} are taken, which the normalizers make at most {LITTLE}",
            )

    @staticmethod
    def _read(whole: dict[str, Any], name: str, inner: str, times: dict[str, int], most: int) -> list[_Step]:
        steps = [_Step(step, name, times) for step in flat(whole.get(name), inner)]
        if len(steps) > MOST_STEPS:
            raise TokenizerFileError(name, f"{len(steps)} steps; at most {MOST_STEPS} are taken")
        if _product(steps) > most:
            raise TokenizerFileError(name, f"its steps may make a text more than {most} times as long")
        return steps

    def require(self, text: str, normalizer: Any) -> None:
        """Raise ``TokenizerError`` if ``normalizer``, HF's of the file, may make ``text`` too long."""
        if len(text) <= self.free:
            return
        size = given = _size(text)
        most = max(LITTLE, TIMES * size)
        if size * _product(self._steps) <= most:
            return
        parts = normalizer if hasattr(normalizer, "__getitem__") else [normalizer]  # a nested Sequence is part of it
        fits = len(parts) == len(self._steps)
        for step, i in zip(self._steps, range(len(parts))):
            fits = fits and step.after(text, size) <= most
            if not fits:
                break
            text = parts[i].normalize_str(text)
            size = _size(text)
        if not fits:
            raise TokenizerError(
                f"the replacements of the tokenizer file may make the text of {given} bytes longer than {most}; "
                "give a shorter text"
            )

    def require_decoded(self, tokens: Sized, texts: Callable[[], Iterable[str | None]]) -> None:
        """Raise ``TokenizerError`` if so many tokens, of these texts, may decode to too much."""
        longest, times = self._decoded
        if len(tokens) * longest * times <= LITTLE:
            return
        size = sum(_size(text) for text in texts() if text is not None)
        if size > MOST_TEXT or size * times > max(LITTLE, TIMES * size):
            raise TokenizerError(f"tokens of {size} bytes in all may decode to too much; decode fewer at a time")


class _Step:
    """One step, and how long it may make a text."""

    def __init__(self, step: dict[str, Any], name: str, times: dict[str, int]) -> None:
        kind = step.get("type")
        self._times, self._added = times.get(str(kind), 1), 0
        self._replaced, self._content = "", 0  # of a Replace of a fixed text
        if kind == "Prepend":
            self._added = _content(step.get("prepend"), f"{name}.prepend")
        elif kind == "Replace":
            content, pattern = _content(step.get("content"), f"{name}.content"), step.get("pattern")
            text = pattern.get("String") if isinstance(pattern, dict) else None
            if isinstance(text, str) and text:
                self._replaced, self._content = text, content
                self._times = max(1, math.ceil(content / _size(text)))
            else:  # it may match nothing, before each character and at the end
                self._times, self._added = 1 + content, content
        elif kind == "Precompiled":
            self._times = _charsmap(step.get("precompiled_charsmap"))
        self.times = self._times + self._added
        """How many times as long any text but the empty one can become."""

    def after(self, text: str, size: int) -> int:
        """Return the most bytes that ``text``, which has ``size``, becomes."""
        if self._replaced:
            return size + text.count(self._replaced) * (self._content - _size(self._replaced))
        return size * self._times + self._added


def _product(steps: Sequence[_Step]) -> int:
    found = 1
    for step in steps:
        found = min(found * step.times, 1 << 62)
    return found


def _content(content: Any, where: str) -> int:
    """Return bytes that a step inserts."""
    size = _size(content) if isinstance(content, str) else 0  # HF names the error of another type
    if size > MOST_CONTENT:
        raise TokenizerFileError(where, f"{size} bytes; at most {MOST_CONTENT} are taken")
    return size


def _charsmap(member: Any) -> int:
    """sentencepiece's map: the size of a trie, the trie, and texts that each end in a zero. The longest of these."""
    where = "normalizer.precompiled_charsmap"
    if not isinstance(member, str):
        return 1  # HF names the error
    try:
        raw = base64.b64decode(member, validate=True)
    except (binascii.Error, ValueError):
        raise TokenizerFileError(where, "not base64") from None
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or size > len(raw) - 4:
        raise TokenizerFileError(where, f"a trie of {size} bytes in a map of {len(raw)}")
    return max(1, *map(len, raw[4 + size :].split(b"\0")))


def flat(component: Any, inner: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a component, those of a Sequence in it among them."""
    if isinstance(component, dict):
        nested = component.get(inner)
        if isinstance(nested, list):
            for one in nested:
                yield from flat(one, inner)
        else:
            yield component


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
