"""Fitted questions through the engine: fit, decide, files, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from prelude import AsyncEngine, Choice, Decide, Embed, Engine, EngineConfig, FittedQuestion, Generate
from prelude.errors import CheckpointError, InvalidRequest, PromptTooLong, UnsupportedModel
from prelude.fitting import logistic
from prelude.fitting.fit import fit_vectors
from prelude.fitting.report import Scope, report_of
from tests.engine.test_encoders import write, write_pooling
from tests.threads import use_threads

TOPICS = {"cards": range(0, 8), "loans": range(8, 16), "travel": range(16, 24)}


def labelled(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts whose words are mostly those of their topic."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for at in range(count):
        label = list(TOPICS)[at % 3]
        words = [*random.choice(TOPICS[label], 6), *random.choice(24, 1)]
        texts.append(" ".join([f"w{word}" for word in words]))
        labels.append(label)
    return texts, labels


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write(tmp_path_factory.mktemp("fit") / "bert", "Model")
    write_pooling(path)
    return path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(model, dtype="float32", config=EngineConfig(deterministic=True, threads=1)) as found:
        yield found


@pytest.fixture(scope="module")
def team(engine: Engine) -> FittedQuestion:
    return engine.fit(*labelled(90), name="team")


def test_it_answers_texts_that_it_has_not_seen(engine: Engine, team: FittedQuestion) -> None:
    texts, labels = labelled(60, seed=1)
    answers = [engine.decide(text, {"team": team})["team"] for text in texts]
    right = np.mean([answer.label == label for answer, label in zip(answers, labels)])
    assert right > 0.8
    assert team.report is not None and team.report.accuracy == pytest.approx(right, abs=0.15)
    for answer in answers:
        assert answer.labels == ("cards", "loans", "travel") and math.isnan(answer.mass)
        assert math.fsum(answer.probabilities.values()) == pytest.approx(1)
        assert answer.label == max(answer.probabilities, key=answer.probabilities.__getitem__)


@pytest.mark.parametrize("count", range(4, 13))
def test_few_rows_are_fitted(engine: Engine, count: int) -> None:
    texts = [f"{('cards', 'loans')[at % 2]} {at}" for at in range(count)]
    found = engine.fit(texts, [text.split()[0] for text in texts], name="few")
    assert found.labels == ("cards", "loans")
    assert found.report is not None and found.report.folds == min(count, 5)


def test_the_head_reads_the_vector_of_embed(engine: Engine, team: FittedQuestion) -> None:
    [answer] = engine.decide("w3 w10 w10", [team])
    vector = np.asarray(engine.embed("w3 w10 w10"), np.float64)
    logits = team.weight.astype(np.float64) @ vector + team.bias
    logits -= logits.max()
    wanted = np.exp(logits) / np.exp(logits).sum()
    assert list(answer.probabilities.values()) == pytest.approx(wanted.tolist(), abs=1e-5)
    assert team.answer(vector.astype(np.float32)).probabilities == answer.probabilities
    [said], [same] = engine.decide({"a": "w3"}, [team]), engine.decide('{"a": "w3"}', [team])
    assert said.probabilities == same.probabilities
    found = engine.explain(Decide("w1 w2", [team]))
    assert "pooling mean" in found.readout and found.labels == ()


def test_equal_rows_and_seed_give_equal_bits_and_no_new_vectors(engine: Engine, team: FittedQuestion) -> None:
    before = engine.stats()
    again = engine.fit(*labelled(90), name="team")
    assert again == team and again.digest == team.digest
    assert (again.weight == team.weight).all() and again.answer(np.ones(48)).scope == team.answer(np.ones(48)).scope
    assert engine.stats()["finished"] == before["finished"]
    assert engine.fit(*labelled(90), name="team", seed=1).report != team.report
    for at, other in enumerate(({"pooling": "cls"}, {"prompt_name": "query"}), start=1):
        engine.fit(*labelled(90), name="team", **other)
        assert engine.stats()["finished"] == before["finished"] + at * 90, "the texts have other vectors"


def test_a_head_with_one_other_part_is_another_head() -> None:
    def scope(side: float, keep: float) -> Scope:
        return Scope(np.full((2, 3), side, np.float32), (0.0, side), keep)

    parts: dict[str, Any] = {"weight": np.eye(2, 3), "bias": np.zeros(2), "labels": ["yes", "no"], "name": "x"}
    parts |= {"question": "q", "prompt_name": "p", "pooling": "mean", "model": "m", "scope": scope(1.0, 0.9)}
    others: list[Any] = [{}, {"weight": np.ones((2, 3))}, {"bias": np.ones(2)}, {"labels": ["yes", "never"]}]
    others += [{"kind": "noul"}, {"question": "r"}, {"prompt_name": None}, {"pooling": "cls"}, {"model": ""}]
    others += [{"scope": None}, {"scope": scope(0.5, 0.9)}, {"scope": scope(1.0, 0.8)}]
    heads = [FittedQuestion.from_arrays(**{**parts, **one}) for one in others]
    templates = {getattr(head.answer(np.ones(3)).asked, "template", None) for head in heads}
    assert len({head.digest for head in heads}) == len(templates) == len(others)


def test_many_heads_cost_one_pass_and_have_the_bits_of_each_alone(engine: Engine, team: FittedQuestion) -> None:
    texts, labels = labelled(60, seed=2)
    urgent = engine.fit(texts, [label == "cards" for label in labels], name="urgent", kind="noul")
    level = engine.fit(texts, [1 + [*TOPICS].index(label) for label in labels], name="level", kind="score")
    questions = {"team": team, "urgent": urgent, "level": level}
    both = engine.decide("w1 w2 w20", questions)
    assert both.stats.computed_tokens == engine.embed("w1 w2 w20").stats.computed_tokens
    for name, question in questions.items():
        assert engine.decide("w1 w2 w20", {name: question})[name] == both[name] or math.isnan(both[name].mass)
        assert engine.decide("w1 w2 w20", [question])[0].logprobs == both[name].logprobs
    urgency = both["urgent"]
    assert urgency.labels == ("yes", "no") and urgency.probability == urgency.probabilities["yes"]
    expected = sum([at * share for at, share in zip((1, 2, 3), both["level"].probabilities.values())])
    assert both["level"].labels == ("1", "2", "3") and both["level"].expected == pytest.approx(expected)
    together = engine.run_many([Decide("w1 w2 w20", [team]), Decide("w5", [level, team]), Embed("w7")])
    assert together[0][0].logprobs == both["team"].logprobs
    assert together[1][1].logprobs == engine.decide("w5", [team])[0].logprobs


def test_texts_far_from_all_rows_are_out_of_scope(engine: Engine) -> None:
    texts, labels = labelled(300)
    team = engine.fit(texts, labels, name="team", keep=0.9)
    kept = [engine.decide(text, [team])[0] for text in labelled(90, seed=5)[0]]
    assert 0.75 <= np.mean([answer.in_scope for answer in kept]) <= 1
    far = team.answer(-np.asarray(engine.embed(texts[0])))
    assert far.scope == 0 and far.in_scope is False
    found = fit_vectors(np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1], np.int32), ["a", "b"], np.ones(4))
    assert max(found[2].knots) == 0, "no row is judged by itself"


def test_an_asyncio_engine_fits_the_same(model: Path, engine: Engine, team: FittedQuestion) -> None:
    async def fitted() -> FittedQuestion:
        async with AsyncEngine.from_pretrained(model, dtype="float32", config=engine.preparer.context.config) as twin:
            found = await twin.fit(*labelled(90), name="team")
            assert (await twin.decide("w3", [found]))[0].logprobs == engine.decide("w3", [team])[0].logprobs
            return found

    assert asyncio.run(fitted()) == team


def test_class_weights_move_the_answers(engine: Engine) -> None:
    texts, labels = labelled(90)
    rare = [label for at, label in enumerate(labels) if label != "loans" or at < 12]
    rows = [text for at, (text, label) in enumerate(zip(texts, labels)) if label != "loans" or at < 12]
    plain, balanced = (engine.fit(rows, rare, name="x", class_weights=how) for how in (None, "balanced"))
    states = labelled(60, seed=7)[0]
    told = [[engine.decide(one, [head])[0].probabilities["loans"] for one in states] for head in (plain, balanced)]
    assert sum(told[1]) > sum(told[0])


def test_long_rows_are_cut_and_counted_and_long_states_refused(engine: Engine) -> None:
    texts, labels = labelled(60)
    texts[4] = "w1 " * 200
    first, found = (engine.fit(texts, labels, name="x") for _ in range(2))  # the second time of vectors that are kept
    assert first.report and found.report and first.report.cut == found.report.cut == 1
    with pytest.raises(PromptTooLong, match=r"^state: "):
        engine.decide("w1 " * 200, [found])
    answers = engine.decide("w1 " * 200, [found], truncation="tail")
    assert answers.stats.truncated_tokens == 62


# ------------------------------------------------------------------ files
def test_a_file_and_a_pickle_give_the_same_question(engine: Engine, team: FittedQuestion, tmp_path: Path) -> None:
    for _ in range(2):
        team.save(tmp_path / "team.head")
    assert [path.name for path in tmp_path.iterdir()] == ["team.head"]
    for found in (FittedQuestion.load(tmp_path / "team.head"), pickle.loads(pickle.dumps(team))):
        assert found == team and found.report == team.report
        [answer], [wanted] = engine.decide("w8 w9", [found]), engine.decide("w8 w9", [team])
        assert (answer.logprobs, answer.scope) == (wanted.logprobs, wanted.scope)


def test_another_model_and_size_are_refused_by_name(engine: Engine, team: FittedQuestion, tmp_path: Path) -> None:
    path = write(tmp_path / "other", "Model", seed=3)
    write_pooling(path)
    with Engine.from_pretrained(path) as other, pytest.raises(InvalidRequest, match="another model") as raised:
        other.decide("w1", [team])
    assert raised.value.field == "questions[0]"
    wide = FittedQuestion.from_arrays(np.zeros((2, 49)), np.zeros(2), ["a", "b"], name="wide")
    with pytest.raises(InvalidRequest, match="49 inputs, and a vector of this model 48"):
        engine.decide("w1", [wide])


def test_broken_files_are_refused(team: FittedQuestion, tmp_path: Path) -> None:
    path = tmp_path / "team.head"
    team.save(path)
    whole = path.read_bytes()
    [errors] = re.findall(rb'(?<=confusions\\": )\[\[[^]]*\]', whole)
    [labels], [model] = (
        re.findall(rb'(?<=%s\\": )%s' % one, whole) for one in ((b"labels", rb"\[[^]]*\]"), (b"model", rb'\\"[^"]*"'))
    )
    for size in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            FittedQuestion.load(path)
    for old, new in (
        (b'"version":"1"', b'"version":"2"'), (b'"prelude-head"', b'"prelude-tail"'),
        (b'\\"labels\\"', b'\\"lebals\\"'), (b'\\"choice\\"', b'\\"choise\\"'), (b'\\"travel\\"', b'\\"loans\\" '),
        (b'\\"keep\\": 0.95', b'\\"keep\\": 1.01'), (b'\\"keep\\": 0.95', b'\\"keep\\": 0.00'),
        (model, b"5".ljust(len(model))), (labels, b"5".ljust(len(labels))), (errors, b"[5".ljust(len(errors))),
        (b'\\"curve\\": [[18', b'\\"curve\\": [[""'),
        (b'\\"accuracy\\": 0', b'\\"accuracy\\": -'),
        (np.float32(team.weight[0, 0]).tobytes(), np.float32(np.nan).tobytes()),
    ):  # fmt: skip
        assert old in whole
        path.write_bytes(whole.replace(old, new))
        error = UnsupportedModel if b"version" in old or b"prelude" in old else CheckpointError
        with pytest.raises(error, match=r"team\.head"):
            FittedQuestion.load(path)
    path.write_bytes(whole)
    arrays, bound = load_file(path), 1 << 16
    with safe_open(path, "numpy") as opened:
        metadata, knots = opened.metadata(), arrays["knots"]
    wrong = [knots.astype("f4"), knots[::-1].copy(), knots[:1], np.zeros(bound + 1), np.zeros((2, 2))]
    changes = [{"knots": one} for one in [*wrong, np.append(knots, np.nan)]]
    changes += [{"scope": np.zeros(shape, "f4")} for shape in ((), (48,), (0, 48), (3, 47))]
    for changed in (*changes, {"scope": np.zeros((3, 48))}, {"weight": arrays["weight"][0]}, {"more": knots}):
        save_file({**arrays, **changed}, path, metadata)
        with pytest.raises(CheckpointError, match=r"team\.head"):
            FittedQuestion.load(path)
    metadata["question"] = metadata["question"].replace("0.95", "1.0")  # keep, at its bound
    save_file({**arrays, "knots": np.zeros(bound)}, path, metadata)
    found = FittedQuestion.load(path)
    assert found.labels == team.labels
    far = found.answer(-arrays["scope"].sum(axis=0))
    assert far.scope == 0 and far.in_scope is True, "all are kept"


def test_a_head_of_scikit_learn_enters_by_its_arrays(engine: Engine) -> None:
    from sklearn.linear_model import LogisticRegression

    texts, labels = labelled(60)
    vectors = np.stack([np.asarray(engine.embed(text)) for text in texts])
    trained = LogisticRegression(C=16).fit(vectors, labels)
    head = FittedQuestion.from_arrays(trained.coef_, trained.intercept_, trained.classes_, name="team")
    for vector, wanted in zip(vectors[:9], trained.predict_proba(vectors[:9])):
        assert list(head.answer(vector).probabilities.values()) == pytest.approx(wanted.tolist(), abs=1e-5)
    sides = [label == "cards" for label in labels]
    trained = LogisticRegression(C=16).fit(vectors, sides)
    head = FittedQuestion.from_arrays(trained.coef_, trained.intercept_, trained.classes_, name="cards", kind="noul")
    for vector, wanted in zip(vectors[:9], trained.predict_proba(vectors[:9])):
        assert head.answer(vector).probability == pytest.approx(wanted[1], abs=1e-5)
    before = use_threads(2)
    assert head.answer(vectors[0]).scope is None and use_threads(before) == 2


# ------------------------------------------------------------------ the regression
@pytest.mark.parametrize("strength", [0.5, 8.0, 128.0])
def test_the_regression_is_that_of_scikit_learn(strength: float) -> None:
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    middles = random.standard_normal((4, 20))
    truth = np.arange(200, dtype=np.int32) % 4
    vectors = (middles[truth] + 1.5 * random.standard_normal((200, 20))).astype(np.float32)
    weights = 0.5 + random.random(200)
    rows = logistic.Rows.of(vectors, vectors.mean(axis=0, dtype=np.float64))
    parameters = logistic.fit(rows, truth, 4, weights, strength)
    found = np.exp(logistic.log_shares(rows.logits(*logistic.parted(parameters, 20)))).T
    oracle = LogisticRegression(C=strength, max_iter=5000, tol=1e-8).fit(vectors.astype(np.float64), truth, weights)
    assert np.abs(found - oracle.predict_proba(vectors)).max() < 0.02


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("kind", "texts", "labels", "said"),
    [
        ("choice", ["w1", "w2"], ["a"], "1 labels of 2 texts"),
        ("choice", ["w1", " ", "w3", ""], ["a", "a", "b", "b"], "rows 1, 3 without text"),
        ("choice", ["w1", "w2"], ["a", "a"], "all rows have the label 'a'"), ("choice", [], [], "there is no row"),
        ("choice", ["w1", "w2", "w3"], ["a", "a", "b"], "row 2: the only one of its label"),
        ("choice", ["w1", "w2", "w3", "w4"], ["Card", "card", "b", "b"], "'Card' and 'card' .* spell them alike"),
        ("choice", ["w1", "w2", "w1", "w4"], ["a", "a", "b", "b"], "rows 0 and 2 .* 'a' and 'b'; keep one of each"),
        ("choice", [*"abcdefg"], [*"vwxyzaa"], "rows 0, 1, 2, 3, 4: the only one of its label"),
        ("choice", [*"abcdefgh"], [*"uvwxyzaa"], "rows 0, 1, 2, 3, 4 and 1 more: the only one of its label"),
        ("choice", [*"abaa"], [*"xxyy"], "rows 0 and 2 .* 'x' and 'y', and 1 more such rows; keep one"),
        ("choice", ["w1", 2], ["a", "b"], r"texts\[1\]"), ("choice", ["w1", "w2"], ["a", 1], r"labels\[1\]"),
        ("choice", "w1", ["a"], "is not a list"),
        ("noul", [*"abcd"], ["yes", "yes", "maybe", "maybe"], r"labels\[2\].*labels of a noul"),
        ("noul", [*"abcd"], [True, 1, False, False], r"labels\[1\].*labels of a noul"),
        ("score", [*"abcd"], [1, 1, 3, 3], "without a gap"), ("score", [*"abcd"], [2, 2, 3, 3], "from 0 or 1 on"),
        ("score", [*"abcd"], [1.5, 1, 2, 2], r"labels\[0\].*number of a level"),
        ("score", [*"abcd"], ["9" * 5000, 1, 1, 1], r"labels\[0\].*number of a level"),
        ("score", [*"abcd"], ["1", "ab", "1", "1"], r"labels\[1\].*number of a level"),
        ("score", [*"abcd"], ["1", "²", "1", "1"], r"labels\[1\].*number of a level"),
        ("score", [*"abcd"], [0, 0, 11, 11], r"labels\[2\].* from 0 to 10"),
        ("score", [*"abcd"], [-1, 0, 0, 0], r"labels\[0\]"),
        ("score", [*"abcd"], [True, 0, 0, 0], r"labels\[0\]"),
        ("score", [*"abcd"], ["1", "002", "1", "1"], r"labels\[1\]"),
        ("guess", [*"abcd"], ["a", "a", "b", "b"], "kind"),
    ],
)  # fmt: skip
def test_rows_and_labels_that_cannot_be(engine: Engine, kind: Any, texts: Any, labels: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        engine.fit(texts, labels, name="x", kind=kind)


OUT_OF_RANGE = [{"name": ""}, {"question": 3}, {"keep": 1.5}, {"seed": -1}, {"class_weights": {"a": 1.0}}]
OUT_OF_RANGE += [{"prompt_name": "nowhere"}, {"pooling": "most"}, {"keep": 0.4}]


@pytest.mark.parametrize("keywords", OUT_OF_RANGE, ids=str)
def test_arguments_out_of_range_are_named(engine: Engine, keywords: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        engine.fit(["w1", "w2", "w3", "w4"], ["a", "a", "b", "b"], **{"name": "x", **keywords})
    assert raised.value.field in keywords


@pytest.mark.parametrize(
    "keywords", [{"orders": "sorted"}, {"length_norm": "token"}, {"mass": False}, {"template": "x"}], ids=str
)
def test_settings_without_meaning_are_refused(engine: Engine, team: FittedQuestion, keywords: Any) -> None:
    with pytest.raises(InvalidRequest, match="no meaning for a fitted question") as raised:
        engine.decide("w1", [team], **keywords)
    assert raised.value.field in keywords


def test_a_choice_beside_it_and_another_vector_are_refused(engine: Engine, team: FittedQuestion) -> None:
    with pytest.raises(InvalidRequest, match="no head that answers it") as raised:
        engine.decide("w1", [team, Choice("Which?", ["a", "b"])])
    assert raised.value.field == "questions[1]"
    other = FittedQuestion.from_arrays(np.zeros((2, 48)), np.zeros(2), ["a", "b"], name="other", pooling="cls")
    with pytest.raises(InvalidRequest, match="pooling='cls'"):
        engine.decide("w1", [team, other])
    assert engine.decide("w1", [other])[0].probabilities == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize(
    ("weight", "bias", "labels", "said"),
    [
        ([[0.0], [np.nan]], [0, 0], ["a", "b"], "weight"), ([[0.0], [1e30]], [0, 0], ["a", "b"], "weight"),
        ([[0.0], [1.0]], [0, 0, 0], ["a", "b"], "weight"), ([0.0, 1.0], [0, 0], ["a", "b"], "weight"),
        ([["x"], ["y"]], [0, 0], ["a", "b"], "weight"), ([[0.0]] * 3, [0] * 3, [*"baa"], "labels: 'a' is given"),
        ([[0.0]], [0], ["a"], r"labels: \['a'\] has 1; a question has 2 to 4096$"),
        ([[], []], [0, 0], ["a", "b"], "weight"),
        (np.zeros((2, 65537)), [0, 0], ["a", "b"], "weight: 65537 inputs"),
        ([[0.0], [1.1e6]], [0, 0], ["a", "b"], "weight"),
        (np.zeros((4097, 1)), np.zeros(4097), [str(at) for at in range(4097)], r"labels: \['0', .* has 4097; a"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_head_are_refused(weight: Any, bias: Any, labels: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{said}"):
        FittedQuestion.from_arrays(weight, bias, labels, name="x")


def test_a_head_at_the_bounds_is_made() -> None:
    wide = FittedQuestion.from_arrays(np.full((2, 65536), -1e6), [1e6, 0], ["a", "b"], name="x" * 65536)
    many = FittedQuestion.from_arrays(np.zeros((4096, 1)), np.zeros(4096), list(map(str, range(4096))), name="x")
    assert (wide.inputs, len(many.labels)) == (65536, 4096)


def test_labels_of_a_kind_are_in_the_order_of_its_answer() -> None:
    sides, levels = ("yes", "no"), [*range(11)]
    kind: Any
    for kind, given, labels, places in (
        ("noul", ["No", "TRUE"], sides, [1, 0]), ("noul", [False, "yes"], sides, [1, 0]),
        ("noul", [np.True_, "false"], sides, [0, 1]), ("noul", ["true", "no"], sides, [0, 1]),
        ("score", ["02", np.int64(1)], ("1", "2"), [1, 0]), ("score", ["1", 0], ("0", "1"), [1, 0]),
        ("score", levels[:10], tuple(map(str, levels[:10])), levels[:10]),
        ("score", levels[:0:-1], tuple(map(str, levels[1:])), levels[9::-1]),
    ):  # fmt: skip
        weight = np.arange(len(given))[:, None]
        head = FittedQuestion.from_arrays(weight, weight[:, 0], given, name="x", kind=kind)
        assert (head.labels, head.weight[:, 0].tolist(), head.bias.tolist()) == (labels, places, places)
    with pytest.raises(InvalidRequest, match=r"a score has 2 to 10 levels") as raised:
        FittedQuestion.from_arrays(np.zeros((11, 1)), np.zeros(11), levels, name="x", kind="score")
    assert raised.value.field == "labels"


def test_a_choice_beside_it_is_a_second_pass_of_a_model_that_answers_it() -> None:
    language = Choice("Which language is it?", ["English", "French"])
    text = "The library is open."
    with Engine.from_pretrained(config=EngineConfig(deterministic=True)) as engine:
        size = len(engine.embed(text, pooling="mean"))
        engine.fit([f"{text * 20} {at}" for at in range(4)], [*"aabb"], name="x", pooling="mean")
        assert engine.would_hit(Generate(text * 20)) == 0
        weight = np.random.default_rng(0).standard_normal((2, size))
        team = FittedQuestion.from_arrays(weight, [0, 0], ["a", "b"], name="team", pooling="mean")
        alone, other = engine.decide(text, [team]), engine.decide(text, [language], orders="all")
        both = engine.decide(text, {"language": language, "team": team, "again": team}, orders="all")
        assert both.names == ("language", "team", "again")
        assert [one.logprobs for one in both] == [other[0].logprobs, *[alone[0].logprobs] * 2]
        assert both.stats.prompt_tokens == alone.stats.prompt_tokens + other.stats.prompt_tokens
        engine.decide(text * 20, [team, language], salt="a")
        assert engine.would_hit(Generate(text * 20, salt="a")) > 0 == engine.would_hit(Generate(text * 20))

        async def asked() -> Any:
            async with AsyncEngine(engine) as twin:
                return await twin.decide(text, [team, language], orders="all")

        assert [one.logprobs for one in asyncio.run(asked())] == [alone[0].logprobs, other[0].logprobs]


def test_names_of_labels_are_rows_if_held_out_rows_are_answered_better_with_them() -> None:
    random = np.random.default_rng(0)

    def unit(rows: Any) -> Any:
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    middles = unit(random.standard_normal((5, 32)))
    truth = np.arange(15, dtype=np.int32) % 5
    vectors, others = (unit(middles[truth] + 0.25 * random.standard_normal((15, 32))) for _ in range(2))
    fits = [
        fit_vectors(vectors, truth, list("abcde"), np.ones(15), names)
        for names in (middles, unit(random.standard_normal((5, 32))), None)
    ]
    assert [facts["named"] for _, _, _, facts in fits] == [5, 0, 0]
    right = [((others @ weight.T + bias).argmax(axis=1) == truth).mean() for weight, bias, _, _ in fits]
    assert right[0] >= right[2]


def test_names_of_labels_are_embedded_where_rows_are_few_and_labels_have_words(engine: Engine) -> None:
    texts, labels = labelled(12, seed=3)

    def computed(labels: Any, **keywords: Any) -> int:
        before = engine.stats()["finished"]
        engine.fit(texts, labels, name="x", **keywords)
        return int(engine.stats()["finished"] - before)

    assert computed([label == "cards" for label in labels], kind="noul") == 12
    assert computed([{"cards": " ", "loans": "_", "travel": "-"}[label] for label in labels]) == 0
    assert computed([{"cards": "w1_w3", "loans": "w9W11", "travel": "w17 w19"}[label] for label in labels]) == 3
    many = labelled(90)
    engine.fit(*many, name="x")
    before = engine.stats()["finished"]
    engine.fit(many[0], [f"w2 {label}" for label in many[1]], name="x")
    assert engine.stats()["finished"] == before, "with 30 rows a label its name adds nothing"


def test_the_report_has_the_accuracy_of_fits_of_fewer_rows(team: FittedQuestion) -> None:
    assert team.report is not None and all(rows for *_, rows in team.report.confusions), "errors that were made"
    rows, accuracies = zip(*team.report.curve)
    assert rows == (18, 36) and all(0 <= one <= 1 for one in accuracies)
    lines = str(team.report).splitlines()
    points = [*team.report.curve, (72, team.report.accuracy)]
    drawn = [line.split() for line in lines[lines.index("accuracy by rows of a fit:") + 1 :]][:3]
    assert [(int(rows), float(accuracy)) for rows, *_, accuracy in drawn] == [(n, round(a, 4)) for n, a in points]
    assert [len(bar) for _, *bars, _ in drawn for bar in bars] == [max(1, round(30 * a)) for _, a in points]


FACTS: dict[str, Any] = {
    "rows": 91, "labels": 3, "named": 0, "folds": 5, "strength": 8.0, "temperature": 1.25, "accuracy": 0.9,
    "macro_f1": 0.875, "log_loss": 0.25, "calibration_error": 0.0625, "confusions": [], "curve": [], "cut": 0,
    "other_script": 0, "embed_seconds": 1.5, "fit_seconds": 0.25,
}  # fmt: skip
PAIR, POINT = ["a", "b", 2], [18, 0.5]


def test_a_report_in_words() -> None:
    said = [
        "91 rows, 3 labels; each row judged by a fit of the other 4 folds",
        "accuracy 0.9000, macro F1 0.8750, log loss 0.2500, calibration error 0.0625",
        "strength of the regression 8, logits divided by 1.250",
        "embedding 1.5 s, fit 0.2 s",
    ]
    assert str(report_of(FACTS, "here")).splitlines() == said
    facts = {**FACTS, "named": 1, "cut": 1, "other_script": 1, "curve": [[18, 0.5], [36, 0.0]]}
    facts["confusions"] = [["a", "b", 4], ["b", "a", 1]]
    *first, names, cut, script, curve, half, none, whole, errors, four, one = str(report_of(facts, "x")).splitlines()
    assert first == said and names.startswith("the names of the labels") and cut.startswith("1 rows are longer")
    assert script.startswith("1 rows are in another script") and (curve[-1], errors) == (":", "most frequent errors:")
    assert (half, none) == (f"     18 {'#' * 15:<30} 0.5000", f"     36 {'#':<30} 0.0000")
    assert whole == f"     72 {'#' * 27:<30} 0.9000", "rows of a fit of all folds but one"
    assert (four, one) == (f"      4 {'#' * 30} a answered as b", f"      1 {'#' * 8:<30} b answered as a")


@pytest.mark.parametrize(
    ("good", "wrong"),
    [
        ({"confusions": [PAIR] * 20}, {"confusions": [PAIR] * 21}),
        ({"curve": [POINT] * 20}, {"curve": [POINT] * 21}),
        ({"confusions": [["", "", 0]]}, {"confusions": [["a", "b", 2.0]]}), ({}, {"confusions": [("a", "b", 2)]}),
        ({}, {"confusions": [["a", "b"]]}), ({}, {"confusions": None}), ({}, {"curve": None}),
        ({"curve": [[18, 1]]}, {"curve": [[18.0, 0.5]]}), ({}, {"curve": [[18, math.inf]]}), ({}, {"curve": [[18]]}),
        ({}, {"curve": [[18, 0.5, 1]]}), ({}, {"curve": ["ab"]}), ({"accuracy": 1}, {"accuracy": math.nan}),
        ({"rows": 2}, {"rows": 2.0}), ({}, {"rows": True}), ({}, {"accuracy": "1"}), ({}, {"cut": None}),
        ({"rows": (1 << 63) - 1}, {"accuracy": 1 << 63}), ({}, {"curve": [{"a": 1, "b": 2}]}),
    ],
)  # fmt: skip
def test_both_sides_of_what_a_report_in_a_file_may_hold(good: Any, wrong: Any) -> None:
    found = report_of({**FACTS, **good}, "here")
    assert json.loads(json.dumps(dataclasses.asdict(found))) == {**FACTS, **good}
    with pytest.raises(CheckpointError, match=f"^here: .*{next(iter(wrong))}"):
        report_of({**FACTS, **wrong}, "here")
    for facts in ({**FACTS, "more": 1}, {name: FACTS[name] for name in FACTS if name != "cut"}):
        with pytest.raises(CheckpointError, match=r"^here: fields"):
            report_of(facts, "here")


def test_the_share_of_a_score_is_a_straight_line_between_the_knots() -> None:
    knots = (-1.0, 0.5, 0.75, 2.0)
    scope = Scope(np.zeros((1, 1), np.float32), knots, 0.9)
    for score in (-9.0, *knots, 0.0, 0.625, 1.0, 9.0):
        assert scope.share(score) == pytest.approx(np.interp(score, knots, np.linspace(0, 1, 4)))


def test_errors_that_are_as_many_are_in_the_order_of_the_labels(engine: Engine) -> None:
    texts, labels = labelled(90)
    labels[:12] = [list(TOPICS)[(at + 1 + at // 3 % 2) % 3] for at in range(12)]
    report = engine.fit(texts, labels, name="x").report
    assert report is not None and len({rows for *_, rows in report.confusions}) < len(report.confusions)
    assert list(report.confusions) == sorted(report.confusions, key=lambda pair: (-pair[2], *pair[:2]))


def test_rows_of_another_script_are_counted_and_said(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    texts, labels = labelled(20)
    texts[3], texts[7], texts[11] = "где моя карта w1", "カードはどこですか", "1, 2, 3"
    found = engine.fit(texts, labels, name="x")
    assert found.report is not None and found.report.other_script == 2
    assert "2 rows are in another script than most" in str(found.report)
    assert "2 of 20 rows are in another script than most: rows 3, 7" in caplog.text
    japanese = ["カード", "銀行", "ひらがな"] * 4
    assert engine.fit(japanese, [["a", "b", "c"][at % 3] for at in range(12)], name="x").report.other_script == 0
