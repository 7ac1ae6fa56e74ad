"""Masked-language heads: logprobs of every family against transformers, and decisions at the place of a mask."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from prelude import Choice, Decide, DecisionTemplate, Engine, EngineConfig, Loglikelihood, Noul, Score
from prelude.errors import InvalidRequest, PromptTooLong
from prelude.readouts.batch import LogprobRows, OneShotBatch
from tests.encoders import Encoder, write_encoder
from tests.execution.helpers import i32, prompts, random_ids, run

FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "modernbert", "deberta-v2")
_ACT = dict.fromkeys(("hidden_act", "activation", "hidden_activation"), "relu") | {"classifier_activation": "silu"}
VARIANTS = {name: {"family": name, **_ACT} for name in FAMILIES}
VARIANTS |= {"electra-narrow": {"family": "electra", "embedding_size": 20}}
VARIANTS |= {"modernbert-biases": {"family": "modernbert", "classifier_bias": True, "norm_bias": True}}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,:?-0123456789", *LETTERS, *[f"##{c}" for c in LETTERS]]
VOCAB += ["yes", "no", "good", "bad"]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_logprobs_are_those_of_transformers(tmp_path: Path, name: str, deterministic: bool) -> None:
    model = Encoder(write_encoder(tmp_path, kind="ForMaskedLM", **VARIANTS[name]))
    batch = [i32(5 + random_ids(n, n, 200)) for n in (1, 9, 40)]
    s = prompts(*batch)
    theirs = torch.cat([model.run(ids).logits[0].log_softmax(-1) for ids in batch]).numpy()
    rows = np.arange(s.num_tokens)
    targets = np.tile(np.arange(211), len(rows))
    readout = LogprobRows(i32(rows), i32(np.repeat(rows, 211)), i32(targets))
    executor = model.executor(deterministic=deterministic)
    ours = run(executor, OneShotBatch(s, readout)).outputs[0].logprobs.reshape(-1, 211)
    assert np.abs(ours - theirs).max() < 2e-5
    raw = LogprobRows(i32([3]), i32([0, 0]), i32([7, 9]), raw=True)
    logits = run(executor, OneShotBatch(s, raw)).outputs[0].logprobs
    assert logits[0] - logits[1] == pytest.approx(theirs[3, 7] - theirs[3, 9], abs=2e-5)
    assert executor.limits().masked_lm and not executor.limits().lm_head


def with_tokenizer(path: Path) -> Path:
    added = [{"id": at, "content": VOCAB[at], "special": True} for at in range(5)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    pieces = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pieces += [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    specials = {name: {"id": name, "ids": [VOCAB.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    processor = {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": specials}
    found = {
        "version": "1.0",
        "added_tokens": [one | flags for one in added],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": processor,
        "model": {**model, "max_input_chars_per_word": 100, "vocab": {piece: at for at, piece in enumerate(VOCAB)}},
    }
    found["normalizer"]["strip_accents"] = None
    (path / "tokenizer.json").write_text(json.dumps(found), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bert")
    return with_tokenizer(write_encoder(made, family="bert", kind="ForMaskedLM", vocab_size=len(VOCAB)))


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(path, config=EngineConfig(deterministic=True)) as made:
        yield made


TEMPLATE = DecisionTemplate(state="{state}. ", question="{question} it is", label=" {label}.")


def test_decisions_are_logprobs_at_the_mask(path: Path, engine: Engine) -> None:
    """Against transformers on text that has the mask in it, as a user of it would write."""
    oracle = transformers.BertForMaskedLM.from_pretrained(path).eval()
    questions = [Choice("so", ["good", "bad"]), Noul("is that so? "), Score("how", 3)]
    answers = engine.run(Decide("a fine boat", questions, template=TEMPLATE))
    for question, answer, labels in zip(
        ("so", "is that so? ", "how"), answers, (["good", "bad"], ["yes", "no"], ["1", "2", "3"])
    ):
        ids = [
            VOCAB.index("[CLS]"),
            *engine.tokenizer.encode(f"a fine boat. {question} it is", add_special_tokens=False).ids,
        ]
        ids += [VOCAB.index("[MASK]"), VOCAB.index("."), VOCAB.index("[SEP]")]
        with torch.no_grad():
            theirs = oracle(torch.tensor([ids])).logits[0, -3].log_softmax(-1)
        expected = [float(theirs[VOCAB.index(label)]) for label in labels]
        assert list(answer.logprobs.values()) == pytest.approx(expected, abs=2e-5)
        assert answer.mass == pytest.approx(sum(map(math.exp, expected)), abs=1e-5)
        assert sum(answer.probabilities.values()) == pytest.approx(1)
    [alone] = engine.run(Decide("a fine boat", questions[1:2], template=TEMPLATE))
    assert alone.logprobs == answers[1].logprobs, "the same bits alone and in company"
    assert answers[2].expected is not None and 1 <= answers[2].expected <= 3


def test_the_usual_template_and_one_with_letters(engine: Engine) -> None:
    [answer] = engine.run(Decide("a boat", [Choice("which", ["good", "bad"])]))
    assert set(answer.probabilities) == {"good", "bad"}
    letters = DecisionTemplate(
        question="{question}{labels}:",
        undescribed=" {letter}: {label}",
        described=" {letter}: {label}, {description}",
        letters=True,
    )
    [answer] = engine.run(Decide("a boat", [Choice("which", ["long one", "short one"])], template=letters))
    assert set(answer.probabilities) == {"long one", "short one"}


def test_texts_of_callers_hold_no_mask_and_may_be_cut(engine: Engine) -> None:
    question = [Noul("so? ")]
    other = engine.run(Decide("good", question))
    room = engine.max_length - other.stats.prompt_tokens + 1
    with pytest.raises(PromptTooLong, match="tokens"):
        engine.run(Decide("good " * (room + 1), question))
    for count, cut in ((room, 0), (room + 9, 9)):
        stats = engine.run(Decide("good " * count, question, truncation="tail")).stats
        assert (stats.prompt_tokens, stats.truncated_tokens) == (engine.max_length, cut)
    assert engine.run(Decide("[MASK]", question))[0].logprobs != other[0].logprobs


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Decide("a", [Choice("b", ["harbour", "bad"])]), "'harbour' is 7 tokens.*letters=True"),
        (Decide("a", [Choice("b", ["good", "Good"])]), "'good' and 'Good' are the same token"),
        (Decide("a", [Noul("b")], length_norm="token"), "one token at a mask"),
        (Decide("a", [Noul("b")], orders="all"), "as they are listed"),
        (Decide("a", [Noul("b")], template=DecisionTemplate(chat=True)), "no chat template"),
        (Decide("a", []), "it takes 1 or more"),
        (Loglikelihood("a", "b"), "is an encoder"),
    ],
)
def test_tasks_that_a_mask_cannot_answer_are_refused(engine: Engine, task: Decide, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        engine.run(task)


def test_a_checkpoint_without_the_head_is_read_without_it(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((path / name).read_bytes())
    tensors = load_file(path / "model.safetensors")
    tensors.pop("cls.predictions.bias")
    save_file(tensors, tmp_path / "model.safetensors")
    with Engine.from_pretrained(tmp_path) as engine:
        assert len(engine.embed("a boat", pooling="mean")) == 48
        with pytest.raises(InvalidRequest, match="is an encoder"):
            engine.run(Decide("a", [Noul("b")]))
    assert "masked-language head are not all there" in caplog.text
