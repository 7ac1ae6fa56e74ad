"""The settings of a model directory, each in every verb and adapter that reads it, against the library itself.

A row of ``SETTINGS`` is one setting: the kinds of directories that have it, and the files that say it. A cell is a
row with a verb or an adapter. It gives the library's numbers for short texts and for texts that are cut; or, if the
row says so, a warning of ours names the setting.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prelude import Classify, Embed, Engine, Rerank, Reward
from prelude.integrations.sentence_transformers import PairScorer, SentenceEncoder
from tests.integrations.directories import change, write_saved

LONG = " ".join(f"harbour {n} Hello" for n in range(30))
TEXTS = (
    "hello quiet harbour", "HÉLLO Harbour éclair ΣΑΣ", "中文 harbour中文",
    "quiet [MASK] harbour [PAD]hello [x]hello <pad> b", LONG, f"quiet {LONG} 中文",
)  # fmt: skip
RANKED = [("quiet Hello [x]?", text) for text in TEXTS]
PAIRS = [*RANKED, *((LONG, text) for text in (TEXTS[0], LONG[:90], LONG)), (LONG[:90], LONG)]
TURNS = [[{"role": "user", "content": "quiet?"}, {"role": "assistant", "content": text}] for text in TEXTS]
PROMPTS = {"query": "hello: ", "document": "", "other": "Harbour "}


# ------------------------------------------------------------------ verbs and adapters beside the library's calls
def run(engine: Engine, task: Any, given: Any, **options: Any) -> list[Any]:
    if "prompt" in options:
        options["instruction"] = options.pop("prompt")
    return engine.run_many([task(one, truncation=engine.model_info.truncation, **options) for one in given])


def embed(engine: Engine, texts: Any, truncate_dim: Any = None, **options: Any) -> Any:
    options["normalize"] = options.pop("normalize_embeddings", None)
    return run(engine, Embed, texts, dimensions=truncate_dim, **options)


def encoder(engine: Engine, texts: Any, **options: Any) -> Any:
    return SentenceEncoder(engine).encode(texts, **options)


def similarity(engine: Engine, texts: Any, **options: Any) -> Any:
    ours = SentenceEncoder(engine)
    return ours.similarity(ours.encode(texts, **options), ours.encode(TEXTS[0]))


def rerank(engine: Engine, pairs: Any, **options: Any) -> Any:
    return [one.score for one in run(engine, lambda pair, **more: Rerank(*pair, **more), pairs, **options)]


def scorer(engine: Engine, pairs: Any, **options: Any) -> Any:
    return PairScorer(engine).predict(pairs, **options)


def ranked(engine: Engine, pairs: Any, **options: Any) -> Any:
    found = PairScorer(engine).rank(pairs[0][0], [document for _, document in pairs], **options)
    return [one["score"] for one in sorted(found, key=lambda one: one["corpus_id"])]


def classify(engine: Engine, given: Any, **options: Any) -> Any:
    read = "scores" if engine.model_info.score_activation and isinstance(given[0], tuple) else "logits"
    return [getattr(one, read) for one in run(engine, Classify, given, **options)]


def reward(engine: Engine, messages: Any) -> Any:
    return [[one.logit] for one in run(engine, Reward, messages)]


def encoded(library: Any, texts: Any, **options: Any) -> Any:
    return library.encode(list(texts), **options)


def similar(library: Any, texts: Any, **options: Any) -> Any:
    return library.similarity(library.encode(list(texts), **options), library.encode(TEXTS[0])).numpy()


def predicted(library: Any, pairs: Any, **options: Any) -> Any:
    return library.predict(list(pairs), **options)


def logits(library: Any, given: Any, prompt: str | None = None, prompt_name: str | None = None) -> Any:
    """Of texts or conversations, through the library's own preparation."""
    found = []
    for one in given:
        features = library.preprocess([one], prompt=library._resolve_prompt(prompt, prompt_name))
        with torch.no_grad():
            known = {name: features[name] for name in features if name.endswith(("ids", "mask"))}
            found.append(library[0].model(**known).logits[0])
    return np.stack(found)


Call = Callable[..., Any]
PROMPTED: tuple[dict[str, Any], ...] = ({}, {"prompt": "Harbour: "}, {"prompt": ""}, {"prompt_name": "query"})
CUT: tuple[dict[str, Any], ...] = (
    *({"truncate_dim": 16}, {"normalize_embeddings": True}),
    {"truncate_dim": 16, "normalize_embeddings": True, "prompt": "a "},
)
CUTS = ("nothing", "cls", "Normalize", "truncate_dim", "truncate_dim, Normalize")  # where each stands alone too
VERBS: dict[str, list[tuple[Call, Call, Any, tuple[dict[str, Any], ...]]]] = {
    "vectors": [
        (embed, encoded, TEXTS, (*PROMPTED, *CUT)),
        (encoder, encoded, TEXTS, (*PROMPTED, *CUT, {"prompt": "a ", "prompt_name": "other"})),
        (similarity, similar, TEXTS[:2], ({},)),
    ],
    "scores": [
        (rerank, predicted, PAIRS, PROMPTED),
        (scorer, predicted, PAIRS, PROMPTED),
        (ranked, predicted, RANKED, PROMPTED),
    ],
    "labels": [
        (classify, predicted, PAIRS, PROMPTED),
        (classify, logits, TEXTS, PROMPTED),
        (scorer, predicted, PAIRS, (*PROMPTED, {"apply_softmax": True})),
    ],
    "recipe": [(rerank, predicted, RANKED, PROMPTED), (scorer, predicted, RANKED, PROMPTED)],
    "reward": [(reward, logits, TURNS, ({},))],
}
VERBS["roberta"] = VERBS["vectors"][:2]
"""Of each kind of directory: the call of ours, the library's, the texts, and the keywords of both."""


# ------------------------------------------------------------------ the table
def part(name: str, *keys: str, value: Any) -> Callable[[Any], Any]:
    """A change of one member of tokenizer.json or modules.json."""

    def changed(whole: Any) -> Any:
        at = whole[name]
        for key in keys[:-1]:
            at = at[key]
        if keys:
            at[keys[-1]] = value
        else:
            whole[name] = value
        return whole

    return changed


def with_norm(modules: Any) -> Any:
    kind = "sentence_transformers.base.modules.normalize.Normalize"
    return [*modules, {"idx": 2, "name": "2", "path": "2_Normalize", "type": kind}]


@dataclass(frozen=True)
class Row:
    kinds: str
    files: dict[str, Any] = field(default_factory=dict)
    warned: str = ""
    """What the warning names, in each cell of the row."""


def tokenizer_config(kinds: str, warned: str = "", **entries: Any) -> Row:
    return Row(kinds, {"tokenizer_config": entries}, warned)


def settings(kinds: str, warned: str = "", **entries: Any) -> Row:
    return Row(kinds, {"config_sentence_transformers": entries}, warned)


def module(kinds: str, warned: str = "", **entries: Any) -> Row:
    return Row(kinds, {"sentence_bert_config": entries}, warned)


ENCODERS, PAIRED, TOKENIZED = "vectors scores labels", "scores labels recipe", "vectors labels"
ALL = f"{ENCODERS} recipe reward roberta"
LEFT = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Left"}
RIGHT = {**LEFT, "direction": "Right"}
CASED = part("normalizer", "lowercase", value=False)
MASK = {"content": "[MASK]", "lstrip": True, "rstrip": True, "special": True}
MASK |= {"normalized": False, "single_word": False}
SIGMOID, SOFTMAX = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.activation.Softmax"
IDENTITY = "torch.nn.modules.linear.Identity"

SETTINGS: dict[str, Row] = {
    "nothing": Row(ALL),
    # the longest text
    "model_max_length": tokenizer_config(ALL, model_max_length=40),
    "model_max_length of no limit": tokenizer_config(f"{ENCODERS} recipe", model_max_length=int(1e30)),
    "max_len, its old name": tokenizer_config(ENCODERS, max_len=40),
    "max_seq_length": module(ALL, max_seq_length=38),
    "max_seq_length over the other": Row(
        ALL, {"sentence_bert_config": {"max_seq_length": 44}, "tokenizer_config": {"model_max_length": 30}}
    ),
    "max_length of each call": module(ENCODERS, processing_kwargs={"text": {"max_length": 33}}),
    "a config of another name": Row(
        "vectors", {"sentence_bert_config": None, "sentence_roberta_config": {"max_seq_length": 20}}
    ),
    "truncation of tokenizer.json": Row(ENCODERS, {"tokenizer": part("truncation", value=RIGHT)}),
    "settings without modules.json": Row(
        "scores labels",
        {
            "modules": None,
            "sentence_bert_config": {"max_seq_length": 20, "do_lower_case": True},
            "config_sentence_transformers": {"prompts": PROMPTS, "default_prompt_name": "other"},
            "tokenizer_config": {"model_max_length": 30},
        },
    ),
    # the side
    "truncation_side": tokenizer_config(ALL, truncation_side="left", model_max_length=42),
    "truncation_side of tokenizer.json": Row(ALL, {"tokenizer": part("truncation", value=LEFT)}),
    "truncation_side over tokenizer.json": Row(
        ENCODERS, {"tokenizer": part("truncation", value=LEFT), "tokenizer_config": {"truncation_side": "right"}}
    ),
    # prompts
    "prompts": settings(f"{ENCODERS} recipe roberta", prompts=PROMPTS),
    "default_prompt_name": settings(f"{ENCODERS} recipe roberta", prompts=PROMPTS, default_prompt_name="other"),
    "no prompt of the name": settings("vectors", prompts={"other": "Harbour "}, default_prompt_name="other"),
    "a default prompt of every model": settings("vectors", default_prompt_name="query"),
    "a default prompt of null": settings(ENCODERS, prompts={"query": None}, default_prompt_name="query"),
    "default prompt, left": Row(
        ENCODERS,
        {
            "config_sentence_transformers": {"prompts": PROMPTS, "default_prompt_name": "query"},
            "tokenizer_config": {"truncation_side": "left"},
        },
    ),
    "include_prompt": Row(
        "vectors roberta",
        {
            "1_Pooling/config": {"include_prompt": False},
            "config_sentence_transformers": {"prompts": PROMPTS, "default_prompt_name": "query"},
        },
    ),
    "include_prompt, left": Row(
        "vectors", {"1_Pooling/config": {"include_prompt": False}, "tokenizer_config": {"truncation_side": "left"}}
    ),
    # the vector
    "cls": Row("vectors", {"1_Pooling/config": {"pooling_mode": "cls", "include_prompt": False}}),
    "lasttoken": Row("vectors roberta", {"1_Pooling/config": {"pooling_mode": "lasttoken"}}),
    "weightedmean": Row("vectors", {"1_Pooling/config": {"pooling_mode": ["weightedmean", "max"]}}),
    "Normalize": Row("vectors", {"modules": with_norm}),
    "truncate_dim": settings("vectors", truncate_dim=20),
    "truncate_dim, Normalize": Row(
        "vectors", {"modules": with_norm, "config_sentence_transformers": {"truncate_dim": 20}}
    ),
    "similarity_fn_name dot": settings("vectors", similarity_fn_name="dot"),
    "similarity_fn_name euclidean": settings("vectors", similarity_fn_name="euclidean"),
    "similarity_fn_name manhattan": settings("vectors", similarity_fn_name="manhattan"),
    # scores
    "activation_fn Identity": settings(PAIRED, activation_fn=IDENTITY),
    "activation_fn Sigmoid": settings(PAIRED, activation_fn=SIGMOID),
    "activation_fn Softmax": settings("labels", activation_fn=SOFTMAX),
    "activation_fn of config.json": Row(
        "scores labels",
        {
            "config_sentence_transformers": {"activation_fn": None},
            "config": {"sentence_transformers": {"activation_fn": SIGMOID}},
        },
    ),
    "activation_fn of older files": Row(
        "scores labels",
        {
            "config_sentence_transformers": {"activation_fn": None},
            "config": {"sbert_ce_default_activation_function": IDENTITY},
        },
    ),
    "activation_fn of neither": Row("scores", {"config_sentence_transformers": None}),
    "problem_type": Row("scores", {"config_sentence_transformers": None, "config": {"problem_type": "regression"}}),
    # the tokenizer
    "do_lower_case of the module": Row(
        TOKENIZED,
        {
            "sentence_bert_config": {"do_lower_case": True},
            "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast"},
            "tokenizer": CASED,
        },
    ),
    "do_lower_case": tokenizer_config(TOKENIZED, do_lower_case=False),
    "do_lower_case left out": Row(TOKENIZED, {"tokenizer": CASED}),
    "do_lower_case of another class": tokenizer_config(
        TOKENIZED, do_lower_case=False, tokenizer_class="PreTrainedTokenizerFast"
    ),
    "strip_accents": tokenizer_config(TOKENIZED, strip_accents=False),
    "tokenize_chinese_chars": tokenizer_config(TOKENIZED, tokenize_chinese_chars=False),
    "add_prefix_space": tokenizer_config("roberta", add_prefix_space=True),
    "additional_special_tokens": tokenizer_config(TOKENIZED, additional_special_tokens=["[x]", "quiet", "<pad>"]),
    "extra_special_tokens": tokenizer_config(TOKENIZED, extra_special_tokens={"x_token": "[x]", "y_token": "<pad>"}),
    "added_tokens_decoder": tokenizer_config(TOKENIZED, added_tokens_decoder={"4": MASK}),
    "special_tokens_map": Row(TOKENIZED, {"special_tokens_map": {"additional_special_tokens": ["[x]"]}}),
    "model_input_names": tokenizer_config("labels", model_input_names=["input_ids", "attention_mask"]),
    # not followed
    "split_special_tokens": tokenizer_config("vectors", "split_special_tokens", split_special_tokens=True),
    "cls_token": tokenizer_config("vectors", "cls_token", cls_token="[MASK]"),
    "another normalizer": Row(
        "vectors",
        {"tokenizer": part("normalizer", value={"type": "Lowercase"}), "tokenizer_config": {"do_lower_case": False}},
        "do_lower_case",
    ),
    "no tokenizer_config.json": Row("vectors", {"tokenizer_config": None, "tokenizer": CASED}, "do_lower_case"),
    "tokenizer_args": module("vectors", "tokenizer_args", tokenizer_args={"truncation_side": "left"}),
}
CELLS = [(name, kind) for name, row in SETTINGS.items() for kind in row.kinds.split()]


# ------------------------------------------------------------------ the cells
@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda kind: write_saved(tmp_path_factory.mktemp(kind), kind))


def library_of(kind: str, path: Path) -> Any:
    import sentence_transformers

    pairs = kind not in ("vectors", "roberta")
    made = sentence_transformers.CrossEncoder if pairs else sentence_transformers.SentenceTransformer
    return made(str(path), device="cpu", model_kwargs={"dtype": "float32"})


@pytest.mark.parametrize(("setting", "kind"), CELLS)
def test_a_setting_is_followed_as_in_the_library_or_named(
    setting: str, kind: str, written: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = SETTINGS[setting]
    path = shutil.copytree(written(kind), tmp_path / "model")
    for name, content in row.files.items():
        change(path, name, content)
    library = library_of(kind, path)
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        engine = Engine.from_pretrained(path, dtype="float32")
    said = [str(one.message) for one in caught]
    said += [one.getMessage() for one in caplog.records if "prelude" in one.name]
    named = [text for text in said if row.warned and row.warned in text]
    numbers: dict[str, Any] = {}

    def of_library(theirs: Call, texts: Any, options: dict[str, Any]) -> Any:
        if (key := f"{theirs.__name__} {len(texts)} {options}") not in numbers:
            numbers[key] = theirs(library, texts, **options)
        return numbers[key]

    def differs(options: dict[str, Any]) -> bool:
        """Not if another call is the same: "" is no prompt without a default."""
        plain = options.get("prompt") != "" or library.default_prompt_name or setting == "nothing"
        known = options.get("prompt_name") in (None, *library.prompts)
        return bool(plain) and known and (options not in CUT[:2] or setting in CUTS)

    with engine:
        for ours, theirs, texts, calls in VERBS[kind]:
            if named and ours is similarity:
                continue
            worst = max(
                float(np.abs(np.array(ours(engine, texts, **options)) - of_library(theirs, texts, options)).max())
                for options in filter(differs, calls)
            )
            assert bool(named) == bool(row.warned), said
            assert worst > 1e-3 if row.warned else worst < 1e-5, (ours.__name__, worst)


def test_few_cells_are_warned_of() -> None:
    warned = [(name, kind) for name, kind in CELLS if SETTINGS[name].warned]
    assert sum(len(VERBS[kind]) - (kind == "vectors") for _, kind in warned) <= 10
