"""Bulk scoring: order, bad lines, and the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from prelude import Choice, Engine, EngineConfig
from tests.examples.conftest import load

bulk = load("bulk_scoring")
TEXTS = [
    "Two boats lay at the quay.",
    "Zwei Boote lagen am Kai, und der Hafen war still.",
    "Le quai est vide ce matin.",
]


@pytest.mark.fault(73)
def test_rows_keep_their_other_columns_and_a_bad_one_fails_alone() -> None:
    rows: list[dict[str, Any]] = [{"id": at, "text": text} for at, text in enumerate(TEXTS * 5)]
    rows[4] = {"id": 4, "text": "word " * 20_000}
    rows[7] = {"id": 7, "body": "no text at all"}
    out = io.StringIO()
    with Engine.from_pretrained(config=EngineConfig(kv_bytes=1 << 23)) as engine:
        question = Choice("Which language is it?", ["English", "German", "French"])
        bulk.score_all(engine, iter(rows), question, out, window=4)
        stats = engine.stats()
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
    assert "3 row" in captured.err
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
