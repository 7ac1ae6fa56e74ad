"""A differential fuzzer: the native core against HF tokenizers, ids, offsets, words, tokens and decoding.

    python -m tests.fuzz_tokenizer --minutes 5 [--families qwen3,gpt2] [--seed 1] [--corpus DIR ...]
    python -m tests.fuzz_tokenizer --tokenizer path/to/tokenizer.json

Strings are made by recipes (scripts, repeats, marks, jamo, pieces of the tokenizer's own tokens, JSON, bytes)
and, with --corpus, cut out of the files of directories. The first differences are printed, shortened; the exit
status is 1 if there was any.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tokenizers
from prelude.tokenizer._core import CoreStream, CoreTokenizer
from tokenizers.decoders import DecodeStream

from tests.tokenizer.shared import families, tokenizer_json

RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x09, 0x0D), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x7C0, 0x7FF), (0x900, 0x97F),
    (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0xF00, 0xFFF), (0x1100, 0x11FF), (0x1780, 0x17FF),
    (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209F),
    (0x20A0, 0x20CF), (0x20D0, 0x20FF), (0x2100, 0x214F), (0x2150, 0x218F), (0x2190, 0x23FF), (0x2460, 0x24FF),
    (0x2500, 0x27BF), (0x2E80, 0x2FDF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x3130, 0x318F), (0x3300, 0x33FF),
    (0x3400, 0x3450), (0x4E00, 0x9FFF), (0x4E00, 0x4F00), (0xA000, 0xA0FF), (0xAC00, 0xD7A3), (0xE000, 0xE010),
    (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFB50, 0xFDFF), (0xFE00, 0xFE2F), (0xFE70, 0xFEFF), (0xFF00, 0xFFEF),
    (0xFFF0, 0xFFFF), (0x10000, 0x100FF), (0x10400, 0x1044F), (0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF),
    (0x1E900, 0x1E95F), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1FAFF), (0x20000, 0x20100), (0x2F800, 0x2FA1F),
    (0xE0000, 0xE007F), (0x10FFF0, 0x10FFFF), (0, 0x1F),
]  # fmt: skip
SHARDS = [
    " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2009", "\u200b", "\u200d",
    "\ufeff", "'s", "'S", "'ll", "'LL", "'Re", "'\u017f", "'m", "'t", "'ve", "'d", "don't", "I'm", "a", "B", "the",
    " the", "The", "Hello", " world", "1", "12", "123", "1234567", "\u0663", "\u00b2", "\u2167", ".", ",", "!", "...",
    "?!", "-", "--", "_", "__", "/", "//", "=", "==", "<", ">", "<|", "|>", "{", "}", "(", ")", "\"", "`", "\\", "@",
    "e\u0301", "\u00e9", "a\u0323\u0301", "a\u0301\u0323", "\u0344", "\u212b", "\u2126", "\ufb01", "\u0130", "\u00df",
    "\u1e9e", "\u01c5", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u07f3\u07fd", "\u0e33", "\u4f60\u597d", "\u3042",
    "\u30a2", "\ud55c\uad6d", "\u0928\u092e\u0938\u094d\u0924\u0947", "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\ufe0f", "\u2581", "\u2581\u2581",
    "\u0120", "\u010a", "</w>", "##", "##s", "[UNK]", "[CLS]", "<0x41>", "<unk>", "<s>", "</s>", "\x00", "\x01",
    "\x7f",
    "\u0085", "\u2028", "\ufffd", "\ufffe", "\uffff", "do not", " n't", " .", "http://x.y/z?a=b", "x=1;",
    "\u0345", "\u0390",
]  # fmt: skip


class Strings:
    """Recipes of strings for one tokenizer."""

    def __init__(self, rng: random.Random, tokens: list[str], added: list[str], corpus: list[str]) -> None:
        self.rng, self.tokens, self.added, self.corpus = rng, tokens, added, corpus
        self.recipes: list[Callable[[], str]] = [
            self.shards, self.shards, self.scripts, self.script, self.repeats, self.marks, self.jamo,
            self.vocabulary, self.json, self.bytes,
        ]  # fmt: skip
        if added:
            self.recipes += [self.special, self.special]
        if corpus:
            self.recipes += [self.cut] * 4

    def __iter__(self) -> Iterator[str]:
        while True:
            text = self.rng.choice(self.recipes)()
            if self.rng.random() < 0.15:
                text = self.mutate(text)
            yield text

    def character(self) -> str:
        low, high = self.rng.choice(RANGES)
        return chr(self.rng.randint(low, high))

    def shards(self) -> str:
        return "".join(self.rng.choice(SHARDS) for _ in range(self.rng.randint(0, 14)))

    def scripts(self) -> str:
        return "".join(self.character() for _ in range(self.rng.randint(1, 24)))

    def script(self) -> str:
        low, high = self.rng.choice(RANGES)
        return "".join(
            " " if self.rng.random() < 0.12 else chr(self.rng.randint(low, high))
            for _ in range(self.rng.randint(1, 40))
        )

    def repeats(self) -> str:
        unit = self.rng.choice([self.character, lambda: self.rng.choice(SHARDS)])()
        return self.shards() + unit * self.rng.choice([2, 3, 5, 16, 47, 48, 49, 90]) + self.shards()

    def marks(self) -> str:
        pool = [0x300, 0x301, 0x302, 0x307, 0x323, 0x327, 0x328, 0x331, 0x345, 0x5B0, 0x64B, 0x652, 0x94D, 0xE38,
                0x302A, 0x3099, 0x309A, 0x20D0, 0x7F3, 0x7FD, 0x1DC0, 0xFE20, 0x1D165]  # fmt: skip
        return "".join(
            chr(self.rng.choice(pool)) if self.rng.random() < 0.6 else self.rng.choice("aeoUA \u00e9\u1ec7\u304b")
            for _ in range(self.rng.randint(1, 20))
        )

    def jamo(self) -> str:
        parts = [(0x1100, 0x1112), (0x1161, 0x1175), (0x11A7, 0x11C2), (0xAC00, 0xAC40), (0x3131, 0x3163)]
        return "".join(chr(self.rng.randint(*self.rng.choice(parts))) for _ in range(self.rng.randint(1, 16)))

    def vocabulary(self) -> str:
        return "".join(self.rng.choice(self.tokens) for _ in range(self.rng.randint(1, 8)))

    def json(self) -> str:
        value = {self.rng.choice(SHARDS): [self.rng.randint(-9, 10**6), self.rng.choice(SHARDS), None, 1.5]}
        return json.dumps(value, ensure_ascii=self.rng.random() < 0.5, indent=self.rng.choice([None, 1, 4]))

    def bytes(self) -> str:
        return bytes(self.rng.randrange(256) for _ in range(self.rng.randint(1, 40))).decode("utf-8", "replace")

    def special(self) -> str:
        out = ""
        for _ in range(self.rng.randint(1, 6)):
            token = self.rng.choice(self.added)
            if self.rng.random() < 0.3:
                cut = self.rng.randint(0, len(token))
                token = self.rng.choice([token[:cut], token[cut:], token.upper(), token + token[-1]])
            out += token + self.rng.choice(["", " ", "  ", "\n", "a", "\u00e9", self.rng.choice(SHARDS)])
        return out

    def cut(self) -> str:
        text = self.rng.choice(self.corpus)
        at = self.rng.randrange(max(1, len(text)))
        return text[at : at + self.rng.choice([20, 60, 200, 600, 2000])]

    def mutate(self, text: str) -> str:
        at = self.rng.randint(0, len(text))
        return text[:at] + self.rng.choice([self.character(), self.rng.choice(SHARDS)]) + text[at:]


class Pair:
    """One tokenizer on both sides."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.core = CoreTokenizer.from_json(data)
        self.hf = tokenizers.Tokenizer.from_str(data.decode())
        self.hf.no_truncation()
        self.hf.no_padding()
        self.limit = max(self.hf.get_vocab().values()) + 3
        added = [t.content for t in self.hf.get_added_tokens_decoder().values()]
        vocabulary = [t.replace("\u0120", " ") for t in self.hf.get_vocab()]
        self.tokens, self.added = sorted(vocabulary), sorted(added)

    def differences(self, text: str, rng: random.Random) -> list[str]:
        hf = self.hf.encode(text, add_special_tokens=False)
        ids, offsets, words = self.core.encode_full(text)
        wrong = []
        if ids.tolist() != hf.ids or self.core.encode_array(text).tolist() != hf.ids:
            return ["ids"]
        if not np.array_equal(offsets, np.array(hf.offsets, np.int32).reshape(-1, 2)):
            wrong.append("offsets")
        if words.tolist() != hf.word_ids:
            wrong.append("words")
        if self.core.encode_tokens(text) != hf.tokens:
            wrong.append("tokens")
        if rng.random() < 0.3:
            hf_ids = list(hf.ids)
            for _ in range(rng.randint(0, 3)):
                hf_ids.insert(rng.randint(0, len(hf_ids)), rng.randrange(self.limit))
            if rng.random() < 0.2:
                rng.shuffle(hf_ids)
            wrong += self.decoding(hf_ids, rng)
        if rng.random() < 0.1:
            self.hf.encode_special_tokens = True
            if self.hf.encode(text, add_special_tokens=False).ids != self.core.encode_array(text, False).tolist():
                wrong.append("ids with special tokens as text")
            self.hf.encode_special_tokens = False
        return wrong

    def decoding(self, ids: list[int], rng: random.Random) -> list[str]:
        wrong = []
        skip = rng.random() < 0.5
        if self.hf.decode(ids, skip_special_tokens=skip) != self.core.decode(ids, skip):
            wrong.append(f"decode {ids}")
        if rng.random() < 0.3:
            ours, theirs = CoreStream(self.core, None, skip), DecodeStream(skip_special_tokens=skip)
            for id in ids:
                try:
                    expected = theirs.step(self.hf, id)
                except Exception:
                    break  # a prefix that changed: no defined continuation
                if ours.step(id) != expected:
                    wrong.append(f"stream {ids}")
                    break
        return wrong


def corpus_texts(folders: list[Path]) -> list[str]:
    texts = []
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size < 4 << 20):
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue
    return [t for t in texts if t]


def fuzz(
    pairs: list[Pair], seconds: float, seed: int, corpus: list[str], most: int = 10, count: int | None = None
) -> tuple[Counter, list[str]]:
    """Counts of strings by tokenizer, and the differences found, described."""
    done: Counter = Counter()
    found: list[str] = []
    rng = random.Random(seed)
    makers = [iter(Strings(rng, p.tokens, p.added, corpus)) for p in pairs]
    end = time.monotonic() + seconds
    while time.monotonic() < end and (count is None or sum(done.values()) < count):
        for pair, maker in zip(pairs, makers):
            for _ in range(50):
                text = next(maker)
                done[pair.name] += 1
                wrong = pair.differences(text, rng)
                if wrong:
                    found.append(f"{pair.name}: {'; '.join(wrong)[:300]}: {text!r:.400}")
                    if len(found) >= most:
                        return done, found
    return done, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--families", default="", help="names, separated by commas; all if empty")
    parser.add_argument("--tokenizer", type=Path, action="append", default=[])
    parser.add_argument("--corpus", type=Path, action="append", default=[])
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--most", type=int, default=10, help="differences after which to stop")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(10**9)
    pairs = [Pair(str(path), path.read_bytes()) for path in args.tokenizer]
    if not pairs:
        names = [n for n in args.families.split(",") if n] or families()
        pairs = [Pair(name, tokenizer_json(name)) for name in names]
    done, found = fuzz(pairs, args.minutes * 60, seed, corpus_texts(args.corpus), args.most)
    for line in found:
        print("DIFFERS", line)
    print(f"seed {seed}: {sum(done.values())} strings, {len(found)} differences;", dict(done))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
