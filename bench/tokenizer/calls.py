"""What a call and the columns of its encoding cost, again and again, over the files of ``--family``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from prelude.tokenizer import Tokenizer

from bench.tokenizer.padded import CHARACTERS, ROWS, row
from bench.tokenizer.sides import HF, OURS
from bench.tokenizer.table import Table
from bench.tokenizer.texts import CHINESE, ENGLISH, cut

IDS, OFFSETS, COLUMNS = "t.encode(x).ids", "t.encode(x).offsets", "four(t.encode(x))"
BATCH, BATCH_COLUMNS = "[e.ids for e in t.encode_batch(x)]", "[four(e) for e in t.encode_batch(x)]"


def four(encoding: Any) -> tuple[list[int], list[str], list[tuple[int, int]], list[int]]:
    return encoding.ids, encoding.tokens, encoding.offsets, encoding.attention_mask


def calls(table: Table, files: Sequence[Path], rounds: int, seconds: float) -> None:
    prose = cut(ENGLISH, CHARACTERS + ROWS)
    batch = [prose[at : at + CHARACTERS - 7 * at] for at in range(ROWS)]
    texts = {"Hello": "Hello", "50 characters": prose[:50], f"{CHARACTERS} characters": prose[:CHARACTERS]}
    for path in files:
        name = path.resolve().parent.name
        sides: dict[str, Any] = {HF: tokenizers.Tokenizer.from_file(str(path)), OURS: Tokenizer.from_file(path)}
        for t in sides.values():
            t.no_truncation()
            t.no_padding()
        ids = sides[HF].encode(prose).ids
        given: list[tuple[str, str, Any, float]] = [
            (f"{load}, {measure}", code, text, least)
            for load, text in texts.items()
            for measure, code, least in (
                ("ids", IDS, 20 if load == "Hello" else 60),
                ("offsets", OFFSETS, 30),
                ("four columns", COLUMNS, 30),
            )
        ]
        given += [
            ("Chinese, offsets", OFFSETS, cut(CHINESE, 50), 30),
            (f"batch of {ROWS}, ids", BATCH, batch, 60),
            (f"batch of {ROWS}, four columns", BATCH_COLUMNS, batch, 30),
            (f"decode of {len(ids)} ids", "t.decode(x)", ids, 15),
        ]
        for measure, code, x, least in given:
            row(table, name, measure, sides, code, x, rounds, seconds, least, {"four": four})
