"""The engines' statements about their model, and their answers to a newcomer's first mistakes."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prelude
from prelude import AsyncEngine, Decide, Engine, Generate, Rerank, SamplingParams, YesNo, errors, results
from prelude.errors import ConfigError, InvalidRequest, RequestTooLarge, UnknownParameter
from prelude.integrations.affinity import Affinity
from prelude.simulation import Fleet, compare, routing, simulate
from tests.engine.test_encoders import write


def test_both_engines_describe_their_model(make_engine: Callable[..., Engine], checkpoint: Path) -> None:
    engine = make_engine(max_length=300)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    info = engine.model_info
    assert (info.vocab_size, info.hidden_size) == (config["vocab_size"], config["hidden_size"])
    assert info.max_positions == config["max_position_embeddings"] and info.max_length == engine.max_length == 300
    assert info.path == checkpoint and info.device == "cpu" and info.dtype == "float32"
    assert info.kv_tokens == engine.stats()["blocks_free"] * 16 and info.lm_head and info.labels == ()
    assert engine.eos_token_ids == info.eos_token_ids == (0,)
    assert f"{checkpoint}: float32 on cpu" in repr(engine)
    text = "Two boats lay at the quay."
    assert engine.tokenizer.decode(engine.tokenizer.encode(text).ids) == text
    twin = AsyncEngine(engine)
    assert twin.model_info == info and twin.tokenizer is engine.tokenizer
    assert (twin.max_length, twin.eos_token_ids) == (300, (0,))


@pytest.mark.parametrize("name", ["device", "dtype", "config", "revision", "follow_links"])
def test_an_engine_that_loads_later_has_the_same_settings(name: str, tmp_path: Path) -> None:
    now, later = Engine.from_pretrained, AsyncEngine.from_pretrained
    defaults = [inspect.signature(load).parameters[name].default for load in (now, later)]
    assert defaults[0] == defaults[1]
    wrong: dict[str, Any] = {name: ["wrong"]}
    with pytest.raises(errors.PreludeError) as refused:
        now(tmp_path, **wrong)
    with pytest.raises(errors.PreludeError, match=re.escape(str(refused.value))):
        asyncio.run(later(tmp_path, **wrong).start())


def defaults(call: Callable[..., Any]) -> dict[str, Any]:
    given = inspect.signature(call).parameters.values()
    found = {one.name: one.default for one in given if one.default is not one.empty}
    return {name: value[0] if isinstance(value, tuple) and value else value for name, value in found.items()}


def test_calls_of_one_kind_have_the_same_defaults() -> None:
    names = [name for name in dir(Engine) if name[0] != "_" and hasattr(AsyncEngine, name)]
    calls = [(getattr(Engine, name), getattr(AsyncEngine, name)) for name in names if callable(getattr(Engine, name))]
    calls += [(Engine.close, AsyncEngine.aclose), (Affinity, routing.PrefixAffine)]
    calls += itertools.pairwise([Fleet, simulate, compare.run, routing.router])
    calls += [(routing.router, one) for one in routing.ROUTERS.values()]
    for one, twin in calls:
        ours, theirs = defaults(one), defaults(twin)
        common = ours.keys() & theirs.keys()
        assert {name: ours[name] for name in common} == {name: theirs[name] for name in common}, (one, twin)


def test_errors_and_results_are_public() -> None:
    made = {
        name: value for module in (errors, results) for name, value in vars(module).items() if inspect.isclass(value)
    }
    own = {name: value for name, value in made.items() if value.__module__.startswith("prelude")}
    assert {"PreludeError", "QueueFull", "RequestStats", "Answer"} <= own.keys()
    assert {name for name, value in own.items() if getattr(prelude, name, None) is not value} == set()
    assert len(prelude.__all__) <= 45, "the others are found in prelude.errors and prelude.results"
    assert all(hasattr(prelude, name) for name in prelude.__all__)
    tree = ast.parse(Path(prelude.__file__).read_text(encoding="utf-8"))
    imports = [
        one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and f"{one.module}".startswith("prelude")
    ]
    checked = {alias.name for one in imports for alias in one.names}  # by type checkers
    assert checked - {"*"} == set(prelude.__all__) - {"__version__"}
    assert {"__name__", "errors", *prelude.__all__} <= set(dir(prelude))


def scalars_of_numpy(value: Any) -> list[Any]:
    """The single numbers of numpy inside a result, which repr and JSON write otherwise than those of Python."""
    parts: list[Any] = []
    if dataclasses.is_dataclass(value):
        parts += [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        parts += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        parts += [*value, getattr(value, "stats", None)]
    own = [value] if isinstance(value, np.generic) else []
    return own + [found for part in parts for found in scalars_of_numpy(part)]


def test_results_hold_numbers_of_python(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=3, logprobs=2, ignore_eos=True)
    questions = [YesNo("Is it?"), prelude.Choice("Which?", ["a", "b"]), prelude.Score("How?", ["low", "high"])]
    texts = [engine.prompt_logprobs("a b c", top=2), engine.complete("a b", params), *engine.generate("a b", params)]
    found = [engine.decide("A text", questions), engine.loglikelihood("a", " b c"), engine.stats()]
    assert scalars_of_numpy([*texts, *found]) == []


# ------------------------------------------------------------------ first mistakes
@pytest.mark.parametrize("given", ["/dir", Path("/dir"), None])
def test_an_engine_is_not_made_from_a_directory(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"Engine.from_pretrained\("):
        Engine(given)
    if given is not None:
        with pytest.raises(ConfigError, match=r"AsyncEngine.from_pretrained\('/dir'\)"):
            AsyncEngine(given)


def test_a_list_of_strings_is_not_one_prompt(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    for call in (engine.complete, lambda texts: engine.embed(texts, pooling="last"), engine.prompt_logprobs):
        with pytest.raises(InvalidRequest, match=r"prompt: a list of 2 strings .* run_many\(\)"):
            call(["a", "b"])
    array, text = (engine.explain(Decide(state, [YesNo("Is it?")])).text for state in (["a", "b"], '["a", "b"]'))
    assert array == text, "a state may be any array: it is read as JSON"


def test_a_none_in_the_place_of_a_text_is_refused_with_the_field_and_its_forms(
    make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    """The error says what to give, and does not say that None is None."""
    decoder = make_engine()
    pairs = make_engine(write(tmp_path, "ForSequenceClassification", num_labels=1))
    nothing: Any = None
    message = {"role": "user", "content": [{"type": "text", "text": nothing}]}
    prompt = "text, token ids or a list of messages"
    cases: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: decoder.decide(nothing, [YesNo("Is it?")]), "state", "text, an object, an array or token ids"),
        (lambda: decoder.decide([message], [YesNo("Is it?")]), "state[0].content[0].text", "a string"),
        (lambda: decoder.complete(nothing), "prompt", prompt),
        (lambda: list(decoder.generate(nothing)), "prompt", prompt),
        (lambda: decoder.prompt_logprobs(nothing), "prompt", prompt),
        (lambda: decoder.embed(nothing, pooling="last"), "prompt", prompt),
        (lambda: decoder.loglikelihood(nothing, "x"), "context", prompt),
        (lambda: decoder.loglikelihood("x", nothing), "continuation", "text or token ids"),
        (lambda: pairs.classify(nothing), "prompt", prompt),
        (lambda: pairs.classify((nothing, "w1")), "prompt[0]", "a string"),
        (lambda: pairs.classify(("w1", nothing)), "prompt[1]", "a string"),
        (lambda: pairs.rerank(nothing, ["w1"]), "query", "a string"),
        (lambda: pairs.rerank("w1", nothing), "documents", "a list of texts, or of mappings with a text"),
        (lambda: pairs.run(Rerank("w1", nothing)), "document", "a string"),
    ]
    for call, field, takes in cases:
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert str(caught.value) == f"{field}: it is None; give {takes}" and caught.value.field == field
    with pytest.raises(InvalidRequest, match=r"^documents: 5 is of type int; give a list of texts"):
        pairs.rerank("w1", 5)  # type: ignore[arg-type]


def test_a_field_of_the_sampling_params_is_named_as_one(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    for call in (
        lambda: Generate("a", temperature=0),  # type: ignore[call-arg]
        lambda: engine.complete("a", temperature=0),
        lambda: asyncio.run(AsyncEngine(engine).complete("a", temperature=0)),
    ):
        with pytest.raises(UnknownParameter, match=r"SamplingParams\(temperature=\.\.\.\)"):
            call()
    with pytest.raises(UnknownParameter, match=r"no parameter 'zzz'\. It takes: prompt, params"):
        Generate("a", zzz=0)  # type: ignore[call-arg]


def test_questions_past_a_step_say_how_many_fit(make_engine: Callable[..., Engine]) -> None:
    """The default limit on questions is the step's tokens, and the number that the refusal names is served."""
    engine = make_engine()
    with pytest.raises(RequestTooLarge, match=r"about \d+ of these questions at a time") as caught:
        engine.decide("A text", [YesNo(f"Is it {i:04}?") for i in range(2000)])
    fit = int(str(caught.value).split("about ")[1].split()[0])
    assert 300 < fit < 600
    assert len(engine.decide("A text", [YesNo(f"Is it {i:04}?") for i in range(fit - 10)])) == fit - 10
    with pytest.raises(RequestTooLarge, match="8129 questions"):
        engine.decide("A text", [YesNo("Is it?")] * 8129)
    with pytest.raises(InvalidRequest, match=r"3 questions; it takes 1 to 2 \(EngineConfig.max_questions\)"):
        make_engine(max_questions=2).decide("A text", [YesNo("Is it?")] * 3)
    assert engine.complete("A text", SamplingParams(max_tokens=1)).token_ids


# ------------------------------------------------------------------ the log
def test_an_error_of_run_many_names_its_task(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    tasks = [Generate([5, 6], SamplingParams(max_tokens=1)) for _ in range(4)]
    tasks[2] = Generate([5, 6], SamplingParams(max_tokens=-1))
    for run in (engine.run_many, lambda tasks: asyncio.run(AsyncEngine(engine).run_many(tasks))):
        with pytest.raises(InvalidRequest, match=r"^tasks\[2\]: params.max_tokens: ") as caught:
            run(tasks)
        assert caught.value.field == "params.max_tokens"
    with pytest.raises(InvalidRequest, match=r"^params.max_tokens: "):
        engine.run(tasks[2])
    assert str(engine.run_many(tasks, return_exceptions=True)[2]).startswith("params.max_tokens: ")


def test_loading_logs_the_model(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = prelude.EngineConfig(max_length=300)
    with (
        caplog.at_level("INFO", logger="prelude.engine"),
        Engine.from_pretrained(checkpoint, config=config) as engine,
    ):
        tokens = engine.model_info.kv_tokens
    [said] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loaded ")]
    assert f"loaded {checkpoint} in " in said and "float32 (dtype='auto') on cpu" in said and " threads, " in said
    assert f"KV pool of {tokens} tokens, prompts of up to 300 tokens" in said


def test_logged_requests_are_read_without_the_json_handler(
    make_engine: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    from prelude.integrations.metrics import log_requests

    engine = make_engine()
    stop = log_requests(engine)
    with caplog.at_level("INFO", logger="prelude.requests"):
        stream = engine.stream([8, 9], SamplingParams(max_tokens=64, ignore_eos=True), request_id="r-2")
        next(stream)
        stream.close()
        engine.complete([5, 6, 7], SamplingParams(max_tokens=1), request_id="r-1")
    stop()
    left, said = [record for record in caplog.records if record.name == "prelude.requests"]
    assert left.getMessage().startswith("request r-2 cancelled: ") and left.levelname == said.levelname == "INFO"
    assert re.match(r"request r-1 finished: oneshot, 3 prompt tokens \(0 cached\), .*in all$", said.getMessage())


def test_the_demo_takes_a_revision(capsys: pytest.CaptureFixture[str]) -> None:
    from prelude.tools.cli import main

    assert main(["demo", "--revision", "main"]) == 2
    assert "revision='main' is for a hub name, and no model is named" in capsys.readouterr().err
