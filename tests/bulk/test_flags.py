"""Every flag of ``prelude score``, alone and beside the others: the task that it says, and its refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prelude import BulkError, Choice, Classify, Embed, Engine, EngineConfig, InvalidRequest, Noul, Rerank, Score
from prelude.bulk.files import Table, check_target
from prelude.bulk.form import Form
from prelude.bulk.rows import Row, check_columns, groups, json_value
from prelude.tools import cli
from tests.bulk.runs import FLAGS, ROWS, read_rows, score, write_rows

TEXT = ["--text-column", "text"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as made:
        yield made


@pytest.mark.parametrize(
    ("flags", "questions"),
    [
        (["--choice", 'a= x ,"y, z"'], {"a": Choice("a?", ["x", "y, z"])}),
        (["--choice", "a=x,y", "--ask", "a=Which = one?"], {"a": Choice("Which = one?", ["x", "y"])}),
        (["--noul", "a=Is it, really?"], {"a": Noul("Is it, really?")}),
        (["--score", "a=3"], {"a": Score("a?", 3)}),
        (["--score", "a=10", "--ask", "a=How?"], {"a": Score("How?", 10)}),
        (
            ["--score", "c=2", "--noul", "b=Is it?", "--choice", "a=x,y"],
            {"a": Choice("a?", ["x", "y"]), "b": Noul("Is it?"), "c": Score("c?", 2)},
        ),
    ],
)
def test_flags_ask_these_questions(
    engine: Engine, tmp_path: Path, flags: list[str], questions: dict[str, Any]
) -> None:
    target = tmp_path / "out.jsonl"
    assert score(write_rows(tmp_path / "in.jsonl"), target, flags=[*TEXT, *flags]) == 0
    for row, found in zip(ROWS, read_rows(target)):
        answers = engine.decide(str(row["text"]), questions)
        own = [name for name in found if name not in (*row, "prompt_tokens", "error")]
        assert [name.partition("_")[0] for name in own if "_" not in name] == list(questions)
        for name, answer in answers.named.items():
            assert found[name] == answer.label and found[f"{name}_mass"] == answer.mass
            if answer.kind == "noul":
                assert found[f"{name}_probability"] == answer.probability
            else:
                assert found[f"{name}_probabilities"] == answer.probabilities
            assert found.get(f"{name}_expected") == answer.expected
        assert found["prompt_tokens"] == answers.stats.prompt_tokens and found["error"] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--text-column NAME says which column holds the text"),
        (["--noul", "a=b"], "--text-column NAME says which column holds the text"),
        ([*TEXT, "--choice", 'a="b, c'], "--choice a='\"b, c': the labels are no line of CSV: unexpected end"),
        ([*TEXT, "--state", "{text}", "--noul", "a=b"], "say the same thing"),
        (["--text-column", "{text}", "--noul", "a=b"], "--text-column {text}: it takes a name without braces"),
        (TEXT, "no question: --choice"),
        ([*TEXT, "--noul", "a=b", "--noul", "a_mass=b"], "two of the new columns are 'a_mass'"),
        ([*TEXT, "--noul", "error=b"], "two of the new columns are 'error'"),
        ([*TEXT, "--classify", "--embed"], "--classify and --embed stand alone"),
        ([*TEXT, "--classify", "--noul", "a=b"], "stand alone"), ([*TEXT, "--embed", "--ask", "a=b"], "stand alone"),
        ([*TEXT, "--embed", "--score", "a=3"], "stand alone"),
        ([*TEXT, "--noul", "a=b", "--noul", "a=c"], "--noul a: there are two questions"),
        ([*TEXT, "--choice", "a=b,c", "--noul", "a=b"], "--noul a: there are two questions"),
        ([*TEXT, "--noul", "a=b", "--score", "a=3"], "--score a: there are two questions"),
        ([*TEXT, "--noul", "a=b", "--ask", "a=c"], "--ask a: there is no choice or score"),
        ([*TEXT, "--noul", "a"], "--noul 'a': NAME=VALUE is expected"),
        ([*TEXT, "--choice", "=a,b"], "--choice '=a,b': NAME=VALUE is expected"),
        ([*TEXT, "--score", "a="], "--score 'a=': NAME=VALUE is expected"),
        ([*TEXT, "--score", "a=-3"], "--score a=-3: the number of levels"),
        ([*TEXT, "--score", "a=1"], "no row could be served"), ([*TEXT, "--score", "a=11"], "no row could be served"),
        ([*TEXT, "--choice", "a=b,"], "no row could be served"),
        ([*TEXT, "--choice", "a= x ;y"], "the one label 'x ;y' has the probability 1 in every row"),
        (["--state", "{text", "--noul", "a=b"], "brace"),
        (["--state", "{other}", "--noul", "a=b"], "there is no column 'other'; it has id, text"),
        (["--task", "{task}", *TEXT], "cannot stand beside"),
        *[(["--task", "{task}", *more], "cannot stand beside")
          for more in (["--state", "{text}"], ["--embed"], ["--classify"], ["--ask", "a=b"])],
        (["--task", "{task}", "--noul", "a=b"], "cannot stand beside"),
        ([*TEXT, "--classify"], "no row could be served"),  # the packaged model has no such head
        ([*TEXT, "--embed"], 'name it: pooling="last", "cls" or "mean"; pooling is a key of the task\'s JSON'),
        *[
            ([*FLAGS, "--window", count], f"window: {count} is out of range; it takes 1 to 65536")
            for count in ("0", "-1", "65537")
        ],
    ],
)  # fmt: skip
def test_flags_that_say_no_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"verb": "embed", "prompt": "{text}"}), encoding="utf-8")
    given = [str(task) if flag == "{task}" else flag for flag in flags]
    target = tmp_path / "out.csv"
    assert score(write_rows(tmp_path / "in.csv"), target, flags=given) == 2
    assert says in capsys.readouterr().err and not target.exists()


def test_flags_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    for window in ("1", "65536"):
        assert score(source, target, "--overwrite", "--window", window) == 0
    assert score(source, target, "--overwrite", "--fail-on-errors") == 0, "no row has an error"
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"{target}: 3 rows, 0 with an error; 3 computed in ")
    assert "of prompt tokens from the prefix cache" in said
    plain = read_rows(target)
    assert score(source, target, "--overwrite", "--prefix", "new_") == 0
    renamed = [name if name in ("id", "text") else f"new_{name}" for name in plain[0]]
    assert [list(row) for row in read_rows(target)] == [renamed] * 3


@pytest.mark.parametrize("content", ["[]", '"x"', "{", None])
def test_a_task_that_is_no_object(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None) -> None:
    task = tmp_path / "task.json"
    if content is not None:
        task.write_text(content, encoding="utf-8")
    assert score(write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", "--task", str(task), flags=[]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"prelude: {task}: ")
    assert ("an object is expected" if content in ("[]", '"x"') else "cannot be read as JSON") in said


def test_a_task_s_file_has_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = tmp_path / "task.json"
    for size, says in (
        (1 << 24, "prompt: None is not a text"),
        ((1 << 24) + 1, "16777217 bytes; the limit is 16777216"),
    ):
        task.write_bytes(b'{"verb": "embed"}'.ljust(size))
        assert score(write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl", "--task", str(task), flags=[]) == 2
        assert says in capsys.readouterr().err


# ------------------------------------------------------------------ forms
LABELLED = {"state": "{t}", "questions": {"a": {"question": "?", "labels": ["x", "y"]}}}


@pytest.mark.parametrize(
    ("spec", "row", "task"),
    [
        (
            {"verb": "rerank", "query": "{q}", "document": "{d}", "instruction": "i", "truncation": "tail"},
            {"q": "a", "d": "b"},
            Rerank("a", "b", instruction="i", truncation="tail"),
        ),
        (
            {"verb": "classify", "prompt": "{t}", "activation": "none", "truncation": "head"},
            {"t": "a"},
            Classify("a", activation="none", truncation="head"),
        ),
        (
            {"verb": "embed", "prompt": "{t}", "pooling": "cls", "dimensions": 3, "prompt_name": "query"},
            {"t": "a"},
            Embed("a", pooling="cls", dimensions=3, prompt_name="query"),
        ),
        ({"verb": "embed", "prompt": "{t}"}, {"t": {"a": "é"}}, Embed({"a": "é"})),
        ({"verb": "embed", "prompt": "t {t}"}, {"t": {"a": "é"}}, Embed('t {"a": "é"}')),
        ({"verb": "embed", "prompt": "{t}"}, {"t": 5}, Embed("5")),
        ({"verb": "embed", "prompt": "{t}"}, {"t": True}, Embed("true")),
        ({"verb": "embed", "prompt": "{t}"}, {"t": [True]}, Embed("[true]")),
        ({"verb": "embed", "prompt": "{t}"}, {"t": [1.5, 2]}, Embed("[1.5, 2]")),
        ({"verb": "embed", "prompt": "{q: a}{t!r} {{t}} {{"}, {"q: a": "x", "t!r": 3}, Embed("x3 {t} {")),
        ({"verb": "embed", "prompt": "{t}"}, {"t": []}, Embed([])),
        ({"verb": "embed", "prompt": "{t}{c}", "constants": {"c": ["é"]}}, {"t": "a"}, Embed('a["é"]')),
        ({"verb": "embed", "prompt": "{c}", "constants": {"c": 7}}, {}, Embed("7")),
    ],
)
def test_a_row_s_task(spec: dict[str, Any], row: dict[str, Any], task: Any) -> None:
    assert Form(spec).task(row) == task


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({**LABELLED, "constants": ["c"]}, "constants: .* is not an object"),
        ({**LABELLED, "pooling": "cls"}, "'pooling': decide has no such key"),
        ({"verb": "embed", "prompt": "{t}", "orders": 2}, "'orders': embed has no such key"),
        ({"verb": "embed", "state": "{t}"}, "prompt: None is not a text"),
        ({"verb": "rerank", "query": "{t}"}, "document: None is not a text"),
        ({"verb": ["embed"]}, "verb: .* is none of decide, classify, embed, rerank"),
        ({"state": "{}", "questions": {"a": {}}}, "state: a placeholder is the name of a column"),
        ({"state": "a}", "questions": {"a": {}}}, "state: a single }; a brace that is no placeholder is doubled"),
        ({"state": "{t}", "questions": {"a": "?"}}, r"questions\['a'\]: '\?' is not an object"),
        ({"state": "{t}", "questions": {"a": {"ask": "?"}}}, r"questions\['a'\]: it takes a question"),
        *[
            ({"state": "{t}", "questions": {"a": one}}, r"questions\['a'\]: .*labels or levels or criteria; or head")
            for one in ({"levels": 3, "criteria": {}}, {"head": "x", "question": "?"})
        ],
        ({"state": "{t}", "questions": [{"question": "?"}]}, "questions: .* is not an object of questions by name"),
        ({"state": "{t}"}, "questions: None is not an object"),
        ({"state": "{t}", "questions": {}}, "questions: {} is not an object"),
        ({"verb": "sing"}, "verb: 'sing' is none of"),
        ({"verb": "embed", "prompt": "{t}", "questions": {}}, "questions: embed asks none"),
        ({"state": "{t}", "questions": {"a": {"labels": {"x": "a note"}}}}, r"questions\['a'\]: the one label 'x'"),
    ],
)
def test_a_key_that_a_form_does_not_have(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(BulkError, match=f"^{says}"):
        Form(spec)


@pytest.mark.parametrize(("row", "says"), [({"t": None}, "is null"), ({}, "is missing")])
def test_a_column_without_a_value_is_named(row: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'t' {says}") as caught:
        Form(LABELLED).task(row)
    assert caught.value.field == "t"


def test_names_of_the_columns_of_a_form() -> None:
    kinds = {"c": {"labels": ["x", "y"]}, "n": {"question": "?"}, "s": {"levels": 3}, "d": {"levels": ["lo", "hi"]}}
    form = Form({"state": "{b} {a} {b}", "questions": kinds})
    assert form.placeholders == ["b", "a"]
    found = {column.name: column.labels for column in form.columns(())}
    assert list(found) == [
        *("c", "c_probabilities", "c_mass", "n", "n_probability", "n_mass"),
        *("s", "s_probabilities", "s_expected", "s_mass", "d", "d_probabilities", "d_expected", "d_mass"),
        *("prompt_tokens", "error"),
    ]
    assert [found[f"{name}_probabilities"] for name in "csd"] == [("x", "y"), ("1", "2", "3"), ("0", "1")]
    heads = {"classify": ["label", "scores"], "embed": ["embedding"], "rerank": ["score"]}
    for verb, names in heads.items():
        texts = {"query": "{t}", "document": "{t}"} if verb == "rerank" else {"prompt": "{t}"}
        columns = Form({"verb": verb, **texts}).columns(("l", "m"))
        assert [column.name for column in columns] == [*names, "prompt_tokens", "error"]
        assert [column.labels for column in columns if column.name == "scores"] == [("l", "m")] * (verb == "classify")


# ------------------------------------------------------------------ files and rows
@pytest.mark.parametrize(
    ("name", "kind", "zipped"),
    [
        ("a.jsonl", "jsonl", False), ("a.NDJSON", "jsonl", False), ("a.ndjson.gz", "jsonl", True),
        ("a.CSV.GZ", "csv", True), ("a.b.csv", "csv", False), ("a.parquet", "parquet", False),
        ("a.PQ", "parquet", False),
    ],
)  # fmt: skip
def test_the_end_of_a_name_says_the_format(name: str, kind: str, zipped: bool) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    found = Table.of(name)
    assert (found.path, found.format, found.zipped, found.remote) == (name, kind, zipped, False)


@pytest.mark.parametrize("name", ["a.pq.gz", "a.gz", "csv", "a.json", "a.csv.zip", "a.jsonl.bak"])
def test_another_end_of_a_name_is_refused(name: str) -> None:
    with pytest.raises(BulkError, match=r"the name has to end in \.jsonl, \.ndjson, \.csv, \.parquet, \.pq, "):
        Table.of(name)


def test_a_target_that_is_there_is_replaced_on_request(tmp_path: Path) -> None:
    target = Table.of(str(tmp_path / "out.csv"))
    check_target(target, False)
    (tmp_path / "out.csv").symlink_to("nowhere")
    with pytest.raises(BulkError, match="is already there; --overwrite replaces it"):
        check_target(target, False)
    check_target(target, True)


@pytest.mark.parametrize("locked", ["folder", "folder/out.csv"])
def test_a_target_that_may_not_be_written(locked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder" / "out.csv"
    target.parent.mkdir()
    target.touch()
    check_target(Table.of(str(target)), True)
    # As for a user; root may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / locked)
    with pytest.raises(BulkError, match="cannot be written"):
        check_target(Table.of(str(target)), True)


def test_values_as_json_has_them() -> None:
    value = {"b": b"\xff", "n": [float("nan"), float("-inf"), 0.5, True, None, 2**70], "t": ("a", {1: 2.5}.get(1))}
    assert json_value(value) == {"b": "/w==", "n": [None, None, 0.5, True, None, 2**70], "t": ["a", 2.5]}
    assert json_value(Path("a")) == "a"


def test_rows_in_groups_of_bounded_size() -> None:
    def sizes(rows: list[Row]) -> list[int]:
        return [len(group) for group in groups(rows)]

    assert sizes([]) == [] and sizes([Row()]) == [1]
    assert sizes([Row()] * (1 << 14)) == [1 << 14] and sizes([Row()] * ((1 << 14) + 1)) == [1 << 14, 1]
    half = Row(size=1 << 26)
    assert sizes([half] * 5) == [2, 2, 1] and sizes([Row(size=(1 << 26) - 1)] * 3) == [3]
    check_columns(range(1 << 12))
    with pytest.raises(BulkError, match="more than 4,096 keys"):
        check_columns(range((1 << 12) + 1))


def test_a_run_s_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = write_rows(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"

    def stopped(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("prelude.bulk.run.BulkRun.finish", stopped)
    assert score(source, target) == 130 and Path(f"{target}.journal").exists()
    monkeypatch.undo()
    assert cli.main(["score", str(source), str(target), *FLAGS]) == 0, "with a bar"
