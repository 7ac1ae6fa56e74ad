"""What a tokenizer.json may ask for before HF ``tokenizers`` gets it.

HF makes lists as long as the largest id and texts as long as replacements make them, and takes the sizes in a
``precompiled_charsmap`` as they are. Where memory ends it ends the process, so that no error can be raised.
What these bounds refuse is no tokenizer that anything was trained with.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator
from typing import Any

from .errors import TokenizerFileError

MOST_HOLES = 1 << 24  # how far ids may go past four times the number of tokens, as in the native core
MOST_ADDED = 1 << 22  # bytes of all added tokens, as in the native core
MOST_GROWTH = 1 << 16  # times that normalizers, pre-tokenizers and decoders may make a text longer
_GROWTH = {"ByteLevel": 2, "NFD": 4, "NFKD": 18, "NFC": 3, "NFKC": 18, "Lowercase": 3, "Metaspace": 4}


def checked(data: bytes) -> str:
    """The file as HF shall read it; ``TokenizerFileError`` if it is past a bound, or is no JSON object.

    The text is written anew from the checked values: HF and the checks cannot read a repeated name differently.
    """
    try:
        whole = json.loads(data)
        text = json.dumps(whole)
    except (ValueError, RecursionError) as error:
        raise TokenizerFileError("the file", f"not JSON: {error}") from None
    if not isinstance(whole, dict):
        raise TokenizerFileError("$", "expected an object")
    _check_ids(whole.get("model"))
    _check_merges(whole.get("model"))
    _check_added(whole.get("added_tokens"))
    for name, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")):
        growth = 1
        for step in _steps(whole.get(name), inner):
            growth = min(growth * _growth(step, name), MOST_GROWTH + 1)
        if growth > MOST_GROWTH:
            raise TokenizerFileError(name, f"its replacements may make a text more than {MOST_GROWTH} times as long")
    return text


def _check_ids(model: Any) -> None:
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict):
        return
    limit = 4 * len(vocab) + MOST_HOLES
    for token, id in vocab.items():
        if isinstance(id, int) and id >= limit:
            raise TokenizerFileError(
                f"model.vocab[{token[:60]!r}]", f"the id {id}, of {len(vocab)} tokens; ids are taken below {limit}"
            )


def _check_merges(model: Any) -> None:
    """HF takes the prefix's bytes off the second token. It names the merged token in its error, as UTF-8 unchecked:
    half a character there ends the process."""
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
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


def _check_added(tokens: Any) -> None:
    contents = [t.get("content") for t in tokens if isinstance(t, dict)] if isinstance(tokens, list) else []
    if sum(len(c.encode(errors="replace")) for c in contents if isinstance(c, str)) > MOST_ADDED:
        raise TokenizerFileError("added_tokens", f"contents of more than {MOST_ADDED} bytes in all")


def _steps(component: Any, inner: str) -> Iterator[dict[str, Any]]:
    if not isinstance(component, dict):
        return
    nested = component.get(inner)
    if isinstance(nested, list):
        for one in nested:
            yield from _steps(one, inner)
    else:
        yield component


def _growth(step: dict[str, Any], name: str) -> int:
    """How many times as long one step may make a text, at most."""
    kind = step.get("type")
    if kind == "Precompiled":
        return _check_charsmap(step.get("precompiled_charsmap"))
    if kind == "Prepend" and isinstance(step.get("prepend"), str):
        return 1 + len(step["prepend"].encode(errors="replace"))
    if kind == "Replace" and isinstance(step.get("content"), str):
        pattern = step.get("pattern")
        text = pattern.get("String") if isinstance(pattern, dict) else None
        content = len(step["content"].encode(errors="replace"))
        return max(1, math.ceil(content / len(text.encode(errors="replace")))) if text else 1 + content
    return _GROWTH.get(str(kind), 1) if name != "decoder" else 1


def _check_charsmap(member: Any) -> int:
    """sentencepiece's map: the size of a trie, the trie, and texts that each end in a zero. The longest of these."""
    where = "normalizer.precompiled_charsmap"
    if not isinstance(member, str):
        return 1  # HF says what is wrong with it
    try:
        raw = base64.b64decode(member, validate=True)
    except (binascii.Error, ValueError):
        raise TokenizerFileError(where, "not base64") from None
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or size > len(raw) - 4:
        raise TokenizerFileError(where, f"a trie of {size} bytes in a map of {len(raw)}")
    return max(1, *map(len, raw[4 + size :].split(b"\0")))
