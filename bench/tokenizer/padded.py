"""Batches that are cut and padded, and one short text, as transformers calls a tokenizer.

Each file's results are compared with HF's before they are timed. ``again``: the same texts at each call; ``never
seen``: each round has other pieces of an English text, the same for both sides, which begin in turns.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from prelude.tokenizer import Tokenizer, fast_tokenizer

from bench.blocks import Run, Times, blocks, statement
from bench.tokenizer.sides import HF, OURS
from bench.tokenizer.streams import Unequal, fresh
from bench.tokenizer.table import Table
from bench.tokenizer.texts import ENGLISH, cut, unseen

ROWS, LENGTH, CHARACTERS = 32, 128, 680
CALL = f"t(x, padding=True, truncation=True, max_length={LENGTH}, return_tensors='np')"
BEHIND = 1_050_000  # characters from the end of the text that the pieces are of: the streamed table has the last
BATCH = "[e.ids for e in t.encode_batch(x)]"


def padded(table: Table, files: Sequence[Path], text: str, rounds: int, seconds: float) -> None:
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
        never_seen(table, name, f"{load}, never seen", sides, text, rounds)


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
    compared(f"{name}: {measure}", sides, code, inputs)
    runs: dict[str, Run] = {side: statement(code, {"t": t} | inputs) for side, t in sides.items()}
    times = blocks(runs, rounds, seconds)
    table.row(name, f"{measure}, times HF", times.ratios(HF, OURS), least=least, note=note(times))


def compared(what: str, sides: dict[str, Any], code: str, inputs: dict[str, Any]) -> None:
    found = {side: plain(eval(code, {"t": t} | inputs)) for side, t in sides.items()}
    if found[HF] != found[OURS]:
        raise Unequal(what)


def never_seen(table: Table, name: str, measure: str, sides: dict[str, Any], text: str, rounds: int) -> None:
    """A round is one call of each side. It is compared behind it, for the comparison puts the pieces into caches."""
    rest = io.StringIO(unseen(text, BEHIND))
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for at in range(rounds):
        texts = [rest.read(CHARACTERS - 7 * row) for row in range(ROWS)]
        if not texts[-1]:
            print(f"padded: the text en is too short for {measure}", file=sys.stderr)
            return
        for side in list(sides)[:: 1 - at % 2 * 2]:
            run = statement(CALL, {"t": sides[side], "x": [fresh(piece) for piece in texts]})
            taken[side].append(run(1))
        compared(f"{name}: {measure}", sides, CALL, {"x": texts})
    times = Times(taken)
    table.row(name, measure, times.ratios(HF, OURS), least=6, note=note(times))


def note(times: Times) -> str:
    return f"{times.median(OURS) * 1e6:.1f} us, HF {times.median(HF) * 1e6:.0f}"


def plain(result: Any) -> Any:
    if not hasattr(result, "items"):
        return result
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in result.items()}
