"""Both sides of each bound of a task: a value at it is taken, the next one is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude.admission.preparer import Preparer
from prelude.admission.template import DecisionTemplate, decision_names, decision_template, template_hash
from prelude.errors import InvalidRequest, RecipeError, TemplateError
from prelude.recipes import GuardField, GuardRecipe, RerankRecipe, read_recipe
from prelude.tasks import Choice, Decide, Generate, Loglikelihood, Noul, PromptLogprobs, SamplingParams, Score
from tests.admission import toys

Q = [Noul("?")]
TEXT = "abcd"


def many(count: int) -> list[str]:
    return [f"l{at}" for at in range(count)]


def deep(depth: int, inside: Any = 1) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


def params(**given: Any) -> Generate:
    return Generate([5], SamplingParams(**{"max_tokens": 4, **given}))


def about(question: Any) -> Decide:
    return Decide(TEXT, [question])


# A task at its bound, one beyond it, and the field of the refusal.
BOUNDS: dict[str, tuple[Any, Any, str]] = {
    "temperature": (params(temperature=100), params(temperature=100.1), "params.temperature"),
    "temperature from": (params(temperature=0), params(temperature=-1e-9), "params.temperature"),
    "top_k": (params(top_k=(1 << 63) - 1), params(top_k=1 << 63), "params.top_k"),
    "top_k from": (params(top_k=0), params(top_k=-1), "params.top_k"),
    "top_p": (params(top_p=1.0), params(top_p=1.01), "params.top_p"),
    "top_p from": (params(top_p=1e-9), params(top_p=0.0), "params.top_p"),
    "min_p": (params(min_p=1.0), params(min_p=1.01), "params.min_p"),
    "min_p from": (params(min_p=0.0), params(min_p=-0.01), "params.min_p"),
    "seed": (params(seed=(1 << 64) - 1), params(seed=1 << 64), "params.seed"),
    "seed from": (params(seed=0), params(seed=-1), "params.seed"),
    "min_tokens": (params(min_tokens=4), params(min_tokens=5), "params.min_tokens"),
    "min_tokens from": (params(min_tokens=0), params(min_tokens=-1), "params.min_tokens"),
    "frequency": (params(frequency_penalty=100), params(frequency_penalty=100.5), "params.frequency_penalty"),
    "stops": (params(stop=many(64)), params(stop=many(65)), "params.stop"),
    "a stop": (params(stop="x" * 4096), params(stop="x" * 4097), "params.stop[0]"),
    "all stops": (params(stop=["x" * 4000, "y" * 96]), params(stop=["x" * 4000, "y" * 97]), "params.stop"),
    "stop ids": (params(stop_token_ids=[5] * 1024), params(stop_token_ids=[5] * 1025), "params.stop_token_ids"),
    "bias": (params(logit_bias={427: 100}), params(logit_bias={427: 100.5}), "params.logit_bias[427]"),
    "allowed ids": (
        params(allowed_token_ids=[5] * 428),
        params(allowed_token_ids=[5] * 429),
        "params.allowed_token_ids",
    ),
    "include_stop": (params(include_stop=True), params(include_stop=1), "params.include_stop"),
    "ignore_eos": (params(ignore_eos=np.bool_(True)), params(ignore_eos=None), "params.ignore_eos"),
    "max_tokens": (params(max_tokens=0), params(max_tokens=-1), "params.max_tokens"),
    "prompt_logprobs": (
        params(max_tokens=0, prompt_logprobs=0),
        params(max_tokens=1, prompt_logprobs=0),
        "params.prompt_logprobs",
    ),
    "prompt": (Generate([5] * 255, SamplingParams()), Generate([5] * 256, SamplingParams()), "prompt"),
    "prompt alone": (
        Generate([5] * 256, SamplingParams(max_tokens=0)),
        Generate([5] * 257, SamplingParams(max_tokens=0)),
        "prompt",
    ),
    "ids": (Generate([419], SamplingParams()), Generate([420], SamplingParams()), "prompt[0]"),
    "ids from": (Generate([0], SamplingParams()), Generate([5, -1], SamplingParams()), "prompt[1]"),
    "read prompt": (PromptLogprobs([5] * 256), PromptLogprobs([5] * 257), "prompt"),
    "continuation": (Loglikelihood([5] * 256, [6]), Loglikelihood([5] * 257, [6]), "context"),
    "continuation's": (Loglikelihood([5], [6] * 256), Loglikelihood([5], [6] * 257), "continuation"),
    "a continuation": (Loglikelihood("a", "b"), Loglikelihood("a", ""), "continuation"),
    "continuation ids": (Loglikelihood("a", [6]), Loglikelihood("a", []), "continuation"),
    "top": (PromptLogprobs([5, 6], top=0), PromptLogprobs([5, 6], top=-1), "top"),
    "top most": (PromptLogprobs([5, 6], top=256), PromptLogprobs([5, 6], top=257), "top"),
    "last from": (PromptLogprobs([5, 6], last=1), PromptLogprobs([5, 6], last=0), "last"),
    "last": (PromptLogprobs([5, 6], last=1 << 31), PromptLogprobs([5, 6], last=(1 << 31) + 1), "last"),
    "an id's type": (Generate([np.int64(5)], SamplingParams()), Generate([5, True], SamplingParams()), "prompt[1]"),
    "an array's type": (
        Generate(np.array([5], np.uint8), SamplingParams()),
        Generate(np.array([5.0]), SamplingParams()),
        "prompt",
    ),
    "an array's shape": (
        Generate(np.array([5]), SamplingParams()),
        Generate(np.array([[5]]), SamplingParams()),
        "prompt",
    ),
    "a prompt's type": (Generate("a", SamplingParams()), Generate(["a"], SamplingParams()), "prompt"),
    "a surrogate": (Generate("\ud7ff", SamplingParams()), Generate("a\ud800", SamplingParams()), "prompt"),
    "levels from": (about(Score("?", 2)), about(Score("?", 1)), "questions[0].levels"),
    "levels": (about(Score("?", 10)), about(Score("?", 11)), "questions[0].levels"),
    "named levels from": (about(Score("?", many(2))), about(Score("?", many(1))), "questions[0].levels"),
    "named levels": (about(Score("?", many(10))), about(Score("?", many(11))), "questions[0].levels"),
    "a level": (about(Score(None, ["a", "b"])), about(Score(None, ["a", ""])), "questions[0].levels[1]"),
    "a level's type": (about(Score(None, ["a", {}])), about(Score(None, ["a", None])), "questions[0].levels[1]"),
    "levels ask": (about(Score("?", 3)), about(Score(None, 3)), "questions[0].question"),
    "labels from": (about(Choice("?", ["a"])), about(Choice("?", [])), "questions[0].labels"),
    "labels": (about(Choice("?", many(12))), about(Choice("?", many(13))), "questions[0].labels"),
    "labels' type": (about(Choice("?", ("a", "b"))), about(Choice("?", "ab")), "questions[0].labels"),
    "label's type": (about(Choice("?", ["a", "b"])), about(Choice("?", ["a", 5])), "questions[0].labels[1]"),
    "two labels": (about(Choice("?", ["a", "A"])), about(Choice("?", ["a", "a"])), "questions[0].labels[1]"),
    "an empty label": (about(Choice("?", ["a", " "])), about(Choice("?", ["a", ""])), "questions[0].labels[1]"),
    "a note": (about(Choice("?", {"a": None, "b": ""})), about(Choice("?", {"a": 5})), "questions[0].labels[0]"),
    "a question": (about(Choice(None, ["a", "b"])), about(Choice("", ["a", "b"])), "questions[0].question"),
    "a noul": (about(Noul(None, {"true": "a"})), about(Noul(None, {"true": ""})), "questions[0].question"),
    "sides": (about(Noul("?", {"false": "a"})), about(Noul("?", {"no": "a"})), "questions[0].criteria"),
    "a side": (about(Noul("?", {"true": None})), about(Noul("?", {"true": 5})), "questions[0].criteria.true"),
    "the second": (Decide(TEXT, [*Q, *Q]), Decide(TEXT, [*Q, Score("?", 0)]), "questions[1].levels"),
    "no question's type": (Decide(TEXT, tuple(Q)), Decide(TEXT, ["?"]), "questions[0]"),
    "questions": (Decide(TEXT, Q * 3), Decide(TEXT, Q * 4), "questions"),
    "questions from": (Decide(TEXT, Q), Decide(TEXT, []), "questions"),
    "one alone": (Decide(TEXT, Q), Decide(TEXT, Q[0]), "questions"),
    "names": (Decide(TEXT, {"a": Q[0]}), Decide(TEXT, {"": Q[0]}), "questions"),
    "orders": (Decide(TEXT, Q, orders=1), Decide(TEXT, Q, orders=0), "orders"),
    "orders' type": (Decide(TEXT, Q, orders=2), Decide(TEXT, Q, orders=True), "orders"),
    "shifts": (Decide(TEXT, Q, orders=range(1, 2)), Decide(TEXT, Q, orders=range(2, 4)), "orders"),
    "shifts from": (Decide(TEXT, Q, orders=range(1)), Decide(TEXT, Q, orders=range(-1, 2)), "orders"),
    "some shifts": (Decide(TEXT, Q, orders=range(2)), Decide(TEXT, Q, orders=range(0, 4, 2)), "orders"),
    "no shifts": (Decide(TEXT, Q, orders=range(2)), Decide(TEXT, Q, orders=range(0)), "orders"),
    "salt": (Decide(TEXT, Q, salt="s" * 256), Decide(TEXT, Q, salt="s" * 257), "salt"),
    "salt from": (Decide(TEXT, Q, salt="s"), Decide(TEXT, Q, salt=""), "salt"),
    "norm": (Decide(TEXT, Q, length_norm="token"), Decide(TEXT, Q, length_norm="tokens"), "length_norm"),
    "mass": (Decide(TEXT, Q, mass=False), Decide(TEXT, Q, mass=0), "mass"),
    "truncation": (Decide(TEXT, Q, truncation="middle"), Decide(TEXT, Q, truncation="center"), "truncation"),
    "cache": (Decide(TEXT, Q, cache="never"), Decide(TEXT, Q, cache="none"), "cache"),
    "template": (Decide(TEXT, Q, template=None), Decide(TEXT, Q, template="{state}"), "template"),
    "state": (Decide(deep(64, "a"), Q), Decide(deep(65, "a"), Q), "state" + "[0]" * 8),
    "state's type": (Decide(["a"], Q), Decide(b"a", Q), "state"),
    "state's ids": (Decide([5, 6], Q), Decide([5, 420], Q), "state[1]"),
    "a number": (Decide({"a": 1.5}, Q), Decide({"a": float("nan")}, Q), "state"),
    "a key": (Decide({"5": 1}, Q), Decide({5: 1}, Q), "state"),
    "role": (
        Decide([{"role": "r" * 64, "content": "a"}], Q),
        Decide([{"role": "r" * 65, "content": "a"}], Q),
        "state[0].role",
    ),
}


@pytest.fixture(scope="module")
def bounded() -> Preparer:
    return toys.make(max_labels=12, max_questions=3)


@pytest.mark.parametrize("name", BOUNDS)
def test_both_sides_of_a_bound(bounded: Preparer, name: str) -> None:
    taken, beyond, field = BOUNDS[name]
    bounded.prepare(taken)
    with pytest.raises(InvalidRequest) as caught:
        bounded.prepare(beyond)
    assert (caught.value.field or "").startswith(field) and (len(field) > 12 or caught.value.field == field)


def test_values_that_mean_another(bounded: Preparer) -> None:
    def made(**given: Any) -> Any:
        return bounded.prepare(params(**given)).prepared.sampling

    assert made(temperature=9e-6).temperature == 0.0 and made(temperature=1e-5).temperature == 1e-5
    assert made(temperature=0, seed=None).seed == 0 and made(temperature=1, seed=7).seed == 7
    assert (made(top_k=428).top_k, made(top_k=427).top_k, made(top_k=10**6).top_k) == (0, 427, 0)
    assert made(stop=[]).stops is None and made(stop="a").stops is not None
    assert len({made(temperature=1).seed for _ in range(8)}) == 8, "a seed is drawn"


def test_a_default_bound_of_characters() -> None:
    """16 for each token of the longest sequence."""
    plain = toys.make()
    for task in (lambda text: Decide(text, Q), lambda text: Generate(text, SamplingParams())):
        for count, says in ((16 * 256, "tokens"), (16 * 256 + 1, "4097 characters; the limit is 4096")):
            with pytest.raises(InvalidRequest, match=says):
                plain.prepare(task("a" * count))


def test_the_sequence_of_shifts() -> None:
    """The first k of them are about evenly far apart."""
    labels = [f"label {at}" for at in range(5)]
    tree = toys.make().prepare(Decide(TEXT, [Choice("Which?", labels)], orders="all")).prepared.tree
    decode = toys.plain_tokenizer().decode
    texts = [decode(tree.token_ids[a:b].tolist()) for a, b in zip(tree.starts[:-1], tree.starts[1:])]
    assert [text.split(",")[0].strip()[-1:] for text in texts if ", " in text] == ["0", "4", "2", "1", "3"]


# ------------------------------------------------------------------ templates and recipes
LIST = "\n{letter}: {label} {description}"


@pytest.mark.parametrize(
    ("good", "wrong", "field"),
    [
        ({"chat": True}, {"chat": 1}, "template.chat"),
        ({"letters": False}, {"letters": 0}, "template.letters"),
        ({"state": "x" * 65529 + "{state}"}, {"state": "x" * 65530 + "{state}"}, "template.state"),
        ({"label": "x" * 1017 + "{label}"}, {"label": "x" * 1018 + "{label}"}, "template.label"),
        ({"separator": "x" * 1024}, {"separator": "x" * 1025}, "template.separator"),
        ({"yes": "x" * 1024}, {"yes": "x" * 1025}, "template.yes"),
        ({"choose": "x" * 65536}, {"choose": "x" * 65537}, "template.choose"),
        ({"separator": ""}, {"separator": None}, "template.separator"),
        ({"score": None}, {"question": None}, "template.question"),
        ({"no": "\ud7ff"}, {"no": "\ud800"}, "template.no"),
        ({"no": "\ue000"}, {"no": "\udfff"}, "template.no"),
        ({"yes": "no", "no": "yes"}, {"yes": "no"}, "template.yes"),
        ({"yes": "y"}, {"no": ""}, "template.yes"),
        ({"state": "{state}{labels"}, {"state": "{state}{labels}"}, "template.state"),
        ({"score": "{question}{labels}"}, {"score": "{labels}"}, "template.score"),
        ({"yes_no": "{question}"}, {"yes_no": "{question}{question}"}, "template.yes_no"),
        ({"described": LIST}, {"described": "{label}"}, "template.described"),
        (
            {"letters": True, "described": LIST, "undescribed": "{letter}{label}"},
            {"letters": True, "described": LIST},
            "template.undescribed",
        ),
        (
            {"letters": True, "described": LIST, "undescribed": "{letter}{label}"},
            {"letters": True, "described": LIST, "undescribed": "{letter}{label}", "question": "{question}"},
            "template.question",
        ),
    ],
)
def test_both_sides_of_a_bound_of_a_template(good: Any, wrong: Any, field: str) -> None:
    DecisionTemplate(**good)
    with pytest.raises(TemplateError) as caught:
        DecisionTemplate(**wrong)
    assert caught.value.field == field


def test_a_template_with_letters_names_twenty_six(bounded: Preparer) -> None:
    lettered = DecisionTemplate(letters=True, described=LIST, undescribed="\n{letter}: {label}")
    plain = toys.make()
    plain.prepare(Decide(TEXT, [Choice("?", many(26))], template=lettered, truncation="tail"))
    with pytest.raises(TemplateError, match="27 options; a template with letters names 26") as caught:
        plain.prepare(Decide(TEXT, [Choice("?", many(27))], template=lettered, truncation="tail"))
    assert caught.value.field == "template.letters"


def test_a_template_s_file_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "decision_template.json"
    path.write_bytes(b'{"yes": "y"}'.ljust(1 << 20))
    assert DecisionTemplate.from_file(path).yes == "y"
    assert template_hash(DecisionTemplate()) == "ead6adf9504d577db88761accabf1b9d", "as calibrators' files name it"
    for data, says in (
        (b'{"yes": "y"}'.ljust((1 << 20) + 1), "cannot be read"),
        (b'["yes"]', "list instead of an object"),
        (b'{"y": 1, "state": "{state}"}', "unknown field 'y'"),
        (b'{"_parts": {}}', "unknown field '_parts'"),
        (b'{"yes": ""}', "two different labels"),
    ):
        path.write_bytes(data)
        with pytest.raises(TemplateError, match=rf"decision_template\.json: .*{says}"):
            DecisionTemplate.from_file(path)


def rerank(**given: Any) -> Callable[[], Any]:
    return lambda: RerankRecipe(**{"name": "n", "yes": "y", **given})


def field_of(**given: Any) -> Callable[[], Any]:
    return lambda: GuardField(**{"name": "f", "before": "F:", "labels": ("a", "b"), **given})


def guard(*fields: Any, **given: Any) -> Callable[[], Any]:
    made = fields or (GuardField("f", "F:", ("a", "b")),)
    return lambda: GuardRecipe(**{"name": "n", "fields": made, "safe": ("a",), **given})


FEW = ("{query}", "{document}")
SEVERAL = GuardField("s", "S:", ("a", "b"), joiner=", ")
ANSWER = GuardField("r", "R:", ("a", "b"), response_only=True)


@pytest.mark.parametrize(
    ("good", "wrong", "field"),
    [
        (rerank(yes=0), rerank(yes=-1), "recipe.yes"),
        (rerank(yes=(1 << 31) - 1), rerank(yes=1 << 31), "recipe.yes"),
        (rerank(no=None), rerank(yes=None), "recipe.yes"),
        (rerank(no=0), rerank(no=True), "recipe.no"),
        (rerank(max_length=1), rerank(max_length=0), "recipe.max_length"),
        (rerank(max_length=None), rerank(max_length=True), "recipe.max_length"),
        (rerank(activation="none"), rerank(activation="default"), "recipe.activation"),
        (rerank(generation_prompt=True), rerank(generation_prompt=1), "recipe.generation_prompt"),
        (rerank(instruction="i"), rerank(instruction=""), "recipe.instruction"),
        (rerank(parts=("{query}{document}",)), rerank(parts=("{query}", "")), "recipe.parts[1]"),
        (rerank(parts=("{query}{document}{instruction}",)), rerank(parts=("{query}",)), "recipe.parts"),
        (rerank(parts=["{document}", "{query}"]), rerank(parts="{document}{query}"), "recipe.parts"),
        (rerank(name="n"), rerank(name=""), "recipe.name"),
        (rerank(parts=FEW), rerank(parts=("{query}{query}{document}",)), "recipe.parts"),
        (rerank(parts=(*FEW, *["x"] * 14)), rerank(parts=(*FEW, *["x"] * 15)), "recipe.parts"),
        (rerank(instruction="x" * 65536), rerank(instruction="x" * 65537), "recipe.instruction"),
        (rerank(instruction="\ud7ff"), rerank(instruction="\ud800"), "recipe.instruction"),
        (field_of(), field_of(labels=("a",)), "recipe.f.labels"),
        (field_of(name="x" * 65536), field_of(name="x" * 65537), "recipe.fields.name"),
        (field_of(before="B"), field_of(before=""), "recipe.f.before"),
        (field_of(none=""), field_of(none=5), "recipe.f.none"),
        (field_of(labels=many(256)), field_of(labels=many(257)), "recipe.f.labels"),
        (field_of(prompt_labels=()), field_of(prompt_labels="a"), "recipe.f.prompt_labels"),
        (field_of(prompt_labels=("a",)), field_of(prompt_labels=("a", "")), "recipe.f.prompt_labels[1]"),
        (field_of(response_only=True), field_of(response_only=None), "recipe.f.response_only"),
        (field_of(unless=("a", "b", "c")), field_of(unless=("a", "b")), "recipe.f.unless"),
        (field_of(none="a", joiner=""), field_of(none="c"), "recipe.f.none"),
        (field_of(joiner=", "), field_of(joiner=None), "recipe.f.joiner"),
        (guard(*[SEVERAL] * 16, end="."), guard(*[SEVERAL] * 17, end="."), "recipe.fields"),
        (guard(safe=("a", "b")), guard(safe=()), "recipe.safe"),
        (guard(safe=["a"]), guard(safe=("a", "c")), "recipe.safe"),
        (guard(marks=()), guard(marks=None), "recipe.marks"),
        (guard(separator=""), guard(separator=None), "recipe.separator"),
        (guard(SEVERAL, end="."), guard(SEVERAL), "recipe.end"),
        (guard(SEVERAL, ANSWER, end="."), guard(SEVERAL, ANSWER), "recipe.end"),  # of a prompt it is the last
        (guard(ANSWER), guard(SEVERAL, end=None), "recipe.end"),
    ],
)
def test_both_sides_of_a_bound_of_a_recipe(good: Any, wrong: Any, field: str) -> None:
    good()
    with pytest.raises(RecipeError) as caught:
        wrong()
    assert caught.value.field == field


def test_the_text_after_a_field_and_the_labels_of_one() -> None:
    made = GuardRecipe("n", (SEVERAL, ANSWER, GuardField("t", "T:", ("a", "b"), ("c",))), ("a",), end=".")
    assert [one.name for one in made.asked(True)] == ["s", "r", "t"]
    assert [one.name for one in made.asked(False)] == ["s", "t"]
    assert (made.after(made.fields[0], True), made.after(made.fields[0], False)) == ("R:", "T:")
    assert made.after(made.fields[2], True) == "."
    assert (made.fields[2].labels_for(True), made.fields[2].labels_for(False)) == (("a", "b"), ("c",))
    assert made.fields[0].labels_for(False) == ("a", "b") and made.separator == " "


def test_names_of_templates_of_recipes() -> None:
    assert decision_names() == sorted(decision_names()) and len(decision_names()) == 6
    for name in decision_names():
        assert isinstance(decision_template(name), DecisionTemplate)
    with pytest.raises(RecipeError, match="'x' is not a recipe for decide") as caught:
        decision_template("x")
    assert caught.value.field == "template"
    for text, says in (
        ("", "not usable JSON"),
        ("[]", "verb 'rerank' or 'guard' is expected"),
        ('{"verb": ["rerank"]}', "verb 'rerank' or 'guard' is expected"),
        ('{"verb": "rerank", "name": "n", "yes": "y", "unknown": 1}', "recipe: unknown field 'unknown'"),
        ('{"verb": "rerank", "name": "n"}', "recipe: yes is missing"),
        ('{"verb": "guard", "name": "n", "fields": [3], "safe": ["a"]}', "fields: 3 is not an object"),
    ):
        with pytest.raises(RecipeError, match=f"^here: .*{says}") as caught:
            read_recipe(text, "here")
        assert caught.value.field is None
