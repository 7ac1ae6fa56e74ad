"""Tables as a terminal shows them."""

from __future__ import annotations

import pytest

from prelude.terminal.tables import shortened, shown_width, text_table


@pytest.mark.parametrize(
    ("text", "places"),
    [("", 0), ("abc", 3), ("日本", 4), ("e\u0301", 1), ("1\u20e3Ａ\u200d", 3), ("한글 a", 6), ("กี่", 1)],
)
def test_a_text_takes_the_places_that_a_terminal_gives_it(text: str, places: int) -> None:
    assert shown_width(text) == places


@pytest.mark.parametrize("text", ["abcdefgh", "日本語の文", "e\u0301" * 9, "a日b本c語"])
@pytest.mark.parametrize("width", range(1, 12))
def test_a_shortened_text_fits_and_says_that_it_was_cut(text: str, width: int) -> None:
    short = shortened(text, width)
    assert shown_width(short) <= width
    assert short == text if shown_width(text) <= width else short.endswith("…") and text.startswith(short[:-1])


def test_columns_begin_at_the_same_place_whatever_is_in_them() -> None:
    rows = [
        ["a short one", "yes", "1.0"],
        ["日本語の長い文章です。" * 5, "no", "0.25"],
        ["with\na line", "no", "10.5"],
    ]
    shown = text_table(rows, header=["text", "answer", "p"], right=[2], title="A title")
    title, empty, *lines = shown.split("\n")
    assert (title, empty) == ("A title", "")
    answers = ["answer", "──────", "yes", "no", "no"]
    begins = {shown_width(line[: line.rindex(answer)]) for line, answer in zip(lines, answers)}
    assert len(begins) == 1
    assert {shown_width(line) for line in lines} == {110 + 2 + 6 + 2 + 4}, "the last column ends in one place"
