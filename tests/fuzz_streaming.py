"""Random ids through the streaming decoder: the pieces must make the full decoding.

    python -m tests.fuzz_streaming [--sequences 100000] [--seed 1] [tokenizer.json ...]

Without files: the packaged model's tokenizer, and the shared ones where they are present. Sequences are uniform over
the vocabulary, over its byte tokens and other short pieces, and real text with ids dropped or swapped in.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from prelude.tokenizer import Tokenizer

from prelude import default_model
from prelude.streaming.detokenize import BROKEN, Texts
from prelude.streaming.text import Stops, TextState
from tests.conftest import shared_dir

SHARED = ("qwen3", "llama2", "bert-base-uncased", "t5", "mistral-nemo")
SAMPLES = (
    "The harbour was quiet; 你好，世界！ naïve café — 🦀🙂 👨‍👩‍👧‍👦 🇺🇳 ไทยแลนด์ "
    "עברית العربية हिन्दी 한국어 日本語テスト\n\tint main() { return 0; }  "
)


def files() -> list[Path]:
    """The packaged tokenizer and the five shared ones."""
    found = [default_model.path() / "tokenizer.json"]
    shared = shared_dir()
    if shared is not None:
        found += [shared / "tokenizers" / name / "tokenizer.json" for name in SHARED]
    return [path for path in found if path.is_file()]


class Source:
    """Random id sequences for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.size = max(i for i in range(tokenizer.get_vocab_size() + 64) if tokenizer.id_to_token(i) is not None) + 1
        tokens = {i: tokenizer.id_to_token(i) or "" for i in range(self.size)}
        bytes_ = [i for i, token in tokens.items() if len(token) == 1 or token.startswith("<0x")]
        self.short = np.array(bytes_ or list(tokens), dtype=np.int64)
        self.special = np.array(sorted(tokenizer.get_added_tokens_decoder()) or [0], dtype=np.int64)
        self.text = np.array(tokenizer.encode(SAMPLES, add_special_tokens=False).ids, dtype=np.int64)

    def draw(self) -> list[int]:
        rng, kind = self.rng, self.rng.integers(0, 4)
        n = int(rng.integers(0, 40))
        if kind == 0:
            ids = rng.integers(0, self.size + 3, n)  # a few that no token has
        elif kind == 1:
            ids = rng.choice(self.short, n)
        elif kind == 2:
            start = int(rng.integers(0, len(self.text)))
            ids = self.text[start : start + n].copy()
            if len(ids):
                ids[rng.integers(0, len(ids), int(rng.integers(0, 3)))] = rng.choice(self.short)
        else:
            pools = (self.short, self.special, self.text)
            ids = np.array([rng.choice(pools[p]) for p in rng.integers(0, 3, n)], dtype=np.int64)
        return [int(i) for i in ids]


def chunks(state: TextState, ids: list[int]) -> Iterator[str]:
    for token_id in ids:
        yield state.feed(token_id)
        if state.stopped:
            break
    yield state.finish()
    state.close()


def random_stops(text: str, rng: np.random.Generator) -> Stops:
    words = []
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, max(1, len(text))))
        word = text[at : at + int(rng.integers(1, 6))] or "x"
        words.append(word if rng.integers(0, 3) else word + "zq")  # some begin like the text and do not complete
    return Stops(tuple(words))


def naive_cut(text: str, words: tuple[str, ...], include: bool) -> str:
    """The definition: the first place where a word is complete, the longest of those that end there."""
    ends = [(text.index(word) + len(word), -len(word)) for word in words if word in text]
    if not ends:
        return text
    end, length = min(ends)
    return text[:end] if include else text[: end + length]


def check(texts: Texts, tokenizer: Tokenizer, ids: list[int], rng: np.random.Generator) -> None:
    """Raises ``AssertionError`` with the ids."""
    full = tokenizer.decode(ids)
    parts = list(chunks(TextState(texts), ids))
    assert "".join(parts) == full, (ids, parts, full)
    if BROKEN not in full:
        assert not any(BROKEN in part for part in parts), (ids, parts)
    held = list(chunks(TextState(texts, hold_words=True), ids))
    assert "".join(held) == full, (ids, held, full)
    stops, include = random_stops(full, rng), bool(rng.integers(0, 2))
    cut = "".join(chunks(TextState(texts, stops, include_stop=include, hold_words=bool(rng.integers(0, 2))), ids))
    assert cut == naive_cut(full, stops.words, include), (ids, stops.words, cut, full)
    assert stops.cut(full, include)[0] == cut, (ids, stops.words, cut, full)


def run(path: Path, sequences: int, seed: int) -> None:
    tokenizer = Tokenizer.from_file(path)
    texts, source = Texts(tokenizer), Source(tokenizer, seed)
    for _ in range(sequences):
        check(texts, tokenizer, source.draw(), source.rng)
    assert texts.live == 0, texts.live


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=100_000, help="of all files together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    paths = arguments.files or files()
    for path in paths:
        began = time.perf_counter()
        count = -(-arguments.sequences // len(paths))
        run(path, count, arguments.seed)
        print(f"{path.parent.name}: {count} sequences equal the full decoding, {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
