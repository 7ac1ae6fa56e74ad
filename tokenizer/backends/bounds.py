"""The bounds of a tokenizer.json before HF ``tokenizers`` gets it.

HF makes lists as long as the largest id and texts as long as replacements make them (``growth.py``), and takes the
sizes in a ``precompiled_charsmap`` as they are. If memory ends it ends the process, so that no error can be
raised. No model was trained with a tokenizer that these bounds refuse.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import TokenizerFileError
from .growth import Growth

MOST_HOLES = 1 << 24  # how far ids may go past four times the number of tokens, as in the native core
MOST_NODES = 1 << 23  # of a Unigram's trie, as in the native core; HF takes some 350 bytes for each
MOST_ADDED = 1 << 22  # bytes of all added tokens, as in the native core


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
    _check_ids(whole.get("model"))
    _check_merges(whole.get("model"))
    _check_pieces(whole.get("model"))
    _check_added(whole.get("added_tokens"))
    return text, Growth(whole)


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


def _check_pieces(model: Any) -> None:
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, list):
        return
    tokens = [entry[0].encode(errors="replace") for entry in vocab if _names_a_token(entry)]
    if sum(map(len, tokens)) <= MOST_NODES:
        return
    nodes, before = 0, b""
    for token in sorted(tokens):
        nodes += len(token) - _common_length(before, token)
        before = token
    if nodes > MOST_NODES:
        raise TokenizerFileError(
            "model.vocab",
            f"the tokens make a trie of more than {MOST_NODES} nodes, one for each beginning of a token",
        )


def _names_a_token(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) > 0 and isinstance(entry[0], str)


def _common_length(a: bytes, b: bytes) -> int:
    """How many bytes both begin with, by halving: a comparison of slices is faster than one of bytes in turn."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _check_added(tokens: Any) -> None:
    contents = [t.get("content") for t in tokens if isinstance(t, dict)] if isinstance(tokens, list) else []
    if sum(len(c.encode(errors="replace")) for c in contents if isinstance(c, str)) > MOST_ADDED:
        raise TokenizerFileError("added_tokens", f"contents of more than {MOST_ADDED} bytes in all")
