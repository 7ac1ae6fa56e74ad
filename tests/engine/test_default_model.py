"""The packaged model through our own engine: its two decisions on sentences that it was not trained on, and the
demo."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from bench.train import DATA
from prelude import Choice, Decide, Engine, YesNo, default_model
from prelude.models.names import PACKAGES, is_there


def test_accuracies_on_heldout_sentences() -> None:
    demo = json.loads((default_model.path() / "demo.json").read_text(encoding="utf-8"))
    lines = (DATA / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    language, personal = demo["questions"]
    questions = [Choice(language["question"], language["labels"]), YesNo(personal["question"])]
    with Engine.from_pretrained() as engine:
        states = [demo["state"].format(rubric=demo["rubric"], text=row["text"]) for row in rows]
        results = engine.run_many([Decide(state, questions) for state in states])
        stats = engine.stats()
    named = [(row, answers[0]) for row, answers in zip(rows, results) if row.get("language")]
    checked = [(row, answers[1]) for row, answers in zip(rows, results) if row.get("personal_data") is not None]
    right = sum(answer.label == row["language"] for row, answer in named) / len(named)
    found = sum((answer.label == "yes") == bool(row["personal_data"]) for row, answer in checked) / len(checked)
    assert len(named) >= 12 * 15 and len({row["language"] for row, _ in named}) >= 12
    assert right >= 0.97, f"language: {right:.3f}"
    assert found >= 0.95, f"personal data: {found:.3f}"
    assert stats["folded_tokens"] + stats["prefix_hit_tokens"] > stats["prefill_tokens"], "the rubric is shared"


BESIDE_TORCH = """
import sys, threading
from prelude import Engine, YesNo
def torch():
    import torch
    torch.set_num_threads(2)
    return torch.randn(200, 300) @ torch.randn(300, 400)
if sys.argv[1] == "before":
    torch()
engine = Engine.from_pretrained()
if sys.argv[1] == "after":
    torch()
beside = threading.Thread(target=torch if sys.argv[1] == "beside" else lambda: None)
beside.start()
answers = [engine.decide(f"Call Anna, {n}.", [YesNo("Does it contain personal data?")])[0] for n in range(30)]
beside.join()
print([[one.hex() for one in answer.logprobs.values()] for answer in answers])
"""


@pytest.mark.long
def test_an_application_that_computes_with_torch_changes_no_answer() -> None:
    pytest.importorskip("torch")
    found = {
        subprocess.run([sys.executable, "-c", BESIDE_TORCH, when], capture_output=True, text=True, check=True).stdout
        for when in ("never", "before", "after", "beside")
    }
    assert len(found) == 1 and "0x" in next(iter(found))


DEMO = """
import sys
from prelude.models import names
from prelude.tools import cli, demo
if {packages} == "none":
    demo.is_there = lambda name: False
sys.exit(cli.main({arguments}))
"""


@pytest.mark.parametrize(("packages", "arguments"), [("none", ["demo"]), ("none", []), ("installed", ["demo"])])
def test_the_demo_runs_and_prints_its_parts(packages: str, arguments: list[str]) -> None:
    """With the packages of models that are installed, and as where none is: it names the command of each."""
    code = DEMO.format(packages=repr(packages), arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_wide())
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    there = [name for name in ("sparrow-general", "all-MiniLM-L6-v2") if packages != "none" and is_there(name)]
    assert len(lines) < 20 and max(map(len, lines)) <= 120
    for name in ("sparrow-general", "all-MiniLM-L6-v2"):
        assert (name not in there) == any(
            line == f"{name} does this better: {PACKAGES[name].command}" for line in lines
        )
    parts = (
        "Typed decisions of",
        "A decision fitted on 40 labelled rows",
        "The nearest of 80 texts",
        "Milliseconds: ",
    )
    places = [next(at for at, line in enumerate(lines) if line.startswith(part)) for part in parts]
    assert places == sorted(places)
    assert ("the packaged model" in lines[0]) == ("sparrow-general" not in there)
    right = int(re.search(r"(\d+) of 40 others", done.stdout)[1])  # type: ignore[index]
    assert right >= 30 or not there
    assert ("Its vectors tell languages apart" in done.stdout) == (not there)
    for part in ("loading", "decisions", "fit of 40 rows", "80 vectors"):
        assert re.search(rf"\d+\.\d( \d+)? {part}", lines[places[3]])


def test_statements_about_the_packaged_model_hold() -> None:
    """README and demo: a question of another wording is answered as the trained one; ``mass`` does not show it."""
    state = "Call Jane Doe on +44 20 7946 0958 or write to jane@doe.org."
    with Engine.from_pretrained() as engine:
        trained, opposite, other = engine.decide(
            state,
            [
                YesNo("Does it contain personal data?"),
                YesNo("Is the text free of personal data?"),
                YesNo("Is the sky green?"),
            ],
        )
    assert trained.label == "yes" and opposite.label == "yes" and opposite.probability > 0.9
    assert min(trained.mass, opposite.mass, other.mass) > 0.999


def test_the_demo_refuses_a_path_that_is_no_model() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prelude", "demo", "--model", "/nonexistent/dir"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "prelude: " in done.stderr and "Traceback" not in done.stderr


def _wide() -> dict[str, str]:
    import os

    return {**os.environ, "COLUMNS": "120"}
