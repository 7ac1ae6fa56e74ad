"""Keywords of the adapters, two at once where two may meet: followed, or refused by name."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from prelude import AsyncEngine, Engine, EngineConfig
from prelude.api.engine import Engines
from prelude.errors import ConfigError, InvalidRequest
from prelude.integrations.sentence_transformers import PairScorer, SentenceEncoder
from prelude.systemone import SystemOne
from prelude.systemone.adapter import system_one
from tests.engine.test_encoders import write, write_pooling
from tests.integrations.test_sentence_transformers import with_settings

TEXTS = ["w1 w2 w3", "w4"]
NOUL = {"type": "noul", "instructions": "Is it?"}


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = with_settings(write(tmp_path_factory.mktemp("keywords"), "Model"))
    write_pooling(path, normalize=False)
    prompts = {"prompts": {"query": "w7 ", "passage": "w8 w9 "}, "default_prompt_name": None}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts), encoding="utf-8")
    with Engine.from_pretrained(path) as made:
        yield made


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = with_settings(write(tmp_path_factory.mktemp("pair"), "ForSequenceClassification", num_labels=1))
    with Engine.from_pretrained(path) as made:
        yield made


# ------------------------------------------------------------------ sentence-transformers
@pytest.mark.parametrize(
    ("keywords", "same"),
    [
        ({}, {}), ({"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"prompt_name": "query", "prompt": "w9 "}, {"instruction": "w9 "}),
        ({"prompt_name": "third", "prompt": ""}, {"instruction": ""}),
        ({"normalize_embeddings": True, "truncate_dim": 8}, {"normalize": True, "dimensions": 8}),
        ({"normalize_embeddings": False}, {}),
        ({"prompt": "w9 ", "truncate_dim": 16}, {"instruction": "w9 ", "dimensions": 16}),
        ({"batch_size": 1, "device": "cuda", "show_progress_bar": False}, {}),
        ({"convert_to_numpy": True, "convert_to_tensor": False, "precision": "float32"}, {}),
    ],
)  # fmt: skip
def test_two_keywords_of_encode(body: Engine, keywords: dict[str, Any], same: dict[str, Any]) -> None:
    for ours in (SentenceEncoder(body), SentenceEncoder(AsyncEngine(body))):
        found = ours.encode(TEXTS, **keywords)
        assert found.dtype == np.float32 and np.allclose(
            found, [body.embed(text, **{"normalize": False, **same}) for text in TEXTS], atol=1e-6
        )
        assert np.allclose(ours.encode(TEXTS[0], **keywords), found[0], atol=1e-6)


@pytest.mark.parametrize("asked", [True, False, None])
def test_a_bar_is_shown_where_it_is_asked_for(
    body: Engine, pair: Engine, monkeypatch: pytest.MonkeyPatch, asked: bool | None
) -> None:
    run, told = Engine.run_many, []

    def noted(engine: Engine, tasks: Any, *, progress: bool) -> Any:
        told.append(progress)
        return run(engine, tasks)

    monkeypatch.setattr(Engine, "run_many", noted)
    SentenceEncoder(body).encode(TEXTS, show_progress_bar=asked)
    PairScorer(pair).predict([("w1", "w2")], show_progress_bar=asked)
    PairScorer(pair).rank("w1", ["w2"], show_progress_bar=asked)
    assert told == [bool(asked)] * 3


def test_settings_of_an_encoder_and_of_a_call(body: Engine) -> None:
    short = SentenceEncoder(body, truncate_dim=8, pooling="cls")
    assert np.allclose(
        short.encode("w1 w2"), body.embed("w1 w2", dimensions=8, pooling="cls", normalize=False), atol=1e-6
    )
    assert short.encode("w1", truncate_dim=4).shape == (4,) and short.encode([]).shape == (0, 8)
    assert short.encode([], truncate_dim=4).shape == (0, 4) and short.encode(["w1"]).shape == (1, 8)
    assert short.similarity(short.encode("w1"), short.encode(TEXTS)).shape == (1, 2)
    cut = SentenceEncoder(body).encode(" ".join(["w5 w6"] * 200))
    assert np.allclose(cut, body.embed(" ".join(["w5 w6"] * 200), truncation="tail", normalize=False), atol=1e-6)


@pytest.mark.parametrize(
    ("keyword", "given", "only"),
    [
        ("output_value", "token_embeddings", "'sentence_embedding'"), ("precision", "int8", "'float32'"),
        ("convert_to_tensor", True, "False"), ("convert_to_numpy", False, "True"),
    ],
)  # fmt: skip
def test_a_keyword_that_is_not_offered_is_named(
    body: Engine, pair: Engine, keyword: str, given: Any, only: str
) -> None:
    calls: list[Any] = [lambda: SentenceEncoder(body).encode(TEXTS, **{keyword: given})]
    if keyword.startswith("convert"):
        calls.append(lambda: PairScorer(pair).predict([TEXTS], **{keyword: given}))
    for call in calls:
        with pytest.raises(InvalidRequest, match=f"is not offered; it takes {only}") as caught:
            call()
        assert caught.value.field == keyword


def test_two_keywords_of_predict_and_rank(pair: Engine) -> None:
    ours, query, documents = PairScorer(pair), "w1 w2", ["w5 w6", "w9 w10 w11", "w1", "w1"]
    rows = [(query, document) for document in documents]
    raw = ours.predict(rows, activation_fn=lambda x: x)
    assert np.allclose(ours.predict(rows), 1 / (1 + np.exp(-raw)), atol=1e-5)
    assert np.allclose(ours.predict(rows, activation_fn=lambda x: 2 * x, apply_softmax=True), 2 * raw, atol=1e-5)
    assert np.allclose(PairScorer(pair, activation="none").predict(rows), raw, atol=1e-5)
    first = ours.predict(rows, prompt="w7 ")
    assert np.allclose(ours.predict(rows, prompt="w7 ", prompt_name="third"), first) and not np.allclose(
        first, ours.predict(rows)
    )
    with pytest.raises(InvalidRequest, match="prompt_name: 'third'"):
        ours.predict(rows, prompt_name="third")
    assert ours.num_labels == 1 and np.ndim(ours.predict(rows[0])) == 0 and ours.predict([rows[0]]).shape == (1,)
    assert np.allclose(ours.predict(rows[:2]), ours.predict(rows)[:2]), "two pairs are no pair"
    wrong: Any
    for wrong, field in ((["w1"] * 3, "inputs[0]"), ([rows[0], ["w1"] * 3], "inputs[1]"), ("w1", "inputs")):
        with pytest.raises(InvalidRequest) as caught:
            ours.predict(wrong)
        assert caught.value.field == field
    ranked = ours.rank(query, documents, prompt="w7 ", activation_fn=lambda x: -x)
    scores = ours.predict(rows, prompt="w7 ", activation_fn=lambda x: -x)
    assert [item["corpus_id"] for item in ranked] == np.argsort(-scores, kind="stable").tolist(), (
        "equal ones in order"
    )
    assert set(ranked[0]) == {"corpus_id", "score"}
    best = ours.rank(query, documents, top_k=1, return_documents=True)
    assert len(best) == 1 and best[0]["text"] == documents[best[0]["corpus_id"]]
    assert ours.rank(query, documents, top_k=0) == []


# ------------------------------------------------------------------ engines, transports, langchain
def test_one_engine_of_either_kind(engine: Engine) -> None:
    for given in (engine, AsyncEngine(engine)):
        both = Engines(given)
        assert both.sync is engine and isinstance(both.awaited, AsyncEngine)
    one = SystemOne(engine)
    assert system_one(one) is one and system_one(engine, name="n").name == "n"
    with pytest.raises(ConfigError, match=r"^name, mass: options of a SystemOne"):
        system_one(one, name="n", mass=False)
    for client in (system_one, SentenceEncoder):
        with pytest.raises(ConfigError, match="not an Engine"):
            client("engine")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200), ("GET", "/any/models/", 200), ("POST", "/v1/models", 404),
        ("GET", "/v1/decisions", 404), ("PUT", "/v1/systemone", 404), ("POST", "/v1/systemones", 404),
        ("POST", "/v1/systemone", 200), ("POST", "/v1/systemone/", 200), ("POST", "/v1/decisions", 200),
    ],
)  # fmt: skip
def test_routes_of_the_transports(engine: Engine, method: str, path: str, status: int) -> None:
    httpx2 = pytest.importorskip("httpx2")
    from prelude.integrations.transports import AsyncTransport, Transport

    openai = {"input": "a", "questions": [{"type": "predicate", "instructions": "Is it?"}]}
    body = openai if "decisions" in path else {"state": "a", "questions": {"q": NOUL}}
    client = httpx2.Client(transport=Transport(engine), base_url="http://prelude.invalid")
    reply = client.request(method, path, json=body)

    async def awaited() -> Any:
        async with httpx2.AsyncClient(transport=AsyncTransport(engine), base_url="http://prelude.invalid") as other:
            return await other.request(method, path, json=body)

    for found in (reply, asyncio.run(awaited())):
        assert found.status_code == status and found.headers["content-type"] == "application/json"
        if status == 404:
            assert found.json()["detail"] == {
                "error_type": "not_found_error",
                "message": f"{method} {path}: no such route",
            }


def test_keywords_of_langchain(pair: Engine, body: Engine) -> None:
    pytest.importorskip("langchain_core", minversion="1.8")
    documents_of = importlib.import_module("langchain_core.documents")
    from prelude.integrations.langchain import PreludeEmbeddings, PreludeReranker

    documents = [documents_of.Document(page_content=f"w{at}", metadata={"at": at}) for at in range(1, 6)]
    texts = [one.page_content for one in documents]
    for top, count in (({}, 3), ({"top_n": None}, 5), ({"top_n": 1}, 1)):
        options = {"instruction": "w7 ", "activation": "none"}
        reranker = PreludeReranker(engine=pair, options=options, **top)
        found = reranker.compress_documents(documents, "w1")
        awaited = asyncio.run(reranker.acompress_documents(documents, "w1"))
        want = pair.rerank("w1", texts, top_n=count, **options)
        for given in (found, awaited):
            assert [one.page_content for one in given] == [texts[item.index] for item in want]
            assert [one.metadata["relevance_score"] for one in given] == pytest.approx([item.score for item in want])
            assert [one.metadata["at"] for one in given] == [item.index + 1 for item in want]
    assert "relevance_score" not in documents[0].metadata, "copies"
    sides = PreludeEmbeddings(
        body, query={"prompt_name": "query"}, documents={"prompt_name": "passage", "dimensions": 4}, dimensions=8
    )
    asked = body.embed("w1", prompt_name="query", dimensions=8).tolist()
    kept = body.embed("w1", prompt_name="passage", dimensions=4).tolist()
    assert sides.embed_query("w1") == pytest.approx(asked, abs=1e-6)
    assert sides.embed_documents(["w1"])[0] == pytest.approx(kept, abs=1e-6)
    assert type(sides.embed_documents(["w1"])[0]) is type(sides.embed_query("w1")) is list
    assert asyncio.run(sides.aembed_query("w1")) == pytest.approx(asked, abs=1e-6)
    assert asyncio.run(sides.aembed_documents(["w1"]))[0] == pytest.approx(kept, abs=1e-6)


# ------------------------------------------------------------------ lm-eval
def test_bounds_and_defaults_of_lm_eval() -> None:
    pytest.importorskip("lm_eval")
    from types import SimpleNamespace

    from prelude.integrations.lm_eval import PreludeLM

    with Engine.from_pretrained(config=EngineConfig(max_length=64)) as engine:
        lm = PreludeLM(engine=engine, max_length=32)
        assert (lm.max_length, PreludeLM(engine=engine).max_length) == (32, 64)
        assert (PreludeLM(engine=engine, max_length=100).max_length, lm.max_gen_toks) == (64, 256)

        def generated(**kwargs: Any) -> str:
            request = SimpleNamespace(args=("The library", {"until": ["\n"], **kwargs}))
            found: str = lm.generate_until([request], disable_tqdm=True)[0]
            return found

        greedy = generated(max_gen_toks=4)
        assert generated(max_gen_toks=4, do_sample=False) == greedy == generated(max_gen_toks=4, temperature=0.0)
        assert generated(max_gen_toks=4, top_k=1, temperature=1.0) == greedy
        assert isinstance(generated(max_gen_toks=31), str)
        texts = ["a b c d " * count for count in (60, 61)]
        ends = [lm.tokenizer.decode(lm.tok_encode(text)[-28:]) for text in texts]
        asked = [SimpleNamespace(args=(text, {"until": ["\n"], "max_gen_toks": 4})) for text in (*texts, *ends)]
        found = lm.generate_until(asked, disable_tqdm=True)
        assert found[:2] == found[2:], "of a long context the end is read"
        for kwargs, field in (
            ({"max_gen_toks": 32}, "gen_kwargs.max_gen_toks"),
            ({"max_gen_toks": 0}, "gen_kwargs.max_gen_toks"),
            ({"max_gen_toks": 4, "num_beams": 2}, "gen_kwargs"),
        ):
            with pytest.raises(InvalidRequest) as caught:
                generated(**kwargs)
            assert caught.value.field == field
        with pytest.raises(InvalidRequest, match="33 tokens of continuation; the limit is 32"):
            lm._loglikelihood_tokens([(None, [5], [5] * 33)], disable_tqdm=True)
        [(whole, _)] = lm._loglikelihood_tokens([(None, [5] * 40, [5] * 32)], disable_tqdm=True)
        [(last, _)] = lm._loglikelihood_tokens([(None, [5], [5] * 32)], disable_tqdm=True)
        assert whole == pytest.approx(last), "of the context one token is left"
