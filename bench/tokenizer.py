"""fasttoken beside HF ``tokenizers``: first that they are equal, then what each costs.

    python -m bench.tokenizer --tokenizer tokenizer.json [--quick] [--json FILE] [--plant-fault WHERE]

Before any time is taken, every input is encoded (with special tokens and without), decoded, and decoded as a
stream by both, and the results compared; at the first difference the bench stops and prints no time.
``--plant-fault`` corrupts one of ours on purpose, to show that.

Times are CPU time of the process, all its threads, in pairs (HF, ours, HF, ours...), so that other load on
the machine meets both alike; a line gives the median of the pairs' ratios and their range. The inputs have
the names and lengths of the reference table: those up to 8,000 characters, then long ones. ``*_unique`` and
``random`` never repeat a word, so that a cache has nothing to remember.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from prelude.tokenizer import DecodeStream, Tokenizer

from bench.common import Report, machine_facts, three

PLACES = ("encode", "encode without special tokens", "decode", "stream")

ENGLISH = (
    "The committee will meet on Tuesday to discuss the budget, and everyone who has an opinion about the new "
    "building should send it in writing before then. Last year's figures weren't final; this year's are. "
)
CHINESE = "今天的天气非常好,我们决定去公园散步。孩子们在草地上奔跑,老人们坐在长椅上聊天。"
CODE = (
    "def merge(left: list[int], right: list[int]) -> list[int]:\n"
    '    """Two sorted lists as one."""\n'
    "    out, i, j = [], 0, 0\n"
    "    while i < len(left) and j < len(right):\n"
    "        if left[i] <= right[j]:\n"
    "            out.append(left[i]); i += 1\n"
    "        else:\n"
    "            out.append(right[j]); j += 1\n"
    "    return out + left[i:] + right[j:]\n\n"
)
MIXED = "Hello, wörld! Привет, мир. こんにちは世界 안녕하세요 שלום עולם مرحبا 🙂👍🏽 naïve café 12,345.67 € "
TURN = "<|im_start|>user\nWhat is {0} times {1}?<|im_end|>\n<|im_start|>assistant\nIt is {2}.<|im_end|>\n"


def cut(text: str, characters: int) -> str:
    return (text * (characters // len(text) + 1))[:characters]


def unique(characters: int, seed: int) -> str:
    """Words that do not come again."""
    rng = random.Random(seed)
    words: list[str] = []
    size = 0
    while size < characters:
        words.append("".join(rng.choices("etaoinshrdlucmfwypvbgk", k=rng.randint(2, 11))))
        size += len(words[-1]) + 1
    return " ".join(words)[:characters]


def anything(characters: int, seed: int) -> str:
    rng = random.Random(seed)
    pools = ("abcdefghij", "0123456789", " \n\t", "éüñçß", "你好世界天气", "привет", "🙂👍🏽", "'\"<>|_-.,")
    return "".join(rng.choice(rng.choice(pools)) for _ in range(characters))


def chat(turns: int) -> str:
    return "".join(TURN.format(i, i + 7, i * (i + 7)) for i in range(turns))


def inputs(quick: bool) -> dict[str, str]:
    texts = {
        "tiny": "Hello",
        "short_english": cut(ENGLISH, 51),
        "short_chinese": cut(CHINESE, 90),
        "medium_prose": cut(ENGLISH, 674),
        "code_snippet": cut(CODE, 470),
        "mixed_multilingual": cut(MIXED, 641),
        "long_repeat": cut("All work and no play makes Jack a dull boy. ", 2_025),
        "long_unique": unique(4_000, 1),
        "very_long": cut(ENGLISH, 8_000),
        "chat_template": chat(3)[:212],
        "random_4K": anything(4_000, 2),
    }
    if quick:
        return texts
    return texts | {
        "long_32K": cut(ENGLISH, 32_000),
        "long_64K": cut(ENGLISH, 64_000),
        "long_200K": cut(ENGLISH, 200_000),
        "long_200K_unique": unique(200_000, 3),
        "long_code_16K": cut(CODE, 16_000),
        "multi_turn_chat_8K": cut(chat(300), 21_370),
        "multi_turn_chat_32K": cut(chat(1_200), 85_480),
        "long_chinese_32K": cut(CHINESE, 31_998),
    }


class Ours:
    """What is compared and timed of ours; a planted fault changes one result."""

    def __init__(self, tokenizer: Tokenizer, fault: str | None) -> None:
        self._tokenizer, self._fault = tokenizer, fault

    def encode(self, text: str, special: bool) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids[:-1] if ids and self._fault == PLACES[0 if special else 1] else ids

    def decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text + "!" if self._fault == "decode" else text

    def stream(self, ids: Sequence[int]) -> list[str | None]:
        stream = DecodeStream(skip_special_tokens=False)
        parts = [stream.step(self._tokenizer, i) for i in ids]
        return parts[:-1] if self._fault == "stream" else parts


def stream_of_hf(tokenizer: Any, ids: Sequence[int]) -> list[str | None]:
    stream = tokenizers.decoders.DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, i) for i in ids]


def differences(ours: Ours, theirs: Any, texts: dict[str, str]) -> Iterator[str]:
    """Where the two differ: the gate before all timing."""
    for name, text in texts.items():
        for place, special in zip(PLACES, (True, False)):
            if ours.encode(text, special) != theirs.encode(text, add_special_tokens=special).ids:
                yield f"{name}: {place}"
        ids = theirs.encode(text, add_special_tokens=False).ids
        if ours.decode(ids) != theirs.decode(ids, skip_special_tokens=False):
            yield f"{name}: decode"
        if ours.stream(ids[:2_000]) != stream_of_hf(theirs, ids[:2_000]):
            yield f"{name}: stream"


Times = tuple[list[float], list[float]]


def pairs(theirs: Callable[[], Any], ours: Callable[[], Any], seconds: float) -> Times:
    """CPU seconds of a call of each, taken in turn for about ``seconds`` of each."""
    theirs(), ours()
    began = time.process_time()
    theirs()
    slow = max(time.process_time() - began, 1e-6)
    loops = max(1, int(2e-3 / slow))
    rounds = max(5, min(60, int(seconds / (slow * loops))))
    times: Times = ([], [])
    for _ in range(rounds):
        for run, taken in ((theirs, times[0]), (ours, times[1])):
            began = time.process_time()
            for _ in range(loops):
                run()
            taken.append((time.process_time() - began) / loops)
    return times


class Table:
    def __init__(self, report: Report, seconds: float) -> None:
        self._report, self._seconds = report, seconds

    def line(self, load: str, measure: str, theirs: Callable[[], Any], ours: Callable[[], Any]) -> None:
        before, after = pairs(theirs, ours, self._seconds)
        ratios = [b / max(a, 1e-9) for b, a in zip(before, after)]
        note = f"HF {statistics.median(before) * 1e6:.1f} us, ours {statistics.median(after) * 1e6:.1f} us"
        self._report.add(load, measure, three(ratios), "x", note=note)


def time_all(ours: Tokenizer, theirs: Any, texts: dict[str, str], path: Path, quick: bool) -> Report:
    facts = {"tokenizers": tokenizers.__version__, "backend": ours.backend, "vocabulary": ours.get_vocab_size()}
    report = Report(
        "fasttoken beside HF tokenizers", "python -m bench.tokenizer", facts=machine_facts(list(facts.items()))
    )
    table = Table(report, 0.1 if quick else 0.6)
    for name, text in texts.items():
        load = f"{name} ({len(text)} ch, {len(ours.encode_array(text, False))} tok)"

        def hf_ids(text: str = text) -> Any:
            return theirs.encode(text, add_special_tokens=False).ids

        table.line(
            load, "encode to a list", hf_ids, lambda text=text: ours.encode(text, add_special_tokens=False).ids
        )  # type: ignore[misc]
        table.line(load, "encode to an array", hf_ids, lambda text=text: ours.encode_array(text, False))  # type: ignore[misc]
        ids = hf_ids()
        table.line(
            load,
            "decode",
            lambda ids=ids: theirs.decode(ids, skip_special_tokens=False),  # type: ignore[misc]
            lambda ids=ids: ours.decode(ids, skip_special_tokens=False),  # type: ignore[misc]
        )
    prose = texts["medium_prose"]
    table.line(
        "medium_prose",
        "ids, tokens, offsets, words",
        lambda: every_column(theirs.encode(prose)),
        lambda: every_column(ours.encode(prose)),
    )
    ids = theirs.encode(texts["very_long"], add_special_tokens=False).ids[:500]
    table.line(
        "very_long, 500 tokens", "stream", lambda: stream_of_hf(theirs, ids), lambda: Ours(ours, None).stream(ids)
    )
    for size in (1, 4, 16, 64):
        batch = [prose[i:] + prose[:i] for i in range(size)]
        table.line(
            f"batch of {size}",
            "encode_batch",
            lambda batch=batch: [e.ids for e in theirs.encode_batch(batch)],  # type: ignore[misc]
            lambda batch=batch: [e.ids for e in ours.encode_batch(batch)],  # type: ignore[misc]
        )
    table.line(
        "8 threads x 100",
        "encode",
        lambda: threaded(lambda: theirs.encode(prose).ids),
        lambda: threaded(lambda: ours.encode(prose).ids),
    )
    # What a call costs before any text is looked at: Python's share, which users pay.
    table.line("empty text", "encode to a list", lambda: theirs.encode("").ids, lambda: ours.encode("").ids)
    theirs_loaded = partial(tokenizers.Tokenizer.from_file, str(path))
    table.line("the file", "load", theirs_loaded, lambda: Tokenizer.from_file(path, cache=False))
    with tempfile.TemporaryDirectory() as folder:
        Tokenizer.from_file(path, cache=folder)
        table.line("the file", "load, tables kept", theirs_loaded, lambda: Tokenizer.from_file(path, cache=folder))
    return report


def every_column(encoding: Any) -> tuple[Any, ...]:
    return encoding.ids, encoding.tokens, encoding.offsets, encoding.word_ids


def threaded(run: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=lambda: [run() for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--quick", action="store_true", help="short inputs, few rounds")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--plant-fault", choices=PLACES, help="corrupt our results there; the gate must stop")
    options = parser.parse_args()
    ours, theirs = Tokenizer.from_file(options.tokenizer), tokenizers.Tokenizer.from_file(str(options.tokenizer))
    for tokenizer in (ours, theirs):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    texts = inputs(options.quick)
    found = list(differences(Ours(ours, options.plant_fault), theirs, texts))
    if found:
        print(
            f"not equal to HF, so nothing is timed: {len(found)} differences, the first: {found[0]}", file=sys.stderr
        )
        return 1
    print(f"equal to HF: {', '.join(PLACES)} on {len(texts)} inputs")
    report = time_all(ours, theirs, texts, options.tokenizer, options.quick)
    report.show()
    if options.json:
        report.write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
