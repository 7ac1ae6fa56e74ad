"""Write fuzz strings with HF's results to files that the C++ driver ``check_corpus`` reads, for the sanitizers.

    python -m tests.dump_tokenizer_corpus DIR [--count 10000] [--families qwen3,gpt2] [--random-files 200] [--seed 1]

tokenizer/core/NOTES.md has the commands that build the driver and run it. HF panics on some random files, to stderr.

Each tokenizer is two files: NAME.json, and NAME.corpus with records (little endian, lengths and numbers of 32 bits):
whether special tokens are read, the text, the ids, the offsets in characters (two an id), the decoded text.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from prelude.tokenizer._core import UnsupportedFeature

from tests.fuzz_tokenizer import Pair, Strings
from tests.tokenizer.random_files import pair_of
from tests.tokenizer.shared import families, tokenizer_json


def record(pair: Pair, text: str, parse_special: bool) -> bytes:
    pair.hf.encode_special_tokens = not parse_special
    encoding = pair.hf.encode(text, add_special_tokens=False)
    pair.hf.encode_special_tokens = False
    decoded = pair.hf.decode(encoding.ids, skip_special_tokens=False).encode()
    raw, n = text.encode(), len(encoding.ids)
    spans = [at for span in encoding.offsets for at in span]
    return (
        struct.pack("<II", parse_special, len(raw))
        + raw
        + struct.pack(f"<I{n}I{2 * n}I", n, *encoding.ids, *spans)
        + struct.pack("<I", len(decoded))
        + decoded
    )


def dump(folder: Path, name: str, data: bytes, pair: Pair, count: int, rng: random.Random) -> int:
    """Records written: ``count``, less the strings that HF itself fails on."""
    maker, written = iter(Strings(rng, pair.tokens, pair.added, [])), 0
    with (folder / f"{name}.corpus").open("wb") as out:
        for _ in range(count):
            text = next(maker)
            try:
                out.write(record(pair, text, rng.random() < 0.9))
            except BaseException as error:
                if type(error).__name__ != "PanicException" and "not found in the vocabulary" not in str(error):
                    raise
                continue
            written += 1
    (folder / f"{name}.json").write_bytes(data)
    return written


def tokenizers_of(names: list[str], random_files: int) -> Iterable[tuple[str, bytes, Pair]]:
    for name in names:
        data = tokenizer_json(name)
        try:
            yield name, data, Pair(name, data)
        except UnsupportedFeature as reason:
            print(f"{name}: left out, {reason}")
    for seed in range(random_files):
        made = pair_of(seed)
        if made is not None:
            yield f"random-{seed}", *made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000, help="strings a tokenizer; a 40th for a random file")
    parser.add_argument("--families", default="", help="names, separated by commas; all that are here if empty")
    parser.add_argument("--random-files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rng, total = random.Random(args.seed), 0
    names = [n for n in args.families.split(",") if n] or families()
    for name, data, pair in tokenizers_of(names, args.random_files):
        count = args.count // 40 if name.startswith("random-") else args.count
        total += dump(args.folder, name, data, pair, count, rng)
    print(f"{total} strings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
