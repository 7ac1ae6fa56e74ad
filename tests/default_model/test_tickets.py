"""The messages and typed questions of the training's fourth round, and the sentences it is judged by."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from bench.train import DATA
from prelude import Choice, Decide, Engine, Noul, Score

pytest.importorskip("babel")
pytest.importorskip("faker")
pytest.importorskip("regex")

from bench.train.corpus import TEMPLATE, Corpus, Question
from bench.train.languages import NAMES
from bench.train.sources import shingles
from bench.train.tickets import MARKS, MOODS, TEAMS, TOPICS, clauses, tickets


def held_out() -> list[dict[str, object]]:
    lines = (DATA / "tickets-heldout.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_every_language_has_every_kind_of_clause() -> None:
    for language, own in clauses().items():
        assert language in NAMES and set(own) == {*TEAMS, *TOPICS, *MOODS, *MARKS}
        assert all(len(set(found)) == len(found) >= 4 for found in own.values()), language


def test_held_out_messages_share_no_run_of_words_with_the_clauses() -> None:
    rows = held_out()
    assert set(Counter(row["language"] for row in rows)) == set(clauses())
    for row in rows:
        said = [clause for own in clauses()[str(row["language"])].values() for clause in own]
        assert shingles(str(row["text"])).isdisjoint(set().union(*map(shingles, said))), row["text"]
        assert (row["topic"] in TEAMS) == (row["mood"] is not None)


def test_questions_have_their_answer_among_their_labels() -> None:
    made = tickets(Corpus({name: ["A plain sentence of words."] for name in NAMES}, {n: ["a"] for n in NAMES}, 5))
    kinds: Counter[str] = Counter()
    for _ in range(400):
        for question in made.example().questions:
            assert question.answer in question.labels and len(set(question.labels)) == len(question.labels)
            assert len(question.notes) in (0, len(question.labels))
            kinds[question.text] += 1
    assert len(kinds) > 30


def test_a_question_is_written_as_the_engine_writes_it() -> None:
    noul = Question("Is it urgent?", ("yes", "no"), "yes", ("today", None))
    score = Question("How angry?", ("0", "1"), "1", ("calm", "furious"))
    plain = Question("Which?", ("a", "b"), "a")
    asked = [
        Noul("Is it urgent?", {"true": "today", "false": None}),
        Score("How angry?", ["calm", "furious"]),
        Choice("Which?", ["a", "b"]),
    ]
    with Engine.from_pretrained() as engine:
        for mine, theirs in zip((noul, score, plain), asked):
            assert mine.asked(TEMPLATE) in engine.explain(Decide("A text.", [theirs])).text
