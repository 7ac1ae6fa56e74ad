"""The types of the engines' verbs, as a type checker and an editor read them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from prelude import (
    AsyncEngine,
    Choice,
    Classify,
    ClassifyTokens,
    Decide,
    Embed,
    Engine,
    Generate,
    Guard,
    Loglikelihood,
    PromptLogprobs,
    RequestOptions,
    Rerank,
    Reward,
    SamplingParams,
    YesNo,
    tasks,
)
from prelude.api import verbs
from prelude.errors import UnknownParameter
from tests import lint

VERBS: dict[str, Any] = {
    "decide": (Decide, verbs.DecideKeywords), "classify": (Classify, verbs.ClassifyKeywords),
    "classify_tokens": (ClassifyTokens, verbs.ClassifyTokensKeywords), "embed": (Embed, verbs.EmbedKeywords),
    "loglikelihood": (Loglikelihood, verbs.VerbKeywords),
    "prompt_logprobs": (PromptLogprobs, verbs.PromptLogprobsKeywords), "complete": (Generate, verbs.VerbKeywords),
    "generate": (Generate, verbs.VerbKeywords), "rerank": (Rerank, verbs.RerankKeywords),
    "reward": (Reward, verbs.RewardKeywords), "guard": (Guard, verbs.GuardKeywords),
}  # fmt: skip
OWN = {"hold_words", "top_k", "top_n", "detail"}  # of a verb and not of its task

SNIPPET = """
from prelude import AsyncEngine, Decide, Embed, Engine, Generate, RequestOptions, YesNo

def called(engine: Engine) -> None:
    questions = [YesNo("Is it?")]
    reveal_type(engine.decide("a", questions, priority=3, mass=False))
    reveal_type(engine.run(Decide("a", questions), RequestOptions(priority=3)))
    reveal_type(engine.run(Embed("a"), tenant="b"))
    reveal_type(engine.generate("a", hold_words=True, deadline=2.5))
    engine.decide("a", questions, priorty=3)
    engine.embed("a", pooling="lsat")
    engine.run(Embed("a"), priorty=3)
    engine.complete("a", temperature=0.0)
    reveal_type(engine.run_many([Embed("a"), Embed("b")]))
    reveal_type(engine.run_many([Embed("a")], return_exceptions=True))
    engine.run_many([Embed("a")], priorty=3)
    engine.run_many(["a"])

async def awaited(engine: AsyncEngine) -> None:
    questions = [YesNo("Is it?")]
    reveal_type(await engine.decide("a", questions, length_norm="token", cache="never"))
    reveal_type(await engine.run(Generate("a")))
    reveal_type(engine.generate("a", salt="b"))
    await engine.decide("a", questions, priorty=3)
    reveal_type(await engine.run_many([Decide("a", questions)]))
    reveal_type(await engine.rerank("a", ["b"], top_k=1))
    await engine.embed("a", pooling="lsat")
"""
# line: mypy's type of it, and pyright's
ANSWERS, EMBEDDING = "prelude.results.Answers", "prelude.results.Embedding"
SAID: dict[int, tuple[str, str]] = {
    6: (f'"{ANSWERS}"', '"Answers"'),
    7: (f'"{ANSWERS}"', '"Answers"'),
    8: (f'"{EMBEDDING}"', '"Embedding"'),
    9: ('"prelude.api.text_streams.TextStream"', '"TextStream"'),
    10: ('Unexpected keyword argument "priorty"', 'No parameter named "priorty"'),
    11: ('Argument "pooling"', '"pooling"'),
    12: ('Unexpected keyword argument "priorty"', 'No parameter named "priorty"'),
    13: ('Unexpected keyword argument "temperature"', 'No parameter named "temperature"'),
    14: (f"list[{EMBEDDING}]", "list[Embedding]"),
    15: (f"list[{EMBEDDING} | Exception]", "list[Embedding | Exception]"),
    16: ("No overload variant", "No overloads"),
    17: ("run_many", "run_many"),
    21: (f'"{ANSWERS}"', '"Answers"'),
    22: ('"prelude.results.Completion"', '"Completion"'),
    23: ('"prelude.api.async_streams.AsyncTextStream"', '"AsyncTextStream"'),
    24: ('Unexpected keyword argument "priorty"', 'No parameter named "priorty"'),
    25: (f"list[{ANSWERS}]", "list[Answers]"),
    26: ('"prelude.results.Ranking"', '"Ranking"'),
    27: ('Argument "pooling"', '"pooling"'),
}


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is in the extra [lint]")
def test_mypy_knows_the_verbs(tmp_path: Path) -> None:
    lint.link_package()
    (tmp_path / "snippet.py").write_text(SNIPPET, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "-m", "snippet", "--config-file", str(lint.ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(lint.ROOT / ".mypy_cache")]  # what the lint knows of the package
    environment = {**os.environ, "MYPYPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=lint.TREE, env=environment, capture_output=True, text=True)
    lines = [line.rpartition("snippet.py:") for line in done.stdout.splitlines()]
    found = [(name, *said.split(":", 1)) for _, name, said in lines if name]
    said = {int(line): text for _, line, text in found if "error:" in text or "Revealed" in text}
    assert sorted(said) == sorted(SAID), done.stdout + done.stderr
    for line, (text, _) in SAID.items():
        assert text in said[line].replace("*", ""), (line, said[line])


@pytest.mark.skipif(find_spec("pyright") is None or not shutil.which("node"), reason="needs pyright and node")
def test_pyright_knows_the_verbs(tmp_path: Path) -> None:
    lint.link_package()
    (tmp_path / "snippet.py").write_text(SNIPPET, encoding="utf-8")
    settings = {"extraPaths": [str(lint.TREE)], "pythonVersion": "3.10", "include": ["snippet.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    said = {one["range"]["start"]["line"] + 1: one["message"] for one in found}
    assert sorted(said) == sorted(SAID), found
    for line, (_, text) in SAID.items():
        assert text in said[line], (line, said[line])


@pytest.mark.parametrize("verb", VERBS)
def test_both_engines_have_the_keywords_of_the_task_and_of_the_request(verb: str) -> None:
    task, declared = VERBS[verb]
    sync, awaited = getattr(Engine, verb), getattr(AsyncEngine, verb)
    ours, twin = inspect.signature(sync), inspect.signature(awaited)
    assert list(ours.parameters.values()) == list(twin.parameters.values())
    fields = [field for owner in (task, RequestOptions) for field in dataclasses.fields(owner)]
    optional = [field for field in fields if field.default is not dataclasses.MISSING and not field.metadata]
    expected = {field.name: field.default for field in optional}
    shown = {name: one.default for name, one in ours.parameters.items() if one.default is not one.empty}
    shown = {name: default for name, default in shown.items() if name not in OWN}
    assert shown | {"params": None} == expected | {"params": None}
    assert not any(one.kind is one.VAR_KEYWORD for one in ours.parameters.values())
    given = {name for name, one in ours.parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert given - OWN == set(declared.__annotations__)
    for method in (sync, awaited):
        assert task.__doc__.splitlines()[0] in method.__doc__ and "``deadline``" in method.__doc__


@pytest.mark.fault(19)
def test_an_unknown_keyword_is_told_the_nearest_of_the_verbs() -> None:
    with Engine.from_pretrained() as engine:
        with pytest.raises(UnknownParameter, match=r"'priorty'; did you mean 'priority'\?"):
            engine.decide("a", [YesNo("Is it?")], priorty=3)  # type: ignore[call-arg]
        with pytest.raises(UnknownParameter, match=r"'poling'; did you mean 'pooling'\?"):
            engine.embed("a", poling="last")  # type: ignore[call-arg]
        with pytest.raises(UnknownParameter, match="given"):  # of the task, and not of the verb
            engine.guard([{"role": "user", "content": "a"}], given={})  # type: ignore[call-arg]


def test_engines_tasks_and_results_have_a_repr() -> None:
    task = Decide("x" * 4000, [YesNo("Is it?")], truncation="tail")
    assert repr(task).startswith("Decide(state='xxx") and len(repr(task)) < 300
    assert repr(task).endswith("questions=[Noul(question='Is it?')], truncation='tail')")
    assert repr(SamplingParams(max_tokens=3)) == "SamplingParams(max_tokens=3)"
    assert isinstance(task, tasks.TaskOf)
    waiting = AsyncEngine.from_pretrained("org/name")
    assert repr(waiting) == "<AsyncEngine 'org/name', not started>"
    with Engine.from_pretrained() as engine:
        tokens = engine.model_info.kv_tokens
        said = f"{engine.model_path}: bfloat16 weights, float32 on cpu, max_length 8192, {tokens} KV tokens"
        assert repr(engine) == f"<Engine {said}>" and repr(AsyncEngine(engine)) == f"<AsyncEngine {said}>"
        answers = engine.decide("a", [YesNo("Is it?"), Choice("Which?", ["a", "b"])])
        assert repr(answers).startswith("Answers(Answer(label=")
    assert repr(engine).endswith(", closed>")
