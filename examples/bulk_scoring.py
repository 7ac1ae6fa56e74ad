"""Score a file of texts: an iterator in, JSON lines out, never more than a window of rows in memory.

    python examples/bulk_scoring.py texts.jsonl --question "Which language is it?" --labels French,English > out.jsonl

A line in is a JSON object with a "text" (its other fields come out again), or plain text. A line out has the
label and its probabilities, or an "error": one bad line fails alone. Lines come out in the order they went in.
``prelude score`` does more of this: other formats, several questions, and runs that go on after a stop.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from prelude import Choice, Decide, Engine, Mapped, YesNo
from prelude.errors import InvalidRequest
from prelude.tasks import Question


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


def scored(one: Mapped[dict[str, Any], Any]) -> dict[str, Any]:
    if one.error is not None:
        return {**one.row, "error": f"{type(one.error).__name__}: {one.error}"}
    [answer] = one.get()
    probabilities = {label: round(p, 6) for label, p in answer.probabilities.items()}
    return {**one.row, "label": answer.label, "probabilities": probabilities, "mass": round(answer.mass, 6)}


def score_all(
    engine: Engine,
    rows: Iterable[dict[str, Any]],
    question: Question,
    out: TextIO,
    *,
    rubric: str = "",
    window: int = 256,
    progress: bool = False,
) -> None:
    """Writes a line a row. The rubric comes first, so that it is computed once and read from the prefix cache by the
    other lines."""

    def task(row: dict[str, Any]) -> Decide:
        text = row.get("text")
        if not isinstance(text, str):
            raise InvalidRequest("there is no text")
        return Decide(f"{rubric}\n\nText: {text}" if rubric else text, [question])

    for one in engine.map(task, rows, window=window, progress=progress):
        out.write(written(scored(one)) + "\n")


def run(chosen: argparse.Namespace, source: TextIO) -> None:
    question = Choice(chosen.question, chosen.labels.split(",")) if chosen.labels else YesNo(chosen.question)
    with Engine.from_pretrained(chosen.model) as engine:
        options: dict[str, Any] = {"rubric": chosen.rubric, "window": chosen.window}
        score_all(engine, read(source), question, sys.stdout, progress=True, **options)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="a file of lines, - for standard input")
    parser.add_argument("--question", required=True)
    parser.add_argument("--labels", help="comma separated; yes or no without them")
    parser.add_argument("--rubric", default="", help="text before every text")
    parser.add_argument("--window", type=int, default=256, help="rows that run together")
    parser.add_argument("--model", help="a directory or a hub name; the packaged model by default")
    chosen = parser.parse_args(arguments)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "strict")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)  # with any locale
    if chosen.input == "-":
        run(chosen, sys.stdin)
        return
    # Bytes that are no UTF-8 become half characters, which the engine refuses in their own line.
    with open(chosen.input, encoding="utf-8", errors="surrogateescape") as source:
        run(chosen, source)


if __name__ == "__main__":
    main()
