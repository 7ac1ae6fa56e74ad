"""Shifts of the options until the answer is clear."""

from __future__ import annotations

import itertools

import pytest

from prelude import Choice, Engine, EngineConfig
from tests.examples.conftest import load

early_stop = load("early_stop")
STATE = "The invoice was paid twice and nobody has written back."
LABELS = ["Billing", "Technical", "Sales"]


def test_shifts_are_asked_until_the_margin_is_reached() -> None:
    config = EngineConfig(deterministic=True, kv_bytes=1 << 23)
    with Engine.from_pretrained(config=config) as engine:
        asked = Choice("Which team?", LABELS)
        [whole] = engine.decide(STATE, [asked], orders="all")
        for wave in (1, 2, 3, 9):
            shares, shifts = early_stop.decide_by_margin(engine, STATE, asked, margin=1e9, wave=wave)
            assert shifts == 3 and shares == pytest.approx(dict(whole.probabilities), abs=1e-9)
        assert early_stop.decide_by_margin(engine, STATE, asked, margin=0)[1] == 2
        found = set()
        for order in itertools.permutations(LABELS):
            shares, _ = early_stop.decide_by_margin(engine, STATE, Choice("Which team?", list(order)), margin=1e9)
            found.add(tuple(shares[label] for label in LABELS))
        assert all(one == pytest.approx(next(iter(found)), abs=1e-9) for one in found)
