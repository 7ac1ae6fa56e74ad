"""Settings of a model directory for scores and vectors, against the libraries that wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prelude import Embed, Engine, EngineConfig, YesNo
from prelude.errors import InvalidRequest, ModelError, PreludeError, PromptTooLong
from tests.checkpoints import make_checkpoint

TEXTS = ["The harbour was quiet.", "Two boats lay at the quay that morning, and nobody spoke.", "x"]
TOKEN_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "pad_token": "<|endoftext|>"}


def edit(path: Path, **changes: Any) -> Path:
    config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return path


# ------------------------------------------------------------------ classification
def classifier(path: Path, labels: int, **config: Any) -> Path:
    make_checkpoint(path, kind="ForSequenceClassification", num_labels=labels)
    edit(path / "config.json", **config)
    edit(path / "tokenizer_config.json", **TOKEN_CONFIG)
    return path


@pytest.mark.parametrize(
    "labels, problem",
    [
        (3, None), (3, "single_label_classification"), (3, "multi_label_classification"), (3, "regression"),
        (1, None), (1, "regression"), (1, "multi_label_classification"),
    ],
)  # fmt: skip
def test_default_scores_are_those_of_the_transformers_pipeline(tmp_path: Path, labels: int, problem: str) -> None:
    from transformers import pipeline

    path = classifier(tmp_path, labels, **({} if problem is None else {"problem_type": problem}))
    reference = pipeline("text-classification", model=str(path), top_k=None)
    with Engine.from_pretrained(path) as engine:
        for text in TEXTS:
            found = engine.classify(text)
            wanted = {row["label"]: row["score"] for row in reference([text])[0]}
            assert {name: float(score) for name, score in zip(found.labels, found.scores)} == pytest.approx(
                wanted, abs=1e-5
            )
            assert found.label == max(wanted, key=lambda label: wanted[label])


@pytest.mark.parametrize("name", ["torch.nn.modules.activation.ELU", "os.system", "Sigmoid"])
def test_an_activation_that_is_not_supported(name: str, tmp_path: Path) -> None:
    with Engine.from_pretrained(classifier(tmp_path, 2, sbert_ce_default_activation_function=name)) as engine:
        with pytest.raises(InvalidRequest, match=rf"activation: config.json names '{name}' for the scores"):
            engine.classify("a")
        assert engine.classify("a", activation="none").scores.shape == (2,)


def test_a_problem_type_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="problem_type is 'ranking', one of regression"):
        Engine.from_pretrained(classifier(tmp_path, 2, problem_type="ranking"))


@pytest.mark.parametrize("pad", [0, None, 7])
def test_a_text_that_ends_in_the_pad_token(pad: int | None, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    path = classifier(tmp_path, 3, pad_token_id=pad)
    reference = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with Engine.from_pretrained(path) as engine, torch.inference_mode():
        for ids in ([5, 6, 8, 0, 0], [5, 0, 9], [0, 0, 0], [5, 7, 7, 7], [7], [5, 6]):
            wanted = reference(torch.tensor([ids])).logits[0].numpy()
            assert engine.classify(ids).logits == pytest.approx(wanted, abs=1e-5), ids
        reference.config.pad_token_id = None
        for ids in ([5, 6, 8, 0, 0], [5, 7, 7, 7]):
            wanted = reference(torch.tensor([ids])).logits[0].numpy()
            assert engine.classify(ids, skip_pad=False).logits == pytest.approx(wanted, abs=1e-5), ids
        with pytest.raises(InvalidRequest, match="skip_pad"):
            engine.classify([5], skip_pad="no")


# ------------------------------------------------------------------ embeddings
def sentence_directory(path: Path, pooling: dict[str, Any], *more: str, **settings: Any) -> Path:
    """``settings`` are the contents of files by name."""
    make_checkpoint(path, kind="Model")
    edit(path / "tokenizer_config.json", **TOKEN_CONFIG)
    (path / "1_Pooling").mkdir()
    edit(path / "1_Pooling" / "config.json", word_embedding_dimension=64, **pooling)
    names = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *((f"{i + 2}_{name}", name) for i, name in enumerate(more)),
    ]
    modules = [
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{name}"}
        for i, (folder, name) in enumerate(names)
    ]
    (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    for name, content in settings.items():
        edit(path / f"{name}.json", **content)
    return path


PROMPTS = {"query": "Instruct: find the passage.\nQuery: ", "document": "", "title": "title:\n"}


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode": "lasttoken"},
        {"pooling_mode_mean_tokens": True},
        {"pooling_mode": "cls"},
        {"pooling_mode": ["max", "weightedmean", "mean_sqrt_len_tokens"]},
        {"pooling_mode_weightedmean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    ],
)
@pytest.mark.parametrize(("include", "default"), [(True, None), (False, "title")])
def test_vectors_are_those_of_sentence_transformers(
    pooling: dict[str, Any], include: bool, default: str | None, tmp_path: Path
) -> None:
    import sentence_transformers as library

    path = sentence_directory(
        tmp_path,
        {**pooling, "include_prompt": include},
        "Normalize",
        config_sentence_transformers={"prompts": PROMPTS, "default_prompt_name": default},
        sentence_bert_config={"max_seq_length": 9},
    )
    reference = library.SentenceTransformer(str(path), device="cpu")
    with Engine.from_pretrained(path) as engine:
        for text in TEXTS:
            for name in (None, "query", "document", "title"):
                wanted = reference.encode(text, prompt_name=name)
                if name == "query":  # longer than the nine tokens by itself
                    with pytest.raises(PromptTooLong):
                        engine.embed(text, prompt_name=name, truncation="tail")
                    continue
                found = engine.embed(text, prompt_name=name, truncation="tail")
                assert found == pytest.approx(wanted, abs=1e-5), (text, name)
            assert engine.embed(text, prompt_name="", truncation="tail") == pytest.approx(
                reference.encode(text, prompt=""), abs=1e-5
            )
        with pytest.raises(PromptTooLong, match="the limit here is 9"):
            engine.embed(TEXTS[1])


def test_several_poolings_stand_one_behind_the_other(tmp_path: Path) -> None:
    path = sentence_directory(tmp_path, {"pooling_mode": "mean"})
    with Engine.from_pretrained(path, config=EngineConfig(deterministic=True)) as engine:
        text, others = TEXTS[0], [Embed(other, pooling=["cls", "max"]) for other in TEXTS]
        parts = [engine.embed(text, pooling=mode, normalize=False) for mode in ("weightedmean", "max", "last")]
        whole = engine.embed(text, pooling=["weightedmean", "max", "last"], normalize=False)
        assert np.array_equal(whole, np.concatenate(parts))
        assert engine.embed(text, pooling=["mean", "cls"], dimensions=100).shape == (100,)
        together = engine.run_many(others)
        for task, found in zip(others, together):
            assert np.array_equal(engine.embed(task.prompt, pooling=task.pooling), found)


@pytest.mark.parametrize("kind, files", [("LogitScore", []), ("Dense", ["1_Pooling"])])
def test_a_module_without_its_file_concerns_its_own_verb(kind: str, files: list[str], tmp_path: Path) -> None:
    """The directory loads; ``embed`` or ``rerank`` says which file is missing."""
    path = sentence_directory(tmp_path, {"pooling_mode": "mean"}, kind)
    with Engine.from_pretrained(path) as engine:
        assert engine.embed("a", pooling="mean").shape == (64,)
        with pytest.raises(InvalidRequest, match=rf"2_{kind}/config.json.* missing|module '{kind}' is not supported"):
            engine.embed("a")
        if kind == "LogitScore":
            with pytest.raises(PreludeError, match=r"2_LogitScore/config.json, which modules.json names"):
                engine.rerank("a", ["b"])


def test_prompts_belong_to_text_and_are_never_cut(tmp_path: Path) -> None:
    path = sentence_directory(
        tmp_path,
        {"pooling_mode": "lasttoken"},
        config_sentence_transformers={"prompts": PROMPTS, "default_prompt_name": "query"},
        sentence_bert_config={"max_seq_length": 24, "do_lower_case": True},
    )
    with Engine.from_pretrained(path) as engine:
        shown = engine.explain(Embed(TEXTS[1] * 9, truncation="head"))
        assert len(shown.token_ids) == 24 and shown.truncated_tokens > 0
        assert shown.text.startswith(PROMPTS["query"].lower()) and shown.text.endswith("nobody spoke.")
        assert engine.explain(Embed([5, 6])).token_ids.tolist() == [5, 6]
        with pytest.raises(InvalidRequest, match=r"'passage' is not a prompt .*; it has 'query', 'document'"):
            engine.embed("a", prompt_name="passage")
        for prompt in ([5, 6], [{"role": "user", "content": "a"}]):
            with pytest.raises(InvalidRequest, match="prompt_name: a named prompt is put before text"):
                engine.embed(prompt, prompt_name="query")


def write_dense(folder: Path, inputs: int, outputs: int, activation: str, bias: bool = True, said: Any = None) -> Any:
    """A module as sentence-transformers saves it; and torch's function of a vector by it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    linear = torch.nn.Linear(inputs, outputs, bias=bias)
    name = {"Identity": "torch.nn.modules.linear.Identity"}.get(
        activation, f"torch.nn.modules.activation.{activation}"
    )
    sizes = {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": name}
    edit(folder / "config.json", **{**sizes, **(said or {})})
    save_file(
        {f"linear.{key}": value.detach() for key, value in linear.named_parameters()}, folder / "model.safetensors"
    )
    return torch.nn.Sequential(linear, getattr(torch.nn, activation)())


@pytest.mark.parametrize("kinds", [("Identity", "Tanh"), ("ReLU", "Identity")])
def test_dense_modules_between_pooling_and_norm(kinds: tuple[str, str], tmp_path: Path) -> None:
    import torch

    path = sentence_directory(tmp_path, {"pooling_mode": "mean"}, "Dense", "Dense", "Normalize")
    first = write_dense(path / "2_Dense", 64, 96, kinds[0])
    second = write_dense(path / "3_Dense", 96, 40, kinds[1], bias=False)
    with Engine.from_pretrained(path) as engine:
        plain = engine.embed("a b c", pooling="last", normalize=False)
        assert plain.shape == (64,), "another pooling than the directory's is the hidden state itself"
        ours = engine.embed("a b c")
        raw = engine.embed("a b c", normalize=False)
        cut = engine.embed("a b c", dimensions=8)
    (path / "modules.json").write_text(
        (path / "modules.json").read_text(encoding="utf-8").replace(".Dense", ".Transformer"), encoding="utf-8"
    )
    with Engine.from_pretrained(path) as engine, torch.no_grad():
        wanted = second(first(torch.from_numpy(engine.embed("a b c", normalize=False).copy()))).numpy()
    assert np.abs(raw - wanted).max() < 1e-6
    assert np.abs(ours - wanted / np.linalg.norm(wanted)).max() < 1e-6
    assert cut.shape == (8,) and np.abs(cut - wanted[:8] / np.linalg.norm(wanted[:8])).max() < 1e-6


@pytest.mark.parametrize(
    ("inputs", "changes", "match"),
    [
        (63, {}, "the first Dense module takes 63 values, the model makes 64"),
        (64, {"in_features": 65}, "config.json implies"),
        (64, {"out_features": 0}, "out_features is 0"),
        (64, {"bias": False}, None),
        (64, {"bias": 3}, "bias is 3"),
    ],
)
def test_dense_modules_that_do_not_fit(
    inputs: int, changes: dict[str, Any], match: str | None, tmp_path: Path
) -> None:
    path = sentence_directory(tmp_path, {"pooling_mode": "cls"}, "Dense")
    write_dense(path / "2_Dense", inputs, 16, "Identity", said=changes)
    if match is None:
        with Engine.from_pretrained(path) as engine:
            assert engine.embed("a").shape == (16,)
        return
    with pytest.raises(ModelError, match=match):
        Engine.from_pretrained(path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"activation_function": "torch.nn.modules.activation.GELU"}, "activation_function 'torch.nn"),
        ({"use_residual": True}, "use_residual True"),
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings'"),
    ],
)
def test_dense_modules_of_other_kinds_concern_embed_alone(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    path = sentence_directory(tmp_path, {"pooling_mode": "cls"}, "Dense")
    write_dense(path / "2_Dense", 64, 16, "Tanh", said=changes)
    with Engine.from_pretrained(path) as engine:
        with pytest.raises(InvalidRequest, match=match):
            engine.embed("a")
        assert engine.embed("a", pooling="cls").shape == (64,)


@pytest.mark.parametrize("module", ["CNN", "WordWeights"])
def test_a_module_that_is_not_supported_concerns_embed_alone(module: str, tmp_path: Path) -> None:
    path = sentence_directory(tmp_path, {"pooling_mode": "cls"}, module)
    make_checkpoint(path)  # with its language-model head
    with Engine.from_pretrained(path) as engine:
        assert engine.decide("a", [YesNo("b?")])[0].label in ("yes", "no")
        assert engine.complete("a").token_ids
        with pytest.raises(InvalidRequest, match=f"pooling: .*module '{module}' is not supported"):
            engine.embed("a")
        assert engine.embed("a", pooling="last").shape == (64,)
