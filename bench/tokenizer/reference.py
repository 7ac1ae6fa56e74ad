"""The calls of a file beside HF; on the reference backend, the time that our interface adds to a call of HF.

    python -m bench tokenizer_reference --tokenizer t5/tokenizer.json [--tokenizer ...] [--json FILE]

Each call's result is compared with HF's first. Times are processor time, in alternating blocks; a row says how many
times as fast as HF the call is, and 1 is the aim.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tokenizers
from prelude.tokenizer import Tokenizer

from bench.blocks import blocks, statement
from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts
from bench.tokenizer.sides import version_of
from bench.tokenizer.table import Table

PROSE = "The harbour was quiet, and 12 boats lay at the quay: Straße, naïve. "
BATCH = [PROSE * (1 + i % 9) for i in range(32)]
COLUMNS = "[(e.ids, e.attention_mask, e.type_ids) for e in t.encode_batch(s)]"
# name: the settings, the statement over the tokenizer ``t`` and the argument ``s``, and that argument
CALLS: dict[str, tuple[str, str, Any]] = {
    "Hello": ("", "t.encode(s).ids", "Hello"),
    "Hello, four columns": ("", "e = t.encode(s); (e.ids, e.tokens, e.offsets, e.attention_mask)", "Hello"),
    "680 characters": ("", "t.encode(s).ids", PROSE * 10),
    "a pair of them": ("", "t.encode(s, s).ids", PROSE * 10),
    "batch of 32": ("", "[e.ids for e in t.encode_batch(s)]", BATCH),
    "batch of 32, fast": ("", "[e.ids for e in t.encode_batch_fast(s)]", BATCH),
    "batch of 32 lists of words": ("", "[e.ids for e in t.encode_batch(s, True)]", [b.split() for b in BATCH]),
    "Hello, padded and cut": ("padded and cut", "t.encode(s).ids", "Hello"),
    "batch of 32, padded and cut": ("padded and cut", COLUMNS, BATCH),
    "batch of 32, overlapping parts": ("overlapping", "[len(e.overflowing) for e in t.encode_batch(s)]", BATCH),
    "decode 680 characters": ("", "t.decode(s)", None),
}


def set_up(tokenizer: Any, settings: str) -> None:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if settings:
        tokenizer.enable_padding()
        tokenizer.enable_truncation(64, stride=8 if settings == "overlapping" else 0)


def result(code: str, tokenizer: Any, argument: Any) -> Any:
    """The value of the last expression of ``code``."""
    *before, last = code.split("; ")
    names = {"t": tokenizer, "s": argument}
    for line in before:
        exec(line, names)
    return eval(last, names)


def measured(table: Table, path: Path, rounds: int, seconds: float) -> bool:
    """Whether all results were HF's; the rows of one file, if so."""
    both = {"ours": Tokenizer.from_file(path), "HF": tokenizers.Tokenizer.from_file(str(path))}
    print(f"{path.parent.name}: backend {both['ours'].backend}", file=sys.stderr)
    for name, (settings, code, given) in CALLS.items():
        for tokenizer in both.values():
            set_up(tokenizer, settings)
        argument = both["HF"].encode(PROSE * 10).ids if given is None else given
        if result(code, both["ours"], argument) != result(code, both["HF"], argument):
            print(f"not equal to HF, so nothing is timed: {path}, {name}", file=sys.stderr)
            return False
        runs = {side: statement(code, {"t": tokenizer, "s": argument}) for side, tokenizer in both.items()}
        times = blocks(runs, rounds, seconds)
        note = f"{times.median('ours') * 1e6:.1f} us"
        table.row(f"{path.parent.name}, {name}", "times HF", times.ratios("HF", "ours"), least=1, note=note)
    return True


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--tokenizer", type=Path, action="append", required=True, help="a tokenizer.json")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    add_outputs(parser)
    options = parser.parse_args()
    versions = [("tokenizers", version_of("tokenizers"))]
    report = Report("Calls beside HF", facts=machine_facts(versions))
    rounds, seconds = (3, 0.001) if options.quick else (21, 0.01)
    for path in options.tokenizer:
        if not measured(Table(report), path, rounds, seconds):
            return 1
    report.finish(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
