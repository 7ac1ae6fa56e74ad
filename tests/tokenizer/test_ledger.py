"""The ledger of exactness counts what it compares, and goes on where it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", minversion="0.23.3")

from tests import ledger
from tests.tokenizer.small_files import file


def test_short_texts_are_all_strings_of_one_to_three_kinds() -> None:
    kinds = len(ledger.KINDS)
    found = {ledger.short_text(n) for n in range(kinds + kinds**2)}
    assert found == {*ledger.KINDS, *(a + b for a in ledger.KINDS for b in ledger.KINDS)}
    assert {len(ledger.short_text(n)) for n in (kinds + kinds**2, ledger.SHORT - 1)} == {3}


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "tokenizer_json", lambda name: file().encode())
    path = tmp_path / "kept.json"
    run = ["--minutes", "0", "--round", "0", "--families", "words", "--file", str(path)]
    rows: list[dict[str, Any]] = []
    for _ in range(2):
        assert ledger.main(run) == 0
        rows.append(json.loads(path.read_text(encoding="utf-8"))["words"])
    first, second = rows
    assert [row["rounds"] for row in rows] == [1, 2] and first["short"] == 50 and second["short"] == 100
    assert second["strings"] == 2 * first["strings"] == 200 and second["characters"] > first["characters"] > 100
    monkeypatch.setattr(ledger.Pair, "differences", lambda self, text, rng: ["ids"])
    assert ledger.main(run) == 1
    found = json.loads(path.read_text(encoding="utf-8"))["words"]
    assert found["differences"] == 100 and len(found["shown"]) == ledger.SHOWN
