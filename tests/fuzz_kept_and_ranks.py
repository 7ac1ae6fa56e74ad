"""Two more kinds of files for ``tests.fuzz_tokenizer_files``: kept tables that were changed, and rank files.

Kept tables (``tokenizer/backends/cache.py``) are made of a tokenizer.json and then changed: bytes, length, header,
kind of file. The next load has to give the ids that the tokenizer.json gives. Rank files are made with wrong ranks,
repeated tokens, other base64 and long tokens, and loaded with patterns and control tokens; where ``tiktoken`` takes
the same ranks, the ids have to be the same.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
CHANGES = ["nothing", "bytes", "number", "cut", "grown", "other", "link", "pipe", "folder", "mode", "gone"]
RANKS = [0, 1, 255, 256, 257, 60_000, (1 << 24) + 5, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 64, -1]


def wrong_with_kept(rng: random.Random, data: bytes, texts: list[str]) -> str | None:
    """Load ``data``, change the tables that were kept of it, load it again, three times."""
    from prelude.tokenizer import Tokenizer
    from prelude.tokenizer.backends import cache as _cache

    least, _cache.LEAST = _cache.LEAST, 0
    folder = Path(tempfile.mkdtemp(prefix="kept-"))
    try:
        path = folder / "tokenizer.json"
        path.write_bytes(data)
        wanted = results(Tokenizer.from_buffer(data, cache=folder), texts)
        for _ in range(3):
            how = damage(rng, folder)
            _cache._cache_in.cache_clear()  # as another process finds the folder
            found = results(Tokenizer.from_file(path, cache=folder), texts)
            if found != wanted:
                return f"kept tables, {how}: {found!r:.300} instead of {wanted!r:.300}"
    finally:
        _cache.LEAST = least
        _cache._cache_in.cache_clear()
        shutil.rmtree(folder, ignore_errors=True)
    return None


def results(tokenizer: Any, texts: list[str]) -> list[Any]:
    """Ids, offsets and decoded text of each text, or the name of the error."""
    out: list[Any] = []
    for text in texts:
        try:
            found = tokenizer.encode(text)
            out.append([found.ids, found.offsets, tokenizer.decode(found.ids)])
        except Exception as error:
            out.append(type(error).__name__)
    return out


def damage(rng: random.Random, folder: Path) -> str:
    """One change of the files in ``folder``; gives its name. A tokenizer that is not native keeps no tables."""
    kept = [p for p in folder.iterdir() if p.name not in ("key", "tokenizer.json", "elsewhere") and p.is_file()]
    path = rng.choice([*kept, *kept, folder / "key"])
    if not path.is_file() or path.is_symlink():
        return "nothing to change"
    content = bytearray(path.read_bytes())
    how = rng.choice(CHANGES)
    if how == "bytes":
        for _ in range(rng.choice([1, 1, 30])):
            content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    elif how == "number":  # a length or an id
        at = 8 * rng.randrange(max(1, min(len(content) // 8, rng.choice([8, 1 << 30]))))
        number = rng.choice([0, 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1])
        content[at : at + 8] = number.to_bytes(8, "little")
    elif how == "cut":
        del content[rng.randrange(len(content)) :]
    elif how == "grown":
        content += rng.randbytes(rng.choice([1, 64, 5000]))
    elif how == "other":
        content = bytearray(rng.randbytes(rng.choice([0, 1, 47, 48, 64, 5000])))
    if how != "nothing":
        path.unlink()
    if how == "link":
        (folder / "elsewhere").write_bytes(content)
        path.symlink_to(folder / "elsewhere")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how not in ("gone", "nothing"):
        path.write_bytes(content)
        path.chmod(0o666 if how == "mode" else 0o600)
    return f"{'the key' if path.name == 'key' else 'tables'}: {how}"


def rank_file(rng: random.Random) -> tuple[bytes, str, dict[str, int]]:
    """(content, split pattern, control tokens); about half of them are right."""
    from tests.random_tokenizer_files import PATTERNS

    pieces = [bytes([b]) for b in range(256)]
    for _ in range(rng.choice([0, 5, 60])):
        made = rng.choice(pieces) + rng.choice([*pieces[97:103], *pieces[256:], b" ", "é".encode()])
        if made not in pieces:
            pieces.append(made)
    if rng.random() < 0.1:
        pieces.append(bytes(rng.choices(b"ab", k=rng.choice([300, 3000, 300_000]))))
    order = list(range(len(pieces)))
    if rng.random() < 0.3:
        rng.shuffle(order)
    lines = [b"%s %d" % (base64.b64encode(piece), rank) for piece, rank in zip(pieces, order)]
    while rng.random() < 0.5:
        lines_changed(rng, lines)
    special = {rng.choice(["<|end|>", "<|e", "a", "é", "Ġ", "", " "]): rng.choice([len(pieces) + 1, *RANKS])}
    separator = rng.choice([b"\n", b"\n", b"\r\n", b"\n\n"])
    pattern = rng.choice([PATTERN, PATTERN, r"\w+|\W+", rng.choice(PATTERNS)])
    return separator.join(lines), pattern, special if rng.random() < 0.6 else {}


def lines_changed(rng: random.Random, lines: list[bytes]) -> None:
    at = rng.randrange(len(lines))
    token, _, rank = lines[at].partition(b" ")
    lines[at] = rng.choice(
        [
            b"%s %d" % (token, rng.choice(RANKS)),
            token,
            token + b" " + rank + b" 7",
            token[:-1] + b" " + rank,
            b"= " + rank,
            b" " + rank,
            b"%s 1e3" % token,
            b"%s %s" % (token, b"9" * rng.choice([30, 5000])),
            lines[rng.randrange(len(lines))],
            rng.randbytes(12),
            "\u0661".encode().join([token + b" ", b""]),  # a digit of another script
            b"",
        ]
    )


def wrong_with_ranks(ranks: bytes, pattern: str, special: dict[str, int], texts: list[str]) -> str | None:
    """Load a rank file and use it; compare with tiktoken where that takes it."""
    from prelude.tokenizer import TiktokenEncoding

    from tests.fuzz_tokenizer_files import accepted

    try:
        ours = TiktokenEncoding("made", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special, cache=False)
    except BaseException as error:
        if accepted(error):
            return None
        raise
    theirs = tiktoken_of(ranks, pattern, special)
    for text in texts:
        found = used(ours, theirs, text)
        if found:
            return f"rank file, {text!r}: {found}"
    return None


def used(ours: Any, theirs: Any, text: str) -> str | None:
    from tests.fuzz_tokenizer_files import accepted

    try:
        ids = ours.encode_ordinary(text)
        ours.encode(text, allowed_special="all")
        decoded = ours.decode_bytes(ids)
    except BaseException as error:
        if not accepted(error):
            raise
        return None
    if decoded != text.encode():
        return f"decoded to {decoded[:60]!r}"
    if theirs is None:
        return None
    try:
        wanted = theirs.encode_ordinary(text)
        whole = theirs.decode_bytes(wanted) == text.encode()
    except BaseException:  # a panic of its own
        return None
    # Text that the pattern does not match has no ids in tiktoken; here it has some, as in a tokenizer.json.
    return f"{ids[:20]}, tiktoken's are {wanted[:20]}" if whole and ids != wanted else None


def tiktoken_of(ranks: bytes, pattern: str, special: dict[str, int]) -> Any:
    """tiktoken's encoding, or None where it refuses the file, or is not installed."""
    try:
        import tiktoken

        by_bytes = {base64.b64decode(a): int(b) for a, b in (line.split() for line in ranks.splitlines() if line)}
        return tiktoken.Encoding("made", pat_str=pattern, mergeable_ranks=by_bytes, special_tokens=special)
    except BaseException:
        return None
