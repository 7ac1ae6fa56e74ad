"""The examples of docs/CLIENTS.md and docs/CALIBRATION.md: each ``py`` fence runs as it stands, with the names below.

An example whose library is not installed, or is too old, is skipped by its name. lm-eval's tasks come from the
network, and so a task of the same name that is defined here stands for the one of the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.train import DATA
from prelude import Choice, Engine, default_model
from tests.engine.test_encoders import write

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```py\n(.*?)^```$", re.S | re.M)
NEEDS = {
    "langchain_core": "1.8", "pydantic_ai": "2.68", "dspy": "3.4", "typesafe_sdk": None, "openai": "3.0",
    "lm_eval": "0.4.13", "opentelemetry.sdk": None,
}  # fmt: skip


def library(fence: str) -> str:
    return next((name for name in NEEDS if name in fence), "prelude")


FENCES = {
    f"{page}-{number}-{library(fence)}": fence
    for page in ("CLIENTS", "CALIBRATION")
    for number, fence in enumerate(FENCE.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")))
}


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write(tmp_path_factory.mktemp("reranker"), "ForSequenceClassification", num_labels=1)
    with Engine.from_pretrained(path) as engine:
        yield engine


@pytest.fixture(scope="module")
def names(engine: Engine, reranker: Engine) -> dict[str, Any]:
    """The names that the pages' first lines have made before an example begins."""
    rows = [json.loads(line) for line in (DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[::12]]
    state, question = rows[0]["text"], Choice("Which language is it?", sorted({row["language"] for row in rows}))
    answers = [engine.decide(row["text"], [question])[0] for row in rows]
    return {
        "engine": engine, "reranker": reranker, "state": state, "question": question, "answers": answers,
        "labels": [row["language"] for row in rows],
    }  # fmt: skip


def local_task(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A multiple choice of two rows in the place of lm-eval's ``arc_easy``, whose rows lie on the network."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [{"query": "Which is a fruit?", "choices": [" an apple", " a boat"], "gold": 0}] * 2
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = {
        "task": "arc_easy", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}, "test_split": "test",
        "output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_choice": "choices",
        "doc_to_target": "gold", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    evaluate, manager = lm_eval.simple_evaluate, TaskManager(include_defaults=False)  # of thousands of files
    given = {"tasks": [task], "bootstrap_iters": 0, "task_manager": manager}
    monkeypatch.setattr(lm_eval, "simple_evaluate", lambda model, tasks: evaluate(model=model, **given))


@pytest.mark.parametrize("name", FENCES)
def test_an_example_of_a_page_runs(
    name: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fence = FENCES[name]
    for module, version in NEEDS.items():
        if re.search(rf"^\s*(import|from) ([\w, ]+, )?{re.escape(module.partition('.')[0])}\b", fence, re.M):
            pytest.importorskip(module, minversion=version)
    if "integrations.opentelemetry" in fence:
        pytest.importorskip("opentelemetry.sdk")
    if "lm_eval" in fence:
        local_task(monkeypatch, tmp_path)
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "model").symlink_to(default_model.path())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    exec(compile(fence, f"{name}.md", "exec", dont_inherit=True), {**names, "__name__": name})
    assert names["engine"].stats()["failed_steps"] == 0


def test_the_examples_are_found() -> None:
    assert len(FENCES) >= 10 and {"CLIENTS-0-prelude", "CALIBRATION-0-prelude"} <= FENCES.keys()
