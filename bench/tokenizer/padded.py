"""Batches that are cut and padded, and one short text, as transformers calls a tokenizer.

Each file's results are compared with HF's before they are timed. ``again``: the same texts at each call; ``never
seen``: each call has texts that no call had before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from prelude.tokenizer import Tokenizer, fast_tokenizer

from bench.blocks import Run, Times, blocks, statement
from bench.tokenizer.sides import HF, OURS
from bench.tokenizer.streams import Unequal
from bench.tokenizer.table import Table
from bench.tokenizer.texts import ENGLISH, cut, unique

ROWS, LENGTH, CHARACTERS = 32, 128, 680
CALL = f"t(x, padding=True, truncation=True, max_length={LENGTH}, return_tensors='np')"
BATCH = "[e.ids for e in t.encode_batch(x)]"


def padded(table: Table, files: Sequence[Path], rounds: int, seconds: float) -> None:
    prose = cut(ENGLISH, CHARACTERS + ROWS)
    again = [prose[at : at + CHARACTERS - 7 * at] for at in range(ROWS)]
    for path in files:
        name = path.resolve().parent.name
        sides: dict[str, Any] = {HF: tokenizers.Tokenizer.from_file(str(path)), OURS: Tokenizer.from_file(path)}
        for t in sides.values():
            t.enable_truncation(LENGTH)
            t.enable_padding()
        row(table, name, f"encode_batch of {ROWS}, padded and cut, again", sides, BATCH, again, rounds, seconds, 15)
        sides = wrapped(path)
        row(table, name, "AutoTokenizer(text), 50 characters, again", sides, "t(x)", prose[:50], rounds, seconds, 2)
        load = f"AutoTokenizer({ROWS} texts, padding, truncation, np)"
        row(table, name, f"{load}, again", sides, CALL, again, rounds, seconds, 12)
        calls = {side: never_seen(t, rounds) for side, t in sides.items()}
        times = Times({side: list(taken) for side, taken in calls.items()})
        table.row(name, f"{load}, never seen", times.ratios(HF, OURS), least=6, note=note(times))


def wrapped(path: Path) -> dict[str, Any]:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), model_max_length=LENGTH)
    theirs.pad_token = theirs.convert_ids_to_tokens(0)
    return {HF: theirs, OURS: fast_tokenizer(theirs)}


def row(
    table: Table, name: str, measure: str, sides: dict[str, Any], code: str, given: Any, rounds: int, seconds: float,
    least: float, names: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    inputs = {**(names or {}), "x": given}
    found = {side: plain(eval(code, {"t": t} | inputs)) for side, t in sides.items()}
    if found[HF] != found[OURS]:
        raise Unequal(f"{name}: {measure}")
    runs: dict[str, Run] = {side: statement(code, {"t": t} | inputs) for side, t in sides.items()}
    times = blocks(runs, rounds, seconds)
    table.row(name, f"{measure}, times HF", times.ratios(HF, OURS), least=least, note=note(times))


def never_seen(tokenizer: Any, rounds: int) -> Iterator[float]:
    for at in range(rounds):
        texts = [unique(CHARACTERS - 7 * i, 1 + at * ROWS + i) for i in range(ROWS)]
        began = time.process_time()
        eval(CALL, {"t": tokenizer, "x": texts})
        yield time.process_time() - began


def note(times: Times) -> str:
    return f"{times.median(OURS) * 1e6:.1f} us, HF {times.median(HF) * 1e6:.0f}"


def plain(result: Any) -> Any:
    if not hasattr(result, "items"):
        return result
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in result.items()}
