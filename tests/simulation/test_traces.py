from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prelude._native.core import KvPool

from prelude.admission.prepared import Prepared
from prelude.errors import TraceError
from prelude.readouts.logprobs import LogprobRows
from prelude.readouts.pooled import PooledRows
from prelude.simulation.traces import Arrival, TokenSource, read_trace, write_trace
from prelude.simulation.workloads import WORKLOADS, cancelled
from prelude.values.options import RequestOptions
from tests.pools import compute


def test_tokens_of_named_parts_are_shared_as_prefixes_and_nothing_else_is() -> None:
    source = TokenSource()
    assert np.array_equal(source.part("a", 100)[:40], source.part("a", 40))
    pool = KvPool(64, 16)
    prompt = np.concatenate([source.part("a", 40), source.part(None, 40)])
    compute(pool, prompt)
    again = np.concatenate([source.part("a", 40), source.part(None, 40)])
    assert pool.would_hit(prompt) == 5
    assert pool.would_hit(again) == 2  # the block in which the two begin to differ is another one
    assert pool.would_hit(source.part("b", 40)) == 0
    assert source.part("c", 3).dtype == np.int32 and source.part(None, 1).min() >= 0


def test_a_million_parts_without_a_name_all_differ() -> None:
    source = TokenSource()
    firsts = {tuple(source.part(None, 2).tolist()) for _ in range(100_000)}
    assert len(firsts) == 100_000


def test_named_parts_are_forgotten_past_the_bound_and_come_back_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prelude.simulation.traces._KEPT_TOKENS", 1000)
    source = TokenSource()
    before = source.part("first", 500).copy()
    for number in range(50):
        source.part(f"other-{number}", 400)
    assert sum(map(len, source._named.values())) <= 1000
    assert np.array_equal(before, source.part("first", 500))


def test_questions_become_branches_that_read_their_last_tokens() -> None:
    prepared = TokenSource().prepared(Arrival(0.0, (("state", 100),), questions=(12, 7), labels=3))
    tree = prepared.tree
    assert tree.starts.tolist() == [0, 100, 112, 119] and tree.parents.tolist() == [-1, 0, 0]
    assert prepared.readout is not None and prepared.readout.rows.tolist() == [111, 118]
    assert prepared.readout.logits_rows == 2 and isinstance(prepared.readout, LogprobRows)
    assert prepared.readout.target_rows.tolist() == [0, 0, 0, 1, 1, 1]
    assert prepared.readout.targets.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("cache", ["auto", "always", "never"])
def test_each_task_asks_for_what_its_arrival_says(cache: Any) -> None:
    def prepared(**fields: Any) -> Prepared:
        return TokenSource().prepared(Arrival(0.0, (("a", 30), (None, 10)), cache=cache, **fields))

    made = [prepared(), prepared(questions=(4,)), prepared(task="embed"), prepared(task="generate", max_tokens=9)]
    assert [one.cache for one in made] == [cache] * 4
    assert [one.readout and one.readout.rows.tolist() for one in made] == [[39], [43], [39], None]
    assert isinstance(made[2].readout, PooledRows) and made[2].readout.pooling == "last"
    assert made[2].readout.indptr.tolist() == [0, 1] and made[3].max_new_tokens == 9
    arrival = Arrival(1.0, ((None, 5),), priority=3, deadline=2.0, id="x", tenant="y", questions=(2, 4))
    assert arrival.options() == RequestOptions(priority=3, deadline=2.0, request_id="x", tenant="y")
    assert arrival.prompt_tokens == 11


def test_a_trace_file_gives_back_the_written_arrivals(tmp_path: Path) -> None:
    made = list(cancelled(WORKLOADS["chat-and-decisions"](20.0, requests=200, questions=(12, 9)), 0.3, 1.0))
    assert write_trace(made, tmp_path / "trace.jsonl") == 200
    assert list(read_trace(tmp_path / "trace.jsonl")) == made


MOST = 1 << 24


@pytest.mark.parametrize(
    "line",
    [
        {"at": 0, "deadline": 0, "cancel_after": 0, "parts": [[None, 1]], "labels": 1},
        {"at": 1e9, "deadline": 1e9, "cancel_after": 1e9, "parts": [["a", MOST]], "labels": 1 << 20},
        {"at": 0, "parts": [["a", MOST - 2], ["b", 1]], "questions": [1], "cache": "never", "task": "embed"},
        {"at": 0, "parts": [["a", 1]], "labels": 1 << 10, "questions": [1] * 1024, "user": "\u00fc"},
        {"at": 0, "parts": [["\u00fc", 1]], "task": "generate", "max_tokens": 1, "cache": "always"},
        {"at": 0, "parts": [["a", 1]], "task": "generate", "max_tokens": MOST},
    ],
)
def test_an_arrival_at_its_limits_is_read(tmp_path: Path, line: dict[str, Any]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"\n{json.dumps(line)}\n\n{json.dumps(line)}\n", encoding="utf-8")
    parts = {name: tuple(map(tuple, line[name])) if name == "parts" else tuple(line[name]) for name in line
             if name in ("parts", "questions")}  # fmt: skip
    assert list(read_trace(path)) == [Arrival(**{**line, **parts})] * 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[]", "a line is a JSON object"),
        ("{", "line 2"),
        ({"at": 0}, "parts=None"),
        ({"at": 0, "parts": [["a", 0]]}, "parts: 0 is not an integer of at least 1"),
        ({"at": 0, "parts": [["a"]]}, "not [name or null, tokens]"),
        ({"at": -1, "parts": [["a", 1]]}, "at=-1"),
        ({"parts": [["a", 1]]}, "at is missing"),
        ({"at": 0, "parts": [["a", 1]], "task": "sing"}, "task='sing'"),
        ({"at": 0, "parts": [["a", 1]], "task": "generate"}, "max_tokens"),
        ({"at": 0, "parts": [["a", 1]], "colour": 1}, "'colour' is no field"),
        ({"at": 0, "parts": [["a", 1]], "deadline": -2}, "deadline"),
        ({"at": 0, "parts": [["a", 1]], "priority": "high"}, "priority"),
        ({"at": 0, "parts": [["a", 1]], "questions": [0]}, "questions"),
        ({"at": 0, "parts": [["a", 1]], "questions": 3}, "questions=3 is not a list of token counts"),
        ({"at": 0, "parts": [["a", 1]], "cache": "often"}, "cache='often' is not 'auto', 'always' or 'never'"),
        (b"\xff", "can't decode byte 0xff"),
        ("[" * 100_000, "nested too deeply"),
        ({"at": 0, "parts": [["\ud800", 1]]}, "is no text"),
        ({"at": 0, "parts": [["a", 1]], "user": ["a"]}, "user: ['a'] is no text"),
        ({"at": 1e9 + 1, "parts": [["a", 1]]}, "at=1000000001.0"),
        ({"at": True, "parts": [["a", 1]]}, "at=True"),
        ({"at": 0, "parts": []}, "parts=[] is not a list"),
        ({"at": 0, "parts": 5}, "parts=5 is not a list"),
        ({"at": 0, "parts": ["ab"]}, "not [name or null, tokens]"),
        ({"at": 0, "parts": [["a", True]]}, "parts: True is not an integer"),
        ({"at": 0, "parts": [["a", 1]], "cancel_after": -1}, "cancel_after=-1"),
        ({"at": 0, "parts": [["a", 1]], "labels": 0}, "labels: 0 is not an integer of at least 1"),
        ({"at": 0, "parts": [["a", 1]], "labels": (1 << 20) + 1}, "the limit is 1048576 in all"),
        ({"at": 0, "parts": [["a", 1]], "max_tokens": -1}, "max_tokens: -1 is not an integer of at least 0"),
        ({"at": 1e308, "parts": [["a", 1]]}, "at=1e+308"),
        ({"at": 0, "parts": [["a", (1 << 31) - 1]]}, "parts: 2147483647 is too much"),
        ({"at": 0, "parts": [["a", 1 << 24], ["b", 1]]}, "more than 16777216 tokens together"),
        ({"at": 0, "parts": [["a", 1]], "labels": (1 << 31) - 1}, "labels: 2147483647 is too much"),
        ({"at": 0, "parts": [["a", 1]], "labels": 1 << 10, "questions": [1] * 1025}, "labels=1024 a question"),
        ({"at": 0, "parts": [["a", 1]], "task": "generate", "max_tokens": (1 << 31) - 1}, "max_tokens: 2147483647"),
    ],
)
def test_a_line_that_is_no_arrival_is_named(tmp_path: Path, line: object, says: str) -> None:
    text = line if isinstance(line, str | bytes) else json.dumps(line)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(
        b'{"at": 0, "parts": [["a", 10]]}\n' + (text.encode() if isinstance(text, str) else text) + b"\n"
    )
    with pytest.raises(TraceError) as raised:
        list(read_trace(path))
    assert "line 2" in str(raised.value) and says in str(raised.value)


def test_a_trace_out_of_order_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace([Arrival(2.0, ((None, 5),)), Arrival(1.0, ((None, 5),))], path)
    with pytest.raises(TraceError, match=r"line 2: at=1\.0 comes before 2\.0"):
        list(read_trace(path))


def test_a_trace_without_arrivals_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"trace\.jsonl: it has no arrivals; write one JSON object a line"):
        list(read_trace(path))
