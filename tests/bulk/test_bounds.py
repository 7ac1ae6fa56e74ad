"""Windows, paces, bars and columns of a run over rows, at both sides of their bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prelude import Choice, Decide, InvalidRequest
from prelude.api.mapping import RowBar, length
from prelude.api.windows import Window, leading_text
from prelude.bulk.rows import Position
from prelude.bulk.run import Pace

QUESTION = (Choice("Which?", ["a", "b"]),)


def test_a_window_takes_a_few_seconds() -> None:
    """16 rows at first and at least, the given number at most."""
    pace = Pace(1024)
    assert pace.rows() == 16
    for rows, seconds, want in ((16, 1.0, 80), (80, 5.0, 80), (80, 100.0, 16), (16, 0.0, 1024), (16, 10.0, 16)):
        pace.measure(rows, seconds)
        assert pace.rows() == want
    pace.measure(16, 1.5)
    assert pace.rows() == 53 and isinstance(pace.rows(), int)
    small = Pace(4)
    assert small.rows() == 4
    small.measure(4, 100.0)
    assert small.rows() == 4, "never more than was asked for"


def test_a_window_groups_equal_beginnings() -> None:
    window: Window[Any] = Window(5)
    for row in ("b", "a", "c", "a"):
        window.add(row, lambda text: Decide(text, QUESTION))
    window.add("no task", lambda text: text)
    assert window.grouped(False) == [1, 3, 0, 2] and window.grouped(True) == [2, 0, 1, 3]
    assert (window.chars, window.full(5), window.full(6)) == (4, True, False)
    refused = window.mapped(4, {})
    assert (refused.index, refused.row, refused.result) == (9, "no task", None)
    assert isinstance(refused.error, InvalidRequest) and "of row 9 is no task" in str(refused.error)
    assert refused.error.field == "task"
    assert leading_text(Decide([{"role": "user", "content": "é"}], QUESTION)) == '[{"role": "user", "content": "é"}]'


def test_a_bar_counts_rows_and_the_share_of_the_cache() -> None:
    told: list[Any] = []
    bar = RowBar(lambda *seen: told.append(seen), 5)
    assert (bar.rows, bar.hit_rate, bar.words()) == (0, 0.0, "cache 0%")

    def result(prompt: int, cached: int) -> Any:
        return SimpleNamespace(stats=SimpleNamespace(prompt_tokens=prompt, cached_tokens=cached))

    with bar:
        bar.end_window(3, {0: result(30, 10), 1: ValueError("no stats"), 2: result(10, 10)})
        bar.end_window(2, {})
    assert (bar.rows, bar.prompt_tokens, bar.cached_tokens, bar.hit_rate) == (5, 40, 20, 0.5)
    assert bar.words() == "cache 50%" and told[-1] == (5, 5)
    assert (Position("B", 7).read, Position("B", None).read, Position("row", 7, rows=3).read) == (7, 0, 3)
    assert length([1, 2]) == 2 and length(iter([1])) is None
