"""Batches that are cut and padded, and one short text, as transformers calls a tokenizer.

Each file's results are compared with HF's before they are timed; a peer that differs has no figure. ``again``: the
same texts at each call; ``never seen``: each round has other pieces of an English text, the same for all sides, which
begin in turns.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokenizers
from prelude.tokenizer import Tokenizer, fast_tokenizer

from bench.blocks import Run, Times, blocks, statement
from bench.tokenizer.sides import FAST, HF, OURS, fastokens, here
from bench.tokenizer.streams import Unequal, fresh
from bench.tokenizer.table import Table
from bench.tokenizer.texts import ENGLISH, cut, unseen

ROWS, LENGTH, CHARACTERS, LESS = 32, 128, 680, 7  # each text of a batch has some characters less than the one before
TEXTS = f"{ROWS} texts of {CHARACTERS - LESS * (ROWS - 1)} to {CHARACTERS} characters cut at {LENGTH} tokens, padded"
CALL = f"t(x, padding=True, truncation=True, max_length={LENGTH}, return_tensors='np')"
BEHIND = 1_050_000  # characters from the end of the text that the pieces are of: the streamed table has the last
BATCH = "[e.ids for e in t.encode_batch(x)]"


def padded(table: Table, files: Sequence[Path], text: str, rounds: int, seconds: float) -> None:
    prose = cut(ENGLISH, CHARACTERS + ROWS)
    again = [prose[at : at + CHARACTERS - LESS * at] for at in range(ROWS)]
    for path in files:
        name, sides = path.resolve().parent.name, batched(path)
        row(table, name, f"encode_batch, {TEXTS}, again", sides, BATCH, again, rounds, seconds, 15)
        sides = wrapped(path)
        short = "PreTrainedTokenizerFast(text), 50 characters, again"
        row(table, name, short, sides, "t(x)", prose[:50], rounds, seconds, 2)
        load = f"PreTrainedTokenizerFast, {TEXTS}, to arrays"
        row(table, name, f"{load}, again", sides, CALL, again, rounds, seconds, 12)
        never_seen(table, name, f"{load}, never seen", sides, text, rounds)


def batched(path: Path) -> dict[str, Any]:
    sides: dict[str, Any] = {HF: tokenizers.Tokenizer.from_file(str(path)), OURS: Tokenizer.from_file(path)}
    sides |= here("fastokens", lambda: fastokens(path).tokenizer)
    for t in sides.values():
        t.enable_truncation(LENGTH)
        t.enable_padding()
    sides[FAST] = SimpleNamespace(encode_batch=sides[HF].encode_batch_fast)
    if "fastokens" in sides:  # it leaves out special tokens by default
        encode = partial(sides["fastokens"].encode_batch, add_special_tokens=True)
        sides["fastokens"] = SimpleNamespace(encode_batch=encode)
    return sides


def wrapped(path: Path) -> dict[str, Any]:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), model_max_length=LENGTH)
    sides = {HF: theirs, **here("fastokens", partial(patched, theirs))}
    for t in sides.values():  # after the loads: a folder would make the token an added one, which the file lacks
        t.pad_token = theirs.convert_ids_to_tokens(0)
    return sides | {OURS: fast_tokenizer(theirs)}


def patched(theirs: Any) -> Any:
    """The tokenizer that is loaded after ``fastokens.patch_transformers()``, which prints."""
    package = importlib.import_module("fastokens")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        theirs.save_pretrained(folder)
        package.patch_transformers()
        try:
            return type(theirs).from_pretrained(folder)
        finally:
            package.unpatch_transformers()


def row(
    table: Table, name: str, measure: str, sides: dict[str, Any], code: str, given: Any, rounds: int, seconds: float,
    least: float, names: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    inputs = {**(names or {}), "x": given}
    equal = exact(f"{name}: {measure}", sides, code, inputs)
    runs: dict[str, Run] = {side: statement(code, {"t": t} | inputs) for side, t in equal.items()}
    beside(table, name, measure, blocks(runs, rounds, seconds), least)


def exact(what: str, sides: dict[str, Any], code: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The sides whose result is HF's; that ours is not is an error."""
    found = {side: plain(eval(code, {"t": t} | inputs)) for side, t in sides.items()}
    if found[HF] != found[OURS]:
        raise Unequal(what)
    for side in found:
        if found[side] != found[HF]:
            print(f"  {what}: {side} differs from HF: no figure", file=sys.stderr)
    return {side: t for side, t in sides.items() if found[side] == found[HF]}


def never_seen(table: Table, name: str, measure: str, sides: dict[str, Any], text: str, rounds: int) -> None:
    """A round is one call of each side. It is compared behind it, for the comparison puts the pieces into caches."""
    rest = io.StringIO(unseen(text, BEHIND))
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for at in range(rounds):
        texts = [rest.read(CHARACTERS - LESS * row) for row in range(ROWS)]
        if not texts[-1]:
            print(f"padded: the text en is too short for {measure}", file=sys.stderr)
            return
        for side in list(sides)[:: 1 - at % 2 * 2]:
            run = statement(CALL, {"t": sides[side], "x": [fresh(piece) for piece in texts]})
            taken[side].append(run(1))
        sides = exact(f"{name}: {measure}", sides, CALL, {"x": texts})
    beside(table, name, measure, Times({side: taken[side] for side in sides}), 6)


def beside(table: Table, name: str, measure: str, times: Times, least: float) -> None:
    """A row for each peer, HF in its faster way; the aim is for HF."""
    times.join(FAST, HF)
    for peer in times.of:
        if peer != OURS:
            note = f"{times.median(OURS) * 1e6:.1f} us, {peer} {times.median(peer) * 1e6:.0f}"
            aim = least if peer == HF else None
            table.row(name, f"{measure}, times {peer}", times.ratios(peer, OURS), least=aim, note=note)


def plain(result: Any) -> Any:
    if not hasattr(result, "items"):
        return result
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in result.items()}
