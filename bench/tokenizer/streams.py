"""Text that no cache has seen, in calls one after the other: how fast, and the slow calls among them.

Each side is loaded anew and reads the pieces once, a few times over; a piece counts its least time. This
excludes the effect of other processes, and it includes occasional work of the tokenizer (a cache that grows).
"""

from __future__ import annotations

import gc
import random
import re
import time
from collections.abc import Sequence

from bench.blocks import Run, Times
from bench.tokenizer.sides import HF, OURS, SEGMENTS, Side, Sides
from bench.tokenizer.table import Table
from bench.tokenizer.texts import chat, unseen

PIECE = 8_192  # characters
FIRST = 40_960  # bytes
# Aims by text: MB/s with warm and with empty caches, times fastokens.
FAST, HARD = (140.0, 120.0, 1.5), (70.0, 70.0, 1.7)
AIMS = {"en": FAST, "code_py": FAST}


def cut_up(text: str, size: int = PIECE) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def fresh(piece: str) -> str:
    """A str that keeps no UTF-8 of an earlier call."""
    return piece[:1] + piece[1:]


def once(side: Side, pieces: Sequence[str], expected: Sequence[list[int]] | None) -> list[float] | int:
    """CPU seconds of each piece; or, where they are compared and differ, how many do."""
    encode = side.encoder()
    encode("A first call pays for tables that are made late.")
    given, taken = [fresh(piece) for piece in pieces], []
    gc.collect()
    gc.disable()
    try:
        for at, piece in enumerate(given):
            began = time.process_time()
            ids = encode(piece)
            taken.append(time.process_time() - began)
            if expected is not None and ids != expected[at]:
                return [encode(p) != e for p, e in zip(pieces, expected)].count(True)
    finally:
        gc.enable()
    return taken


class Unequal(Exception):
    """Ours gave other ids than HF."""


def passes(sides: Sides, pieces: Sequence[str], repeats: int) -> dict[str, list[float]]:
    """The least seconds of each piece, by side; a peer whose ids differ from HF's is left out, ours is an error."""
    expected = [sides[HF].result("list", s=piece) for piece in pieces]
    best: dict[str, list[float]] = {}
    for repeat in range(repeats):
        for name in sides.loaded:
            if name == SEGMENTS or (repeat and (name == HF or name not in best)):
                continue
            taken = once(sides.new(name), pieces, None if repeat else expected)
            if isinstance(taken, int):
                if name == OURS:
                    raise Unequal(f"{taken} of {len(pieces)} pieces of a stream: list")
                print(f"  {name} differs from HF on {taken} of {len(pieces)} pieces: no figure")
                continue
            best[name] = [min(a, b) for a, b in zip(best.get(name, taken), taken)]
    return best


def streamed(table: Table, sides: Sides, texts: dict[str, str], quick: bool) -> None:
    size = 60_000 if quick else 400_000
    for name, text in texts.items():
        rest = unseen(text, 2 * size)
        half = cut_up(rest[: len(rest) // 2]), cut_up(rest[len(rest) // 2 :])
        best = passes(sides, half[0] + half[1], 2 if quick else 3)
        aims = AIMS.get(name, HARD)
        for phase, what in ((1, "caches of other text"), (0, "empty caches")):
            part = slice(0, len(half[0])) if phase == 0 else slice(len(half[0]), None)
            spent = {side: sum(taken[part]) for side, taken in best.items()}
            size_mb = sum(len(piece.encode()) for piece in half[phase]) / 1e6
            rates = {side: size_mb / seconds for side, seconds in spent.items()}
            note = ", ".join(f"{side} {rate:.1f}" for side, rate in rates.items() if side != OURS)
            measure = f"never seen, {what}"
            table.row(name, measure, [rates[OURS]], "MB/s", least=aims[1 - phase], note=note)
            if "fastokens" in rates:
                table.row(name, measure + ", times fastokens", [rates[OURS] / rates["fastokens"]], least=aims[2])


def first_after_load(table: Table, sides: Sides, texts: dict[str, str], rounds: int) -> None:
    """The first 40 KB that a side reads after it was loaded; a value a round."""
    for name, text in texts.items():
        pieces = cut_up(text.encode()[:FIRST].decode(errors="ignore"))
        expected = [sides[HF].result("list", s=piece) for piece in pieces]
        taken: dict[str, list[float]] = {}
        for round in range(rounds):
            for side in sides.loaded:
                if side in (HF, SEGMENTS) or (round and side not in taken):
                    continue
                found = once(sides.new(side), pieces, None if round else expected)
                if isinstance(found, list):
                    taken.setdefault(side, []).append(sum(found))
                elif side == OURS:
                    raise Unequal(f"{sides.path.parent.name}, {found} of {len(pieces)} pieces of {name}: list")
                else:
                    print(f"  {side} differs from HF on {found} of {len(pieces)} pieces: no figure")
        times, size_mb = Times(taken), sum(len(piece.encode()) for piece in pieces) / 1e6
        note = ", ".join(f"{side} {size_mb / times.median(side):.1f}" for side in taken if side != OURS)
        load = f"{sides.path.parent.name}, {name}, the first {size_mb * 1000:.0f} KB after a load"
        table.row(load, "to a list", [size_mb / seconds for seconds in taken[OURS]], "MB/s", note=note)
        for peer in ("fastokens", "gigatoken"):
            if peer in taken:
                table.row(load, f"to a list, times {peer}", times.ratios(peer, OURS))


def mixed(table: Table, sides: Sides, texts: dict[str, str], quick: bool) -> None:
    """Prompts of 2 KB among short and long ones, of all texts: half of them, and 99 in 100, take no longer."""
    rng = random.Random(4)
    pieces: list[str] = []
    for text in texts.values():
        rest = unseen(text, 30_000 if quick else 300_000)
        while len(rest) > 32_000 or (quick and len(rest) > 3_000):
            size = rng.choice((60, 400, 2_048, 2_048, 2_048, 2_048, 2_048, 2_048, 20_000))
            piece = rest[:size] if size != 2_048 else rest[:2_048].encode()[:2_048].decode(errors="ignore")
            pieces.append(piece)
            rest = rest[len(piece) :]
    rng.shuffle(pieces)
    best = passes(sides, pieces, 2 if quick else 3)
    wanted = [at for at, piece in enumerate(pieces) if 2_040 <= len(piece.encode()) <= 2_048]
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        found = {}
        for side, taken in best.items():
            ordered = sorted(taken[at] for at in wanted)
            found[side] = [ordered[min(len(ordered) - 1, int(len(ordered) * share))]]
        table.beside_best("2 KB in a mixed stream", f"{name} of {len(wanted)}", Times(found), OURS)


def unseen_chats(count: int, characters: int = 85_480) -> list[str]:
    return [chat(characters, 100 + at) for at in range(count)]


def grown_chats(count: int, turns: int, characters: int = 85_480) -> list[str]:
    """The last turns of each of some conversations, as they are sent: a turn more each time."""
    texts = []
    for whole in unseen_chats(count, characters):
        begins = [at.start() for at in re.finditer(re.escape("<|im_start|>user"), whole)]
        texts += [whole[:end] for end in [*begins[-turns:], len(whole)][1:]]
    return texts


def in_turn(side: Side, texts: Sequence[str]) -> Run:
    """Each call takes texts that no call before had; ``texts`` are enough for all calls."""
    waiting = iter(texts)
    encode = side.encoder()

    def run(count: int) -> float:
        given = [fresh(next(waiting)) for _ in range(count)]
        began = time.process_time()
        for text in given:
            encode(text)
        return time.process_time() - began

    return run
