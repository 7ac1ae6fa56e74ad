"""From tiktoken's rank files to a tokenizer.json.

tiktoken merges, at each step, the neighbours whose union has the lowest rank, and takes a whole piece that is in the
vocabulary as it is. A merge list says the same if it has every way to split each token into two tokens, ordered by
the token's rank; ``ignore_merges`` says the second part.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from pathlib import Path

from .added_token import AddedToken
from .backends.reference import BYTE_CHARS
from .errors import TokenizerError

_MOST_COMPARED = 1 << 30
"""Bytes that are compared to find the merges of all tokens: a token of n bytes takes n * n. cl100k_base has 8 MB."""
_ATOM = r"(?:\\[pP]\{[^}]*\}|\\.|\[(?:\\.|\[:\w+:\]|[^\]\\])*\]|[^\\\[\](){}*+?|^$])"
_PART = re.compile(rf"\(\?#[^)]*\)?|({_ATOM})(?:(\{{\d*,?\d*\}})\+)?|[()$]")


def tokenizer_json(ranks: bytes, pattern: str, special_tokens: dict[str, int]) -> bytes:
    """Return the tokenizer.json for a rank file, its split pattern and its special tokens."""
    by_bytes = parse_ranks(ranks)
    taken = set(by_bytes.values())
    for token, id in special_tokens.items():
        if not token or isinstance(id, bool) or not isinstance(id, int) or id < 0:
            raise TokenizerError(f"special_tokens[{token!r}]: {id!r} is not an id of a token")
        if id in taken:
            raise TokenizerError(f"special_tokens[{token!r}]: id {id} is already taken")
        taken.add(id)
    written = {token: "".join(map(BYTE_CHARS.__getitem__, token)) for token in by_bytes}
    ordinary = dict(zip(written.values(), by_bytes.values()))
    for token in special_tokens:
        if token in ordinary:
            raise TokenizerError(
                f"special_tokens[{token!r}]: the ordinary token {ordinary[token]} is written the same, and one "
                "string has one id; leave it out, or write it in a way that no ordinary token is written"
            )
    split = {"type": "Split", "pattern": {"Regex": _translated(pattern)}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    whole = {
        "version": "1.0",
        "added_tokens": [
            {"id": id, **AddedToken(token, special=True).to_dict()}
            for token, id in sorted(special_tokens.items(), key=lambda item: item[1])
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": {**level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": ordinary | special_tokens,
            "merges": [[written[a], written[b]] for a, b in _merges(by_bytes)],
        },
    }
    return json.dumps(whole, ensure_ascii=False).encode()


def recipe(ranks: bytes, pattern: str, special_tokens: dict[str, int]) -> bytes:
    """Return all that ``tokenizer_json`` makes its result of, this file included; it is no tokenizer.json itself."""
    made_by = hashlib.blake2b(Path(__file__).read_bytes()).hexdigest()
    return b"ranks" + json.dumps([made_by, pattern, special_tokens]).encode() + b"\n" + ranks


def parse_ranks(data: bytes) -> dict[bytes, int]:
    """Return the ranks of a file of lines "base64 rank"."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            encoded, rank = line.split()
            token, id = base64.b64decode(encoded, validate=True), int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(f"line {number}: expected a base64 token and its rank, not {line[:60]!r}") from None
        if not token or id < 0 or token in ranks:  # before Python 3.11 a lone "=" is an empty token
            raise TokenizerError(f"line {number}: an empty, repeated or negatively ranked token: {line[:60]!r}")
        ranks[token] = id
    missing = [b for b in range(256) if bytes([b]) not in ranks]
    if missing:
        raise TokenizerError(f"not a rank file: byte {missing[0]} has no token")
    if len(set(ranks.values())) != len(ranks):
        raise TokenizerError("not a rank file: two tokens have the same rank")
    return ranks


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    compared = sum(len(token) ** 2 for token in ranks)
    if compared > _MOST_COMPARED:
        longest = max(ranks, key=len)
        raise TokenizerError(
            f"line of rank {ranks[longest]}: a token of {len(longest):,} bytes; the squares of all tokens' lengths "
            f"add up to {compared:,}, and {_MOST_COMPARED:,} is the limit"
        )
    merges: list[tuple[bytes, bytes]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        ways = [(ranks[a], ranks[b], a, b) for a, b in splits if a in ranks and b in ranks]
        merges.extend((a, b) for _, _, a, b in sorted(ways))
    return merges


def _translated(pattern: str) -> str:
    """``pattern`` in Oniguruma's dialect, which tokenizer.json speaks."""
    depth = 0  # of groups

    def translated(match: re.Match[str]) -> str:
        nonlocal depth
        depth += (match[0] == "(") - (match[0] == ")")
        if match[0] == "$":
            return r"(?![\s\S])"
        if match[2] is None:
            return match[0]
        body = match[1] + match[2]
        last = depth == 0 and pattern[match.end() : match.end() + 1] in ("", "|")
        return body if last else f"(?>{body})"  # with nothing after it, giving back makes no difference

    return _PART.sub(translated, pattern)
