"""Every verb against transformers, on real weights through the whole path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prelude import (
    Choice,
    Classify,
    Decide,
    Embed,
    Engine,
    Generate,
    Loglikelihood,
    PromptLogprobs,
    Rerank,
    Reward,
    SamplingParams,
    Score,
    YesNo,
)
from prelude.errors import InvalidRequest
from prelude.tasks import LengthNorm
from tests.checkpoints import make_checkpoint
from tests.engine.conftest import Oracle
from tests.engine.test_encoders import write

Make = Callable[..., Engine]
STATE = "The harbour was quiet that morning; two boats lay at the quay, and nobody wanted to sail in the fog."
QUESTIONS = [
    Choice("Where is it?", ["harbour", "harbour master", "mountain", "mountain hut", "city", "a", "ab"]),
    YesNo("Is it polite?"),
    Score("How clear is it?", levels=5),
]


def whole(engine: Engine, task: Decide, question: int) -> tuple[list[int], list[tuple[str, tuple[int, ...]]]]:
    """The sequence in front of one question's labels, and its labels."""
    alone = engine.explain(replace(task, questions=[task.questions[question]], length_norm="none"))
    end = int(alone.rows.min()) + 1
    return alone.token_ids[:end].tolist(), list(alone.labels[0])


@pytest.mark.feature("A19")
@pytest.mark.feature("G13")
@pytest.mark.fault(14)
def test_decide_equals_brute_force_label_by_label(make_engine: Make, oracle: Oracle) -> None:
    engine = make_engine()
    task = Decide(STATE, QUESTIONS)
    answers = engine.run(task)
    for number, answer in enumerate(answers):
        context, labels = whole(engine, task, number)
        joint = {label: oracle.joint(context, list(ids)) for label, ids in labels}
        assert answer.labels == tuple(joint)
        for label, value in joint.items():
            assert answer.logprobs[label] == pytest.approx(value, abs=1e-4)
        scores = np.array(list(joint.values()))
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        assert list(answer.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-4)
        assert answer.label == list(joint)[int(shares.argmax())]
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert any(len(ids) > 1 for _, ids in whole(engine, task, 0)[1]), "the test needs labels of several tokens"


@pytest.mark.parametrize("norm", ["none", "token", "unconditional"])
def test_without_mass_the_vocabulary_is_left_alone(make_engine: Make, norm: LengthNorm) -> None:
    engine = make_engine()
    letters = [Choice("Which?", ["a", "b", "c"]), Choice("And now?", ["d", "e"])]
    labels = engine.explain(Decide(STATE, letters)).labels
    assert all(len(ids) == 1 for question in labels for _, ids in question)
    whole_answers = engine.decide(STATE, letters, length_norm=norm)
    before = engine.stats()["lm_head_rows"]
    answers = engine.decide(STATE, letters, length_norm=norm, mass=False)
    assert engine.stats()["lm_head_rows"] == before
    for answer, other in zip(answers, whole_answers):
        assert answer.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert answer.label == other.label and np.isnan(answer.mass) and 0 < other.mass <= 1
        logs = {label: float(np.log(share)) for label, share in other.probabilities.items()}
        assert answer.logprobs == pytest.approx(logs, abs=1e-4)
    mixed = engine.decide(STATE, [*letters, *QUESTIONS], length_norm=norm, mass=False)  # labels of several tokens
    for answer, other in zip(mixed, engine.decide(STATE, [*letters, *QUESTIONS], length_norm=norm)):
        assert answer.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert np.isnan(answer.mass) and sum(np.exp(list(answer.logprobs.values()))) == pytest.approx(1, abs=1e-6)
    assert engine.stats()["lm_head_rows"] > before
    with pytest.raises(InvalidRequest, match="mass"):
        engine.decide(STATE, letters, mass="no")


def test_a_state_with_questions_is_tokenised_and_computed_once(make_engine: Make) -> None:
    engine = make_engine()
    text = " ".join([STATE] * 4)
    state = engine.explain(Decide(text, [YesNo("Q?"), YesNo("R?")])).segments[0][1]
    tree = engine.explain(Decide(text, QUESTIONS))
    answers = engine.run(Decide(text, QUESTIONS))
    stats = engine.stats()
    assert answers.stats.computed_tokens == len(tree.token_ids) == stats["prefill_tokens"]
    assert answers.stats.computed_tokens < state * len(QUESTIONS)
    assert stats["steps"] == {"oneshot": 1, "mixed": 0, "decode": 0}
    again = engine.run(Decide(text, QUESTIONS))
    assert again.stats.cached_tokens == state // 16 * 16
    assert again.stats.computed_tokens == len(tree.token_ids) - again.stats.cached_tokens
    for one, other in zip(answers, again):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_length_norms(make_engine: Make, oracle: Oracle) -> None:
    engine = make_engine()
    plain = engine.decide(STATE, QUESTIONS[:1])
    by_token = engine.decide(STATE, QUESTIONS[:1], length_norm="token")
    _, labels = whole(engine, Decide(STATE, QUESTIONS), 0)
    scores = np.array([plain[0].logprobs[label] / len(ids) for label, ids in labels])
    shares = np.exp(scores - scores.max())
    assert list(by_token[0].probabilities.values()) == pytest.approx((shares / shares.sum()).tolist(), abs=1e-4)
    assert by_token[0].logprobs == pytest.approx(plain[0].logprobs, abs=1e-4)
    apart = engine.decide(STATE, QUESTIONS[:1], length_norm="unconditional")
    assert apart[0].logprobs == pytest.approx(plain[0].logprobs, abs=1e-4)
    assert apart[0].probabilities != pytest.approx(plain[0].probabilities, abs=1e-3)


@pytest.mark.feature("A19")
def test_loglikelihood(make_engine: Make, oracle: Oracle) -> None:
    engine = make_engine()
    result = engine.loglikelihood(STATE, " Then the fog lifted")
    explained = engine.explain(Loglikelihood(STATE, " Then the fog lifted"))
    ids = explained.token_ids.tolist()
    n = len(result.token_ids)
    table = oracle.logprobs(ids + result.token_ids.tolist()[-1:])
    start = int(explained.rows.min()) + 1
    want = [table[start + i - 1, token] for i, token in enumerate(result.token_ids.tolist())]
    assert result.token_logprobs.tolist() == pytest.approx(want, abs=1e-4)
    assert result.total == pytest.approx(sum(want), abs=1e-4)
    assert result.stats.execution_class == "oneshot" and n > 2
    greedy = oracle.greedy(ids[:start], 3)
    assert engine.loglikelihood(ids[:start], greedy).is_greedy
    assert not engine.loglikelihood(ids[:start], [*greedy[:2], (greedy[2] + 1) % 4000]).is_greedy


@pytest.mark.feature("A19")
@pytest.mark.feature("B10")
@pytest.mark.feature("A4")
def test_prompt_logprobs_cold_and_over_a_cached_prefix(make_engine: Make, oracle: Oracle) -> None:
    engine = make_engine()
    cold = engine.prompt_logprobs(STATE, top=3)
    ids = [token.token_id for token in cold]
    table = oracle.logprobs(ids)
    assert cold[0].logprob is None and cold[0].top == ()
    for i, token in enumerate(cold[1:], start=1):
        assert token.logprob == pytest.approx(table[i - 1, ids[i]], abs=1e-4)
        order = np.argsort(-table[i - 1], kind="stable")
        assert [top_id for top_id, _ in token.top] == order[:3].tolist()
        assert token.rank == int(np.flatnonzero(order == ids[i])[0]) + 1
        a, b = token.offsets
        assert 0 <= a < b <= len(STATE)
    engine.embed(STATE, pooling="last")  # puts the prefix into the cache
    warm = engine.prompt_logprobs(STATE, top=3)
    assert [token.logprob for token in warm[1:]] == pytest.approx([token.logprob for token in cold[1:]], abs=1e-4)
    last = engine.prompt_logprobs(STATE, top=0, last=2)
    assert [token.logprob for token in last] == pytest.approx([token.logprob for token in cold[-2:]], abs=1e-4)
    assert last.stats.cached_tokens > 0, "rows that are not read come from the cache"
    before = engine.stats()
    nothing = engine.complete(STATE, SamplingParams(max_tokens=0, prompt_logprobs=3))
    assert nothing.text == "" and nothing.token_ids == () and nothing.finish_reason == "length"
    assert nothing.stats.execution_class == "oneshot"
    assert [t.logprob for t in nothing.prompt_logprobs[1:]] == pytest.approx([t.logprob for t in cold[1:]], abs=1e-4)
    assert nothing.prompt_logprobs[0].logprob is None and len(nothing.prompt_logprobs) == len(ids)
    assert engine.stats()["decode_tokens"] == before["decode_tokens"]


@pytest.mark.feature("A19")
def test_embeddings(make_engine: Make, oracle: Oracle) -> None:
    engine = make_engine()
    ids = engine.explain(Embed(STATE, pooling="last")).token_ids.tolist()
    hidden = oracle.hidden(ids)
    for pooling, want in (("last", hidden[-1]), ("cls", hidden[0]), ("mean", hidden.mean(0))):
        raw = engine.embed(STATE, pooling=pooling, normalize=False)
        assert raw.dtype == np.float32 and raw.shape == (64,)
        assert np.asarray(raw) == pytest.approx(want, abs=1e-4)
        unit = engine.embed(STATE, pooling=pooling)
        assert np.asarray(unit) == pytest.approx(want / np.linalg.norm(want), abs=1e-4)
        cut = engine.embed(STATE, pooling=pooling, dimensions=10)
        assert np.asarray(cut) == pytest.approx(want[:10] / np.linalg.norm(want[:10]), abs=1e-4)
    several = engine.embed(STATE, pooling=["last", "mean"], normalize=False)
    assert np.asarray(several) == pytest.approx(np.concatenate([hidden[-1], hidden.mean(0)]), abs=1e-4)
    assert engine.stats()["lm_head_rows"] == 0, "an embedding never meets the vocabulary"


@pytest.mark.feature("A19")
def test_completions_equal_transformers_greedy(make_engine: Make, oracle: Oracle) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
    done = engine.complete(STATE, params)
    ids = engine.explain(Generate(STATE, params)).token_ids.tolist()
    assert list(done.token_ids) == oracle.greedy(ids, 64)
    assert done.finish_reason == "length" and done.stats.execution_class == "decode"
    again = engine.complete(STATE, params)
    assert again.token_ids == done.token_ids and again.stats.cached_tokens > 0


@pytest.mark.feature("A19")
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "mistral"])
def test_classification_head(tmp_path: Path, make_engine: Make, family: str) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    path = make_checkpoint(tmp_path / "head", family=family, kind="ForSequenceClassification", num_labels=3)
    engine = make_engine(path)
    got = engine.classify(STATE)
    ids = (said := engine.explain(Classify(STATE))).token_ids.tolist()
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        want = model(torch.tensor([ids])).logits[0].numpy()
    assert got.logits == pytest.approx(want, abs=1e-4)
    assert got.scores.sum() == pytest.approx(1, abs=1e-6) and said.activation == "softmax"
    assert engine.classify(STATE, activation="none").scores == pytest.approx(want, abs=1e-4)
    assert got.labels == ("LABEL_0", "LABEL_1", "LABEL_2") and got.label == got.labels[int(want.argmax())]
    with pytest.raises(InvalidRequest, match="a language-model head, and this model has no such head: "):
        engine.loglikelihood(STATE, " and")


def test_a_vector_does_not_depend_on_the_lengths_of_its_neighbours(make_engine: Make) -> None:
    engine = make_engine()
    modes = ["cls", "last", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", ["cls", "mean"]]
    for pooling in modes:
        tasks = [Embed(ids, pooling=pooling) for ids in ([5], [6, 7, 8], [9, 10])]  # type: ignore[arg-type]
        for task, vector in zip(tasks, engine.run_many(tasks)):
            assert vector == pytest.approx(engine.run(task), abs=1e-5), pooling


@pytest.mark.feature("A1")
def test_the_class_of_a_request_is_that_of_its_output(make_engine: Make) -> None:
    engine = make_engine()
    for task, expected in (
        (Decide(STATE, QUESTIONS), "oneshot"),
        (Embed(STATE, pooling="mean"), "oneshot"),
        (Loglikelihood(STATE, " fog"), "oneshot"),
        (PromptLogprobs(STATE), "oneshot"),
        (Generate(STATE, SamplingParams(max_tokens=1)), "oneshot"),
        (Generate(STATE, SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)), "decode"),
    ):
        steps = engine.stats()["steps"]
        assert engine.run(task).stats.execution_class == expected
        kinds = {kind for kind, count in engine.stats()["steps"].items() if count > steps[kind]}
        assert kinds == ({"oneshot"} if expected == "oneshot" else {"mixed", "decode"})


@pytest.mark.feature("A1")
def test_answers_of_heads_are_one_shot(make_engine: Make, tmp_path: Path) -> None:
    classifier = make_checkpoint(tmp_path / "three", kind="ForSequenceClassification", num_labels=3)
    pairs = write(tmp_path / "pairs", "ForSequenceClassification", num_labels=1)
    judge = make_checkpoint(tmp_path / "one", kind="ForSequenceClassification", num_labels=1)
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    (judge / "chat_template.jinja").write_text(template, encoding="utf-8")
    said = [{"role": "user", "content": "Is it safe?"}, {"role": "assistant", "content": STATE}]
    for path, task in ((classifier, Classify(STATE)), (pairs, Rerank("fog", STATE)), (judge, Reward(said))):
        engine = make_engine(path)
        assert engine.run(task).stats.execution_class == "oneshot"
        assert engine.stats()["steps"] == {"oneshot": 1, "mixed": 0, "decode": 0}


@pytest.mark.feature("A11")
@pytest.mark.feature("A20")
def test_all_kinds_at_once_on_one_copy_of_the_weights(make_engine: Make) -> None:
    engine = make_engine()
    tasks = [
        Decide(STATE, QUESTIONS), Embed(STATE, pooling="last"), Embed(STATE + " More.", pooling="mean"),
        Loglikelihood(STATE, " and then"), PromptLogprobs(STATE, top=2),
        Generate(STATE, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)),
        Generate("Once", SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)),
        Generate("Once", SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)),
    ]  # fmt: skip
    apart = [make_engine().run(task) for task in tasks]
    together = engine.run_many(tasks)
    assert [a.probabilities for a in together[0]] == [pytest.approx(a.probabilities, abs=1e-4) for a in apart[0]]
    for one, other in zip(together[1:3], apart[1:3]):
        assert np.asarray(one) == pytest.approx(np.asarray(other), abs=1e-4)
    assert together[3].total == pytest.approx(apart[3].total, abs=1e-4)
    assert [t.logprob for t in together[4][1:]] == pytest.approx([t.logprob for t in apart[4][1:]], abs=1e-4)
    assert [r.token_ids for r in together[5:]] == [r.token_ids for r in apart[5:]]
    stats = engine.stats()
    assert stats["requests"] == {"oneshot": 6, "decode": 2}
    assert (stats["decode_state_objects"], stats["streaming_objects"]) == (2, 0), "a fixed output is not streamed"
    weights = sum(p.numel() for p in Oracle(engine.model_path).model.parameters()) * 4
    assert 0.99 * weights < engine._core.limits.weight_bytes <= weights


@pytest.mark.feature("A10")
@pytest.mark.fault(20)
def test_a_request_is_prepared_once_and_owned_by_the_engine(make_engine: Make) -> None:
    engine = make_engine(kv_blocks=8, max_length=96, max_running=4)
    prompts = [f"{number} boats lay at the quay and nobody" for number in range(6)]
    calls = engine.stats()["tokenizer_calls"]
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    results = engine.run_many([Generate(prompt, params) for prompt in prompts])
    assert engine.stats()["preemptions"] > 0, "rows are preempted and planned again"
    assert engine.stats()["tokenizer_calls"] == calls + len(prompts)
    assert all(len(result.token_ids) == 30 for result in results)
    ids = engine.explain(Generate(STATE)).token_ids.tolist()
    labels = ["harbour", "city"]
    ready = engine._preparer.prepare(Decide(ids, [Choice("Where?", labels)]))
    before = ready.prepared.tree.token_ids.tolist()
    ids[:] = [1] * len(ids)
    labels.clear()
    assert ready.prepared.tree.token_ids.tolist() == before
