"""Score a file of texts: an iterator in, JSON lines out, never more than so many in flight.

    python examples/bulk_scoring.py texts.jsonl --question "Which language is it?" --labels French,English > out.jsonl

A line in is a JSON object with a "text" (its other fields come out again), or plain text. A line out has the
label and its probabilities, or an "error": one bad line fails alone. Lines come out in the order they went in.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from prelude import AsyncEngine, Choice, YesNo
from prelude.errors import PreludeError
from prelude.tasks import Question

T = TypeVar("T")
R = TypeVar("R")


async def in_order(items: Iterable[T], work: Callable[[T], Awaitable[R]], limit: int) -> AsyncGenerator[R, None]:
    """``work`` of every item, at most ``limit`` at a time; ``items`` is read no faster than that. Leaving early
    cancels the running ones."""
    pending: deque[asyncio.Future[R]] = deque()
    try:
        for item in items:
            if len(pending) >= limit:
                yield await pending.popleft()
            pending.append(asyncio.ensure_future(work(item)))
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()


def read(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = line
        yield row if isinstance(row, dict) else {"text": line}


def written(row: dict[str, Any]) -> str:
    """One line of any row: half characters are written as escapes."""
    try:
        line = json.dumps(row, ensure_ascii=False)
        line.encode()
    except UnicodeEncodeError:
        line = json.dumps(row)
    except RecursionError:
        line = json.dumps({"error": "it is nested too deeply to be written again"})
    return line


async def scored(engine: AsyncEngine, row: dict[str, Any], rubric: str, question: Question) -> dict[str, Any]:
    """The rubric comes first, so that it is computed once and read from the prefix cache by every other line."""
    text = row.get("text")
    if not isinstance(text, str):
        return {**row, "error": "there is no text"}
    try:
        [answer] = await engine.decide(f"{rubric}\n\nText: {text}" if rubric else text, [question])
    except PreludeError as error:
        return {**row, "error": f"{type(error).__name__}: {error}"}
    probabilities = {label: round(p, 6) for label, p in answer.probabilities.items()}
    return {**row, "label": answer.label, "probabilities": probabilities, "mass": round(answer.mass, 6)}


async def score_all(
    engine: AsyncEngine,
    rows: Iterable[dict[str, Any]],
    question: Question,
    out: TextIO,
    *,
    rubric: str = "",
    in_flight: int = 256,
    advance: Callable[[], object] = lambda: None,
) -> int:
    """Writes a line a row; how many."""
    count = 0
    async with aclosing(in_order(rows, lambda row: scored(engine, row, rubric, question), in_flight)) as results:
        async for result in results:
            out.write(written(result) + "\n")
            count += 1
            advance()
    return count


def text_file(path: str) -> TextIO:
    """Bytes that are no UTF-8 become half characters, which the engine refuses in their own line."""
    return open(path, encoding="utf-8", errors="surrogateescape")


async def run(chosen: argparse.Namespace, source: TextIO, out: TextIO) -> int:
    question = Choice(chosen.question, chosen.labels.split(",")) if chosen.labels else YesNo(chosen.question)
    total = None
    if chosen.input != "-":
        with text_file(chosen.input) as lines:
            total = sum(1 for row in read(lines))
    with tqdm(desc="scored", total=total, unit=" lines") as progress:
        async with AsyncEngine.from_pretrained(chosen.model) as engine:
            options: dict[str, Any] = {"rubric": chosen.rubric, "in_flight": chosen.in_flight}
            return await score_all(engine, read(source), question, out, advance=progress.update, **options)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="a file of lines, - for standard input")
    parser.add_argument("--question", required=True)
    parser.add_argument("--labels", help="comma separated; yes or no without them")
    parser.add_argument("--rubric", default="", help="text before every text")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--model", help="a directory or a hub name; the packaged model by default")
    chosen = parser.parse_args(arguments)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "strict")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)  # with any locale
    if chosen.input == "-":
        asyncio.run(run(chosen, sys.stdin, sys.stdout))
    else:
        with text_file(chosen.input) as source:
            asyncio.run(run(chosen, source, sys.stdout))


if __name__ == "__main__":
    main()
