"""Text that no cache has seen, in calls one after the other: how fast, and the slow calls among them.

Each side is loaded some times over and reads all pieces once a load, the sides in turns. A load begins with other
pieces than the one before: the first piece meets empty caches, the others those of the pieces before them. A row has
the median and the range of the turns of one half.
"""

from __future__ import annotations

import gc
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from bench.blocks import Run, Times
from bench.tokenizer.sides import HF, OURS, SEGMENTS, VARIANTS, Side, Sides
from bench.tokenizer.table import Table
from bench.tokenizer.texts import chat, unseen

PIECE = 8_192  # characters
FIRST = 40_960  # bytes
TURNS = 8  # of a load
# Aims by text: MB/s in the first and in the second half after a load, times the best peer.
FAST, HARD = (120.0, 140.0, 1.5), (70.0, 70.0, 1.7)
AIMS = {"en": FAST, "code_py": FAST}


def cut_up(text: str, size: int = PIECE) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def fresh(piece: str) -> str:
    """A str that keeps no UTF-8 of an earlier call."""
    return piece[:1] + piece[1:]


def once(encode: Callable[[str], object], pieces: Sequence[str]) -> list[float]:
    """CPU seconds of each piece."""
    given, taken = [fresh(piece) for piece in pieces], []
    gc.disable()
    for piece in given:
        began = time.process_time()
        encode(piece)
        taken.append(time.process_time() - began)
    gc.enable()
    return taken


class Unequal(Exception):
    """Ours gave other ids than HF."""


def exact(sides: Sides, pieces: Sequence[str]) -> Iterator[str]:
    """The sides whose ids are HF's; that ours are not is an error."""
    expected = [sides[HF].result("list", s=piece) for piece in pieces]
    for name, side in sides.loaded.items():
        found = [side.result("list", s=piece) != ids for piece, ids in zip(pieces, expected)].count(True)
        if found and name == OURS:
            raise Unequal(f"{sides.path.parent.name}, {found} of {len(pieces)} pieces of a stream: list")
        if found:
            print(f"  {name} differs from HF on {found} of {len(pieces)} pieces: no figure")
        elif name != SEGMENTS:
            yield name


Turn = tuple[list[str], dict[str, list[float]]]  # its pieces, and their seconds by side


def loads(sides: Sides, pieces: list[str], count: int, turns: int = TURNS) -> Iterator[list[Turn]]:
    """The turns of each load. A call that is not counted comes before each. All peers are loaded once, then the two
    fastest again, each in its faster way."""
    names, turns = list(exact(sides, pieces)), min(turns, len(pieces))
    for at in range(count):
        begin = at * len(pieces) // count
        given = pieces[begin:] + pieces[:begin]
        encoders = {name: sides.new(name).encoder() for name in names}
        before = "A first call pays for tables that are made late."
        done: list[Turn] = []
        for turn in range(turns):
            part = given[turn * len(given) // turns : (turn + 1) * len(given) // turns]
            order = names[:: 1 - turn % 2 * 2]
            done.append((part, {name: once(encoders[name], [before, *part])[1:] for name in order}))
            before = part[-1]
        yield done
        fastest: dict[str, str] = {}
        for name in sorted(names, key=lambda name: sum(sum(taken[name]) for _, taken in done)):
            if name != OURS and len(fastest) < 2:
                fastest.setdefault(VARIANTS.get(name, name), name)
        names = [name for name in names if name in (OURS, *fastest.values())]


def rates(table: Table, load: str, measure: str, turns: Iterable[Turn], aims: Sequence[float | None]) -> None:
    """Ours, and how many times as fast as the best peer."""
    found: dict[str, list[float]] = {}  # seconds of a megabyte
    for part, taken in turns:
        for side, seconds in taken.items():
            found.setdefault(side, []).append(sum(seconds) * 1e6 / sum(len(piece.encode()) for piece in part))
    times = Times(found)
    note = ", ".join(f"{side} {1 / times.median(side):.1f}" for side in found if side != OURS)
    table.row(load, measure, [1 / one for one in found[OURS]], "MB/s", least=aims[0], note=note)
    best = times.best(OURS)
    table.row(load, f"{measure}, times the best peer", times.ratios(best, OURS), least=aims[1], note=best)


def streamed(table: Table, sides: Sides, texts: dict[str, str], quick: bool) -> None:
    for name, text in texts.items():
        rest = unseen(text, 120_000 if quick else 800_000)
        done = list(loads(sides, cut_up(rest, min(PIECE, len(rest) // TURNS + 1)), 1 if quick else 5))
        half, aims, size = len(done[0]) // 2, AIMS.get(name, HARD), len(rest) // 2
        for at, what in enumerate((f"the first {size:,} characters after a load", f"the next {size:,} characters")):
            part = [turn for turns in done for turn in turns[at * half : (at + 1) * half]]
            rates(table, name, f"never seen, {what}", part, (aims[at], aims[2]))


def first_after_load(table: Table, sides: Sides, texts: dict[str, str], count: int) -> None:
    """The first 40 KB that a side reads after it was loaded."""
    for name, text in texts.items():
        pieces = cut_up(text.encode()[:FIRST].decode(errors="ignore"))
        load = f"{sides.path.parent.name}, {name}, the first {FIRST // 1000} KB after a load"
        rates(table, load, "to a list", (turns[0] for turns in loads(sides, pieces, count, 1)), (None, None))


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
    chosen = {piece for piece in pieces if 2_040 <= len(piece.encode()) <= 2_048}
    found: dict[float, dict[str, list[float]]] = {0.5: {}, 0.99: {}}
    for turns in loads(sides, pieces, 2 if quick else 7):
        for side in turns[0][1]:
            spent = sorted(one for part, taken in turns for piece, one in zip(part, taken[side]) if piece in chosen)
            for share, of in found.items():
                of.setdefault(side, []).append(spent[int(len(spent) * share)])
    for share, of in found.items():
        table.beside_best("2 KB in a mixed stream", f"p{share * 100:.0f} of {len(chosen)}", Times(of), OURS)


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
