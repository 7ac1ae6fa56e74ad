"""A million characters of texts that make tokenizers quadratic, through the native core: CPU time and growth.

    python -m bench tokenizer_hostile --tokenizer a/tokenizer.json [--tokenizer b/tokenizer.json ...] [--limit 100]

For each text the CPU milliseconds of a million characters (the least of three), and the factor over a quarter of
the text: 4 is linear, 16 quadratic. The exit status is 1 if a text takes longer than the limit.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from prelude.tokenizer import Tokenizer

from bench.command_line import options_parser

ONE_CHARACTER = "a^ \n\t0_=.<\x00\u00e9\u00a0\u0301\u1100\u200d\u202e\u2581\u3000\u0e33\u4f60\U0001f600"


def hostile_texts(size: int) -> dict[str, str]:
    """Texts of one word, or nearly, of about ``size`` characters."""
    rng = random.Random(1)
    units = [*ONE_CHARACTER, "'s", "ab", "a\u0323\u0301", "\U0001f469\u200d"]
    texts = {ascii(unit): (unit * size)[:size] for unit in units}
    texts["letters"] = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=size))
    texts["few letters"] = "".join(rng.choices("abcdefgh", k=size))
    texts["spaces"] = "".join(rng.choices(" \n\t\r", k=size))
    texts["marks"] = "".join(rng.choices("a\u0301\u0323\u0327\u0300\u0345", k=size))
    texts["Chinese"] = "".join(rng.choices("今天的天气非常好我们决定去公园散步孩子在草地上奔跑老人", k=size // 3))
    texts["any Chinese"] = "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(size // 3))
    texts["torn"] = ("a" * 1000 + texts["letters"][:1000]) * (size // 2000)
    texts["JSON"] = "[" + ",".join(f'{{"id":{i},"v":"x{i * 7919 % 997}"}}' for i in range(600)) + "]"
    return texts


def cpu_seconds(tokenizer: Tokenizer, text: str) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        tokenizer.encode_array(text, False)
        best = min(best, time.process_time() - began)
    return best


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--tokenizer", type=Path, action="append", required=True)
    parser.add_argument("--limit", type=float, default=100.0, help="CPU milliseconds a million characters may take")
    options = parser.parse_args()
    texts, slow = hostile_texts(1_000_000), 0
    for path in options.tokenizer:
        tokenizer = Tokenizer.from_file(path)
        tokenizer.no_truncation()
        rows = []
        for name, text in texts.items():
            whole = cpu_seconds(tokenizer, text)
            quarter = cpu_seconds(tokenizer, text[: len(text) // 4])
            rows.append((1e3 * whole, whole / max(quarter, 1e-9), name))
            slow += 1e3 * whole > options.limit
        rows.sort(reverse=True)
        shown = ", ".join(f"{name} {ms:.0f} ms ({growth:.1f}x)" for ms, growth, name in rows[:6])
        print(f"{path.parent.name}: slowest of {len(rows)}: {shown}", flush=True)
    print(f"{slow} texts over {options.limit:.0f} ms")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
