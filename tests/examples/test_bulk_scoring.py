"""Bulk scoring: order, the bound on tasks in flight, bad lines, and the command line."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, Choice, EngineConfig
from tests.examples.conftest import load

bulk = load("bulk_scoring")
TEXTS = [
    "Two boats lay at the quay.",
    "Zwei Boote lagen am Kai, und der Hafen war still.",
    "Le quai est vide ce matin.",
]


def test_results_come_in_order_and_no_more_than_the_bound_is_in_flight() -> None:
    running = most = read = finished = 0

    async def work(item: int) -> int:
        nonlocal running, most, finished
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (item % 3))
        running -= 1
        finished += 1
        return item

    def items() -> Iterator[int]:
        nonlocal read
        for item in range(50):
            read += 1
            assert read - finished <= 5, "read ahead of the work"
            yield item

    async def main() -> list[int]:
        return [item async for item in bulk.in_order(items(), work, 4)]

    assert asyncio.run(main()) == list(range(50)) and most == 4


def test_leaving_early_cancels_the_requests_under_way() -> None:
    cancelled = []

    async def work(item: int) -> int:
        try:
            await asyncio.sleep(0 if item == 0 else 60)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise
        return item

    async def main() -> None:
        results = bulk.in_order(range(9), work, 4)
        assert await anext(results) == 0
        await results.aclose()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert cancelled == [1, 2, 3]


@pytest.mark.fault(73)
def test_rows_keep_their_other_columns_and_a_bad_one_fails_alone() -> None:
    rows: list[dict[str, Any]] = [{"id": at, "text": text} for at, text in enumerate(TEXTS * 5)]
    rows[4] = {"id": 4, "text": "word " * 20_000}
    rows[7] = {"id": 7, "body": "no text at all"}
    out, advanced = io.StringIO(), []

    async def main() -> dict[str, Any]:
        async with AsyncEngine.from_pretrained(config=EngineConfig(kv_bytes=1 << 23)) as engine:
            question = Choice("Which language is it?", ["English", "German", "French"])
            count = await bulk.score_all(
                engine, iter(rows), question, out, in_flight=4, advance=lambda: advanced.append(1)
            )
            assert count == len(rows) == len(advanced)
            return engine.stats()

    stats = asyncio.run(main())
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["id"] for line in lines] == list(range(15))
    assert lines[4]["error"].startswith("PromptTooLong") and "error" in lines[7]
    good = [line for line in lines if "error" not in line]
    assert len(good) == 13 and all(sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-4) for line in good)
    assert stats["finished"] == 13 and stats["failed"] == 0


def test_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text(
        json.dumps({"id": "a", "text": TEXTS[0]}) + "\n\n" + TEXTS[1] + "\n" + '["no object"]\n', encoding="utf-8"
    )
    bulk.main([str(source), "--question", "Does it contain personal data?", "--rubric", "You read one short text."])
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["text"] for line in lines] == [TEXTS[0], TEXTS[1], '["no object"]'] and lines[0]["id"] == "a"
    assert all(line["label"] in ("yes", "no") for line in lines)
    assert "3/3" in captured.err
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXTS[2] + "\n"))
    bulk.main(["-", "--question", "Which language is it?", "--labels", "English,French"])
    assert json.loads(capsys.readouterr().out)["label"] in ("English", "French")


def test_a_line_that_is_no_text_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = json.dumps({"text": TEXTS[0]}).encode()
    nested = b'{"text": "x", "a": ' + b"[" * 900 + b"]" * 900 + b"}"
    bad = [b'{"text": "\\ud800 half"}', b"[" * 100_000, b"\xff\xfe latin", nested, b'{"n": ' + b"9" * 20_000 + b"}"]
    source = tmp_path / "texts.jsonl"
    source.write_bytes(b"\n".join([good, *[line for one in bad for line in (one, good)]]))
    bulk.main([str(source), "--question", "Is it polite?"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 11 and all(line["label"] in ("yes", "no") for line in lines[::2])
    half, brackets, latin, deep, number = lines[1::2]
    assert half["text"] == "\ud800 half" and "lone surrogate" in half["error"]
    assert brackets["error"].startswith(("RequestTooLarge", "PromptTooLong"))
    assert latin["text"] == "\udcff\udcfe latin" and "lone surrogate" in latin["error"]
    assert deep.get("label") or "nested" in deep["error"]
    assert number["error"].startswith("PromptTooLong")
