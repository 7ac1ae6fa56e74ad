"""fasttoken beside HF ``tokenizers`` and every peer installed: first their equality, then the cost of each.

    taskset -c 1 python -m bench tokenizer [--tokenizer tokenizer.json] [--texts FOLDER] [--family FILE ...]
                    [--only PART ...] [--quick] [--json FILE] [--plot FILE] [--plant-fault SIDE KIND]

The default file is the packaged model's; the default texts are made of the files that the machine has.

| part | rows |
|---|---|
| fixed | the inputs of ``bench tokenizer_texts`` to a list and to an array, again and again: geometric means, chat |
| streamed | text never seen before, in two halves after a load; p50 and p99 of 2 KB prompts in a mixed stream |
| columns | ids with offsets, ``.offsets``, decoding, ``DecodeStream`` |
| service | batches, eight threads |
| padded | batches that are cut and padded, by `encode_batch` and through transformers; one short text |
| calls | "Hello", 50 and 680 characters and a batch of 32: ids, offsets, four columns; Chinese; decoding |
| families | the geometric mean of the fixed inputs over other files |
| first | the first 40 KB of each text after a load, to a list, over the other files; each round loads the side |
| load | from the tokenizer.json and from the kept tables; the first call; memory (``bench tokenizer_load``) |

Before any time is taken, every input is encoded (to a list with special tokens and without, to an array, in a batch,
with offsets), decoded, and decoded as a stream, by HF and by ours, and the results compared; at a difference the
bench stops and prints no time. A peer that differs on an input has no figure for it. ``--plant-fault`` corrupts one
side's results of one kind, to show that.

Times are CPU time of the process, all its threads, in alternating blocks of repeated calls (``bench.blocks``). A row
has the median and the range over the rounds, its aim, and whether it meets the aim. Repeated calls favour caches:
``streamed`` is the other half of ``fixed``. Each side's statement is in ``bench/tokenizer/sides.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.blocks import Run, Times, blocks, means, statement
from bench.command_line import options_parser
from bench.common import Panels, Report, Row, add_outputs, machine_facts
from bench.tokenizer import loading as tokenizer_load
from bench.tokenizer.calls import calls
from bench.tokenizer.padded import padded
from bench.tokenizer.sides import HF, KINDS, LOADERS, OURS, SEGMENTS, VARIANTS, Side, Sides, version_of
from bench.tokenizer.streams import Unequal, first_after_load, grown_chats, in_turn, mixed, streamed, unseen_chats
from bench.tokenizer.table import Table
from bench.tokenizer.texts import described, inputs, texts_of, texts_of_this_machine

PACKAGED = Path(__file__).resolve().parents[2] / "prelude" / "default_model" / "tokenizer.json"
TO = {"list": "to a list", "array": "to an array"}
ENVIRONMENT = ("HF1_PATH", "TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS")  # what changes the sides
STREAMED_IDS = 2_000  # of an input's ids, when they are decoded one by one
DECODED = ("medium_prose", "natural_en_32K", "natural_zh_32K")  # those that the aim was taken from
# Aims for single inputs: times HF to a list, to an array.
AIMS = {
    "tiny": (12, None),
    "short_english": (45, None),
    "long_32K": (350, 550),
    "long_64K": (350, 550),
    "long_200K": (350, 550),
    "multi_turn_chat_32K": (600, None),
}


# ---- equality


def arguments(sides: Sides, kind: str, text: str) -> dict[str, Any]:
    if kind in ("decode", "stream"):
        ids = sides[HF].result("list", s=text)
        return {"ids": ids if kind == "decode" else ids[:STREAMED_IDS]}
    return {"texts": [text[at:] for at in range(min(3, len(text)))]} if kind == "batch" else {"s": text}


def equals(side: Side, kind: str, expected: Any, **inputs: Any) -> bool:
    found = side.result(kind, **inputs)
    if kind == "stream" and side.name != OURS:  # peers hold back characters in other ways
        return "".join(filter(None, found)) == "".join(filter(None, expected))
    return bool(found == expected)


def differences(sides: Sides, texts: dict[str, str]) -> Iterator[str]:
    """Where ours and HF differ: the gate before all timing."""
    for name, text in texts.items():
        for kind in KINDS:
            given = arguments(sides, kind, text)
            expected = sides[HF].result("list" if kind == "array" else kind, **given)
            if not equals(sides[OURS], kind, expected, **given):
                yield f"{name}: {kind}"


def exact(sides: Sides, kind: str, name: str, **given: Any) -> list[Side]:
    """The sides that can be timed on an input, HF apart."""
    expected = sides[HF].result("list" if kind == "array" else kind, **given)
    found = []
    for side in sides.with_kind(kind):
        if side.name == HF or equals(side, kind, expected, **given):
            found.append(side)
        else:
            print(f"  {name}: {side.name} to {kind} differs from HF: no figure", file=sys.stderr)
    return found


# ---- parts


class Bench:
    def __init__(self, options: argparse.Namespace, sides: Sides, natural: dict[str, str], table: Table) -> None:
        self.quick: bool = options.quick
        self.table = table
        self.sides = sides
        self.families: list[Path] = options.family
        self.natural = natural
        self.texts = inputs(self.quick, self.natural)
        self.rounds = 3 if self.quick else 11
        self.seconds = 0.001 if self.quick else 0.004

    def timed(self, runs: dict[str, Run]) -> Times:
        return blocks(runs, self.rounds, self.seconds)

    def encoded(self, sides: Sides, name: str, text: str, kinds: tuple[str, ...]) -> Times:
        """All sides on one input, to lists and arrays: "HF list", "prelude array", ...; a peer in its fastest way."""
        runs = {
            f"{side.name} {kind}": side.run(kind, s=text)
            for kind in kinds
            for side in exact(sides, kind, name, s=text)
        }
        times = self.timed(runs)
        for kind in kinds:
            for variant, peer in VARIANTS.items():
                times.join(f"{variant} {kind}", f"{peer} {kind}")
        return times

    def fixed(self) -> None:
        rows: dict[str, Times] = {}
        beside: list[list[float]] = []
        for name, text in self.texts.items():
            rows[name] = times = self.encoded(self.sides, name, text, ("list", "array"))
            load = f"{name} ({len(text)} ch)"
            for kind, least in zip(("list", "array"), AIMS.get(name, (None, None))):
                ours = f"{OURS} {kind}"
                note = ", ".join(
                    f"{key} {times.median(f'{HF} list') / times.median(key):.1f}x"
                    for key in times.of
                    if key.endswith(kind) and key not in (f"{HF} list", ours)
                )
                note = f"{times.median(ours) * 1e6:.2f} us, HF's list {times.median(f'{HF} list') * 1e6:.1f}; {note}"
                self.table.row(load, TO[kind], times.ratios(f"{HF} list", ours), least=least, note=note)
            if "fastokens list" in times.of:
                beside.append(times.ratios("fastokens list", f"{OURS} list"))
                self.table.row(load, "to a list, times fastokens", beside[-1])
        if beside:
            faster = [sum(ratio < 1 for ratio in of_round) for of_round in zip(*beside)]
            row = "to a list, inputs where fastokens is faster"
            self.table.row(f"{len(beside)} inputs", row, faster, f"of {len(beside)}")
        for kind, aims in (
            ("list", {HF: 150, "HF 1.0": 2.3, "fastokens": 1.25}),
            ("array", {HF: 200, "gigatoken": 1.2}),
        ):
            for peer in self.peers():
                key = f"{peer} list" if peer == HF else f"{peer} {kind}"
                of_list = "'s list" if (peer, kind) == (HF, "array") else ""  # it has no array
                self.mean(f"{TO[kind]}, times {peer}{of_list}", rows, key, f"{OURS} {kind}", aims.get(peer))
        self.chats()

    def peers(self) -> list[str]:
        return [name for name in self.sides.loaded if name not in (OURS, *VARIANTS)]

    def mean(self, row: str, rows: dict[str, Times], base: str, ours: str, least: float | None = None) -> None:
        """Over the inputs that ``base`` has figures for."""
        known = [times for times in rows.values() if base in times.of]
        if known and base != ours:
            load = f"geometric mean of {len(known)} inputs" + ("" if len(known) == len(rows) else f" of {len(rows)}")
            self.table.row(load, row, means([times.ratios(base, ours) for times in known]), least=least)

    def chats(self) -> None:
        """Turns that are in no cache of text between control tokens, their words known; then conversations of which
        all but the last turn was sent before, the first three of each not counted."""
        size = 4_000 if self.quick else 85_480
        self.sent_once(
            "turns never seen", unseen_chats(7 if self.quick else 25, size), 0, 2 if self.quick else 8, 300
        )
        self.sent_once(
            "a turn more each time", grown_chats(3, 4 if self.quick else 11, size), 3, 1 if self.quick else 8
        )

    def sent_once(self, row: str, texts: list[str], begun: int, count: int, least: float | None = None) -> None:
        """Texts one after the other, in rounds: ``begun`` untimed (0: one before all), then ``count`` of them."""
        texts = texts if begun else texts[: 1 + 3 * count]
        names = [
            name for name in (HF, OURS, "HF 1.0", "fastokens", SEGMENTS, "gigatoken") if name in self.sides.loaded
        ]
        runs = {name: in_turn(self.sides[name], texts) for name in names}
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for at in range(3):
            for name, run in runs.items():
                run(begun or int(at == 0))
                taken[name].append(run(count) / count)
        times = Times(taken)
        note = ", ".join(f"{name} {times.median(HF) / times.median(name):.0f}x" for name in names[2:])
        load = f"chat of {max(map(len, texts))} ch, {row}"
        self.table.row(load, "to a list", times.ratios(HF, OURS), least=least, note=note)

    def streamed(self) -> None:
        if not self.natural:
            print("streamed: no texts (--texts FOLDER)", file=sys.stderr)
            return
        streamed(self.table, self.sides, self.natural, self.quick)
        mixed(self.table, self.sides, self.natural, self.quick)

    def columns(self) -> None:
        ours, hf = self.sides[OURS], self.sides[HF]
        rows: dict[str, Times] = {}
        steps: dict[str, Times] = {}
        for name, text in self.texts.items():
            ids = arguments(self.sides, "decode", text)["ids"]
            runs = {
                "ids": ours.run("array", s=text),
                "offsets array": ours.run("offsets array", s=text),
                "offsets": ours.run("offsets", s=text),
                "HF offsets": hf.run("offsets", s=text),
            }
            for side in exact(self.sides, "decode", name, ids=ids):
                runs[f"{side.name} decode"] = side.run("decode", ids=ids)
            rows[name] = times = self.timed(runs)
            load = f"{name} ({len(text)} ch, {len(ids)} tok)"
            note = f"{times.median('offsets array') * 1e6:.2f} us"
            self.table.row(
                load, "ids with offsets, cost of ids", times.ratios("offsets array", "ids"), most=1.5, note=note
            )
            self.table.row(load, "ids with offsets, times HF", times.ratios("HF offsets", "offsets array"), least=80)
            note = f"{times.median('offsets') * 1e6:.2f} us"
            self.table.row(load, ".offsets, times HF", times.ratios("HF offsets", "offsets"), least=30, note=note)
            note = f"{times.median(f'{OURS} decode') * 1e6:.2f} us"
            self.table.row(load, "decode, times HF", times.ratios(f"{HF} decode", f"{OURS} decode"), note=note)
            if name in ("long_32K", "very_long") or name.startswith("natural"):
                given = ids[:STREAMED_IDS]
                steps[f"{name}, {len(given)} tokens"] = self.steps(self.sides, name, given)
        self.mean("ids with offsets, times HF", rows, "HF offsets", "offsets array", 80)
        self.mean(".offsets, times HF", rows, "HF offsets", "offsets", 30)
        texts = {name: rows[name] for name in DECODED if name in rows}
        for peer in self.peers():
            self.mean(f"decode, times {peer}", rows, f"{peer} decode", f"{OURS} decode")
            row = f"decode, times {peer}: {', '.join(texts)}"
            self.mean(row, texts, f"{peer} decode", f"{OURS} decode", {HF: 36, "iree": 1.1}.get(peer))
        for load, times in steps.items():
            self.step_row(load, times)
        for path in self.families:
            sides = Sides(path, self.sides.fault)
            text = self.natural.get("en", self.texts["very_long"])[:8_000]
            ids = sides[HF].result("list", s=text)[:STREAMED_IDS]
            self.step_row(f"{path.parent.name}, {len(ids)} tokens", self.steps(sides, path.parent.name, ids))

    def steps(self, sides: Sides, name: str, ids: list[int]) -> Times:
        runs = {side.name: side.run("stream", ids=ids) for side in exact(sides, "stream", name, ids=ids)}
        times = self.timed(runs)
        return Times({side: [one / len(ids) for one in taken] for side, taken in times.of.items()})

    def step_row(self, load: str, times: Times) -> None:
        note = ", ".join(f"{side} {times.median(side) * 1e9:.0f}" for side in times.of if side != OURS)
        self.table.row(
            load, "a step of DecodeStream", [one * 1e9 for one in times.of[OURS]], "ns", most=150, note=note
        )

    def service(self) -> None:
        prose = self.texts["medium_prose"]
        for size in (1, 4, 16, 64):
            texts = [prose[at:] + prose[:at] for at in range(size)]
            found = exact(self.sides, "batch", f"batch of {size}", texts=texts)
            times = self.timed({side.name: side.run("batch", texts=texts) for side in found})
            self.table.beside_best(f"batch of {size} x {len(prose)} ch", "encode_batch", times, OURS)
        with ThreadPoolExecutor(8) as pool:
            runs = {}
            for side in exact(self.sides, "list", "threads", s=prose):
                runs[side.name] = statement(
                    "list(pool.map(hundred, calls))",
                    {"pool": pool, "hundred": partial(hundred, prose), "calls": [side.encoder()] * 8},
                )
            times = self.timed(runs)
        self.table.beside_best(f"8 threads x 100 x {len(prose)} ch", "encode", times, OURS)

    def padded(self) -> None:
        padded(self.table, [self.sides.path, *self.families], self.natural.get("en", ""), self.rounds, self.seconds)

    def calls(self) -> None:
        calls(self.table, self.families or [self.sides.path], self.rounds, self.seconds)

    def of_families(self) -> None:
        for path in self.families:
            sides = Sides(path, self.sides.fault)
            rows = {}
            for name, text in self.texts.items():
                if not equals(sides[OURS], "list", sides[HF].result("list", s=text), s=text):
                    raise Unequal(f"{path.parent.name}, {name}: list")
                rows[name] = self.encoded(sides, f"{path.parent.name}, {name}", text, ("list",))
            found: dict[str, list[float]] = {}
            for side in sides.loaded:
                key = f"{side} list"
                if side != OURS and all(key in times.of for times in rows.values()):
                    found[side] = means([times.ratios(key, f"{OURS} list") for times in rows.values()])
            best = min(found, key=lambda side: sorted(found[side])[len(found[side]) // 2])
            load = f"{path.parent.name}, geometric mean of {len(rows)} inputs"
            self.table.row(load, "to a list, times HF", found[HF])
            self.table.row(load, "to a list, times the best exact peer", found[best], least=1.25, note=best)

    def first(self) -> None:
        for path in self.families:
            first_after_load(self.table, Sides(path, self.sides.fault), self.natural, 3 if self.quick else 7)

    def load(self) -> None:
        tokenizer_load.measured(self.table, self.sides, list(self.natural.values()), self.quick)


PARTS: dict[str, Callable[[Bench], None]] = {
    "fixed": Bench.fixed,
    "streamed": Bench.streamed,
    "columns": Bench.columns,
    "service": Bench.service,
    "padded": Bench.padded,
    "calls": Bench.calls,
    "families": Bench.of_families,
    "first": Bench.first,
    "load": Bench.load,
}


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("--tokenizer", type=Path, default=PACKAGED, help="a tokenizer.json (default: packaged)")
    parser.add_argument(
        "--texts",
        type=Path,
        help="a folder of texts, as python -m bench tokenizer_texts makes it; made anew by default",
    )
    parser.add_argument("--family", type=Path, action="append", default=[], help="a tokenizer.json of another family")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="short inputs, few rounds")
    add_outputs(parser)
    parser.add_argument(
        "--plant-fault", nargs=2, metavar=("SIDE", "KIND"), help=f"{' '.join(LOADERS)}; {' '.join(KINDS)}"
    )
    options = parser.parse_args()
    sides = Sides(options.tokenizer, tuple(options.plant_fault) if options.plant_fault else None)
    versions = [(name, version_of(name)) for name in sides.loaded if version_of(name)]
    file = ("file", options.tokenizer.resolve().parent.name)
    natural = texts_of_this_machine() if not options.texts and not options.quick else texts_of(options.texts)
    texts = ("texts", {name: described(name, text) for name, text in natural.items()})
    environment = ("environment", [name for name in ENVIRONMENT if name in os.environ])
    report = Report("fasttoken among its peers", facts=machine_facts([file, texts, environment, *versions]))
    bench = Bench(options, sides, natural, Table(report))
    found = list(differences(bench.sides, bench.texts))
    try:
        if found:
            raise Unequal(f"{len(found)} differences, the first: {found[0]}")
        print(f"equal to HF: {', '.join(KINDS)} on {len(bench.texts)} inputs", flush=True)
        for part in options.only:
            PARTS[part](bench)
    except Unequal as unequal:
        print(f"not equal to HF, so nothing is timed: {unequal}", file=sys.stderr)
        return 1
    report.show()
    if options.json:
        report.write(options.json)
    if options.plot:
        report.plot(options.plot, panels=panels(report.rows))
    return 0


def panels(rows: Sequence[Row]) -> Panels:
    """The figure's panels: geometric means by peer, single inputs against HF, then the other rows."""
    found: Panels = {}
    for row in rows:
        measure, _, peer = row.measure.partition(", times ")
        if row.unit != "x":
            continue
        if row.load.startswith("geometric mean") and peer:
            found.setdefault(f"{measure}: geometric mean, times each peer", []).append((peer, row))
        elif measure in TO.values() and not peer:
            found.setdefault(f"{measure}, times HF", []).append((row.load, row))
        elif peer:
            found.setdefault("other rows", []).append((f"{row.load}: {row.measure}", row))
    return {title: found[title] for title in sorted(found, key=lambda title: "each peer" not in title)}


def hundred(text: str, encode: Callable[[str], Any]) -> None:
    for _ in range(100):
        encode(text)


if __name__ == "__main__":
    sys.exit(main())
