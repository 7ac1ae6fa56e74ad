"""Formats whose head reads the options of a question: recorded answers of their own programs, refusals by name."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prelude import Choice, Decide, Engine, EngineConfig, Noul, Score
from prelude.errors import InvalidRequest, ModelError, PromptTooLong, UnsupportedModel
from prelude.systemone import SystemOne
from tests.encoders import write_encoder
from tests.option_models import (
    BERT_SPECIALS,
    formula_of,
    save_tokenizer,
    write_bev,
    write_gliner,
    write_json,
    write_opendecider,
    write_pointer,
    write_random,
)
from tests.threads import use_threads

EXACT = EngineConfig(deterministic=True)
QUESTIONS = [
    Choice("Which team?", {"billing": "invoices", "technical": None, "sales": "plans"}),
    Score("How urgent?", ["low", "medium", "high"]),
    Noul("The writer is angry."),
    Choice("Pick one", ["a", "b"]),
]
STATE = "I was billed twice. Please refund me today!"


def recorded_of(shared: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "decision" / f"{name}.json").read_text(encoding="utf-8"))
    return found


# ------------------------------------------------------------------ bev-decider
@pytest.fixture(scope="module")
def bev(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, dict[str, Any]]]:
    recorded = recorded_of(shared, "bev_tiny")
    path = write_bev(tmp_path_factory.mktemp("bev"), recorded, formula_of(shared / "decision"))
    with Engine.from_pretrained(path, config=EXACT) as engine:
        yield engine, recorded


def check_answers(body: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    for name, theirs in wanted.items():
        ours = body["answers"][name]
        for key in ("noul", "score"):
            assert (key in ours) == (key in theirs)
            assert ours.get(key, 0.0) == pytest.approx(theirs.get(key, 0.0), abs=tolerance)
        for label, share in theirs.get("probabilities", {}).items():
            assert ours["probabilities"][label] == pytest.approx(share, abs=tolerance)


def test_bev_answers_are_those_of_its_own_program(bev: tuple[Engine, dict[str, Any]]) -> None:
    engine, recorded = bev
    decide = SystemOne(engine, truncation="head")
    request = {"state": recorded["state"], "questions": recorded["questions"]}
    check_answers(decide.answer(request), recorded["answers"], 2e-5)
    for name, question in recorded["questions"].items():
        alone = decide.answer({"state": recorded["state"], "questions": {name: question}})
        check_answers(alone, {name: recorded["answers"][name]}, 2e-5)


def test_bev_prompts_are_those_of_its_own_program(bev: tuple[Engine, dict[str, Any]]) -> None:
    engine, recorded = bev
    for name, row in recorded["rows"].items():
        question = recorded["questions"][name]
        criteria = question.get("criteria")
        asked: Any = {
            "choice": lambda text, said: Choice(text, said),
            "noul": lambda text, said: Noul(text, said),
            "score": lambda text, said: Score(text, said),
        }[question["type"]](question["instructions"], criteria)
        shown = engine.explain(Decide(recorded["state"], [asked], truncation="head"))
        assert shown.token_ids.tolist() == row["ids"]
        assert shown.rows.tolist() == [*row["read"], row["answer_row"]]


def test_bev_options_in_another_order_have_the_same_probabilities(bev: tuple[Engine, dict[str, Any]]) -> None:
    engine, recorded = bev
    asked = recorded["questions"]["intent"]
    turned = dict(reversed(asked["criteria"].items()))
    body = SystemOne(engine, truncation="head").answer(
        {"state": recorded["state"], "questions": {"intent": {**asked, "criteria": turned}}}
    )
    check_answers(body, recorded["answers_reversed_options"], 2e-5)


def test_bev_reads_so_many_tokens_of_a_state_and_of_an_option(bev: tuple[Engine, dict[str, Any]]) -> None:
    engine, recorded = bev
    for key, ask in (
        ("max_state_tokens", lambda count: Decide("s" * count, [QUESTIONS[3]])),
        ("max_choice_tokens", lambda count: Decide("st", [Choice("q", ["b", "a" * count])])),
    ):
        most = recorded["config"][key]
        whole, longer = engine.explain(ask(most)), ask(most + 1)
        with pytest.raises(PromptTooLong):
            engine.explain(longer)
        cut = engine.explain(replace(longer, truncation="head"))
        assert (whole.truncated_tokens, cut.truncated_tokens) == (0, 1) and cut.text == whole.text


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = use_threads(request.param)
    yield request.param
    use_threads(before)


def test_a_head_of_options_has_the_same_bits_with_any_thread_count(
    bev: tuple[Engine, dict[str, Any]], threads: int
) -> None:
    found = [answer.logprobs for answer in bev[0].decide(STATE, QUESTIONS)]
    use_threads(3 - threads)
    assert [answer.logprobs for answer in bev[0].decide(STATE, QUESTIONS)] == found


@pytest.mark.usefixtures("threads")
def test_a_join_has_the_same_bits_in_any_company(bev: tuple[Engine, dict[str, Any]]) -> None:
    """Requests with one prompt share it in a step; the answer of one must not see the options of another."""
    engine, _ = bev
    tasks = [Decide(STATE, [QUESTIONS[n % 4]]) for n in range(4)]
    tasks += [Decide(STATE, [Choice("Which team?", [f"x{n}", f"y{n}", "z"])]) for n in range(8)]
    tasks += [Decide(STATE, QUESTIONS), Decide(STATE, QUESTIONS[::-1])]
    for task, found in zip(tasks, engine.run_many(tasks)):
        alone = [engine.decide(task.state, [question])[0] for question in task.questions]
        assert [one.logprobs for one in found] == [one.logprobs for one in alone]


# ------------------------------------------------------------------ GLiNER2
def test_gliner_rows_and_logits_are_those_of_its_own_program(shared: Path, tmp_path: Path) -> None:
    recorded = recorded_of(shared, "gliner_tiny")
    spec = importlib.util.spec_from_file_location("reference", shared / "decision" / "reference.py")
    assert spec is not None and spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    tensor = formula_of(shared / "decision")
    gains = recorded["gains"]

    def weight(name: str) -> np.ndarray:
        gain = next((gain for part, gain in gains if part in name), 1.0)
        found: np.ndarray = tensor(name, recorded["tensors"][name], gain).astype(np.float64)
        return found

    intent, urgent = recorded["tasks"]["intent"]["labels"], recorded["tasks"]["urgent"]
    described = {label: note or None for label, note in intent.items()}
    with Engine.from_pretrained(write_gliner(tmp_path, recorded, tensor), config=EXACT) as engine:
        rows = [engine.explain(Decide(recorded["text"], [Choice("urgent", urgent)]))]
        rows.append(engine.explain(Decide(recorded["text"], [Choice("intent", described)])))
        found = engine.decide(recorded["text"], [Choice("urgent", urgent), Choice("intent", described)])
    theirs, divider, mark = recorded["ids"], recorded["added"]["[SEP_STRUCT]"], recorded["added"]["[SEP_TEXT]"]
    assert rows[0].token_ids.tolist() == theirs[theirs.index(divider) + 1 :], (
        "the second question of theirs, and the text"
    )
    first = rows[1].token_ids.tolist()
    assert first[first.index(mark) :] == theirs[theirs.index(mark) :]
    without_other = theirs[: theirs.index(divider)]
    note = recorded["added"]["[DESCRIPTION]"]
    assert first[: first.index(mark)] == _without_last_note(without_other, note, recorded["added"]["[L]"])
    for answer, row in zip(found, rows):
        logits = reference.gliner(
            weight, recorded["encoder_config"], row.token_ids.tolist(), recorded["added"]["[L]"]
        )
        shares = np.exp(logits - logits.max())
        assert list(answer.probabilities.values()) == pytest.approx(shares / shares.sum(), abs=2e-5)


def test_gliner_words_keep_their_marks_and_its_questions_have_labels(shared: Path, tmp_path: Path) -> None:
    recorded = recorded_of(shared, "gliner_tiny")
    file = write_gliner(tmp_path, recorded, formula_of(shared / "decision")) / "tokenizer.json"
    spaced = file.read_text(encoding="utf-8").replace('"add_prefix_space": false', '"add_prefix_space": true')
    file.write_text(spaced, encoding="utf-8")  # a word is seen to begin
    text = "\u0928\u092e\u0938\u094d\u0924\u0947, me @ x - aB_c BOB@Example.ORG HTTPS://A.B/?c !"
    words = text.lower().replace(",", " ,").split()
    with Engine.from_pretrained(tmp_path, config=EXACT) as engine:
        found = engine.explain(Decide(text, [Choice("a", ["b", "c"])])).token_ids.tolist()
        split = [id for word in words for id in engine.tokenizer.encode_array(word, False).tolist()]
        for question in (Noul("It is."), Score("How?", ["a", "b"])):
            with pytest.raises(InvalidRequest, match="was not trained on a"):
                engine.decide("x", [question])
        asked = [Decide(f"a{end}", QUESTIONS[3:]) for end in (".", "!", "?", ";", "")]
        ends = [engine.explain(one).token_ids.tolist() for one in asked]
        assert [len(ids) - len(ends[0]) for ids in ends] == [0, 0, 0, 2, 0] and ends[4] == ends[0]  # " ."
    assert found[found.index(recorded["added"]["[SEP_TEXT]"]) + 1 :] == split


def _without_last_note(ids: list[int], note: int, label: int) -> list[int]:
    """Their first question describes a third label by "", which is no description here."""
    last = len(ids) - 1 - ids[::-1].index(note)
    return [*ids[: last - 1], *ids[ids.index(label) - 1 :]]


# ------------------------------------------------------------------ marker heads of other makers
def states_of(path: Path, ids: np.ndarray) -> torch.Tensor:
    import transformers

    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor(ids.astype(np.int64))[None]).last_hidden_state[0]
    return found


def test_opendecider_is_its_head_on_transformers_states(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = write_opendecider(tmp_path)
    layers = torch.nn.Sequential(
        torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 1)
    )
    layers.load_state_dict(load_file(path / "head.safetensors"))
    with Engine.from_pretrained(path, config=EXACT) as engine:
        together = engine.decide({"text": STATE}, QUESTIONS)
        for question, answer in zip(QUESTIONS, together):
            shown = engine.explain(Decide({"text": STATE}, [question]))
            with torch.no_grad():
                logits = layers(states_of(path, shown.token_ids)[shown.rows])[:, 0]
            assert list(answer.probabilities.values()) == pytest.approx(logits.softmax(0).tolist(), abs=2e-5)
            assert engine.decide({"text": STATE}, [question])[0].logprobs == answer.logprobs
        texts = [engine.explain(Decide("st", [question])).text for question in QUESTIONS]
    assert texts[0] == (
        "[CLS]question: Which team?[SEP]"
        "[MASK] billing: invoices[MASK] technical[MASK] sales: plans[SEP]input: st[SEP]"
    )
    assert texts[1] == "[CLS]question: How urgent?[SEP][MASK] 0: low[MASK] 1: medium[MASK] 2: high[SEP]input: st[SEP]"
    assert texts[2] == "[CLS]question: The writer is angry.[SEP][MASK] yes: Yes[MASK] no: No[SEP]input: st[SEP]"


@pytest.mark.parametrize("named", [None, ["Unknown", "BertModel"]])
def test_the_network_below_a_head_is_found_by_its_model_type(named: Any, tmp_path: Path) -> None:
    path = write_opendecider(tmp_path)
    [config] = [one for one in path.rglob("config.json") if "architectures" in one.read_text(encoding="utf-8")]
    changed = {**json.loads(config.read_text(encoding="utf-8")), "architectures": named}
    with Engine.from_pretrained(path, config=EXACT) as engine:
        wanted = engine.decide(STATE, QUESTIONS)
    config.write_text(json.dumps(changed), encoding="utf-8")
    with Engine.from_pretrained(path, config=EXACT) as engine:
        assert [one.logprobs for one in engine.decide(STATE, QUESTIONS)] == [one.logprobs for one in wanted]


def test_a_conversation_is_the_array_of_its_turns(tmp_path: Path) -> None:
    """In the form that such a model was trained on; the messages are those of any other model."""
    call = {"id": "1", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "yes"},
    ]
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "tool_call", "content": '{"name": "look", "arguments": {}}'},
        {"role": "tool", "content": "yes", "name": "look"},
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with Engine.from_pretrained(write_opendecider(tmp_path)) as engine:
        texts = [engine.explain(Decide(state, QUESTIONS[3:])).text for state in (messages, json.dumps(turns))]
        assert texts[0] == texts[1]
        for state in ([{"role": "user", "content": [image]}], {"seen": image}, [image]):
            with pytest.raises(InvalidRequest, match="only text is taken"):
                engine.explain(Decide(state, QUESTIONS[3:]))


def test_opendecider_cuts_the_state_alone(tmp_path: Path) -> None:
    with Engine.from_pretrained(write_opendecider(tmp_path)) as engine:
        with pytest.raises(PromptTooLong, match="longer than the model reads"):
            engine.decide("word " * 100, QUESTIONS[3:])
        cut = engine.explain(Decide("word " * 100, QUESTIONS[3:], truncation="head"))
        assert len(cut.token_ids) == 200 and cut.text.startswith(
            "[CLS]question: Pick one[SEP][MASK] a[MASK] b[SEP]in"
        )
        with pytest.raises(PromptTooLong, match="60 options and their question"):
            engine.decide("x", [Choice("q", [f"option {n}" for n in range(60)])], truncation="head")


def julia_of(path: Path) -> Path:
    """The same network as Laya's under Julia's file names."""
    path.mkdir()
    write_random(path)
    (path / "rl_agent_config.json").unlink()
    write_json(path / "julia_config.json", {"format_version": 1, "head_layers": 2, "n_act": 2, "dropout": 0.1})
    write_json(path / "inference-policy.json", {"max_length": 200, "head_length": 120, "strict_encoding": True})
    return path


def test_julia_reads_descriptions_alone(tmp_path: Path) -> None:
    (tmp_path / "laya").mkdir()
    laya = write_random(tmp_path / "laya", {"temperature": None, "temperature_by_options": None})
    julia = julia_of(tmp_path / "julia")
    with Engine.from_pretrained(julia, config=EXACT) as engine, Engine.from_pretrained(laya, config=EXACT) as other:
        texts = [engine.explain(Decide("st", [question])).text for question in QUESTIONS]
        same = Choice("How?", ["a", "b"])
        assert engine.decide(STATE, [same])[0].logprobs == other.decide(STATE, [same])[0].logprobs
        with pytest.raises(InvalidRequest, match=r"questions\[0\].labels: 21 labels; .* trained on 2 to 20"):
            engine.decide("x", [Choice("q", [str(n) for n in range(21)])])
        with pytest.raises(PromptTooLong):
            engine.decide("word " * 60, [same])
    assert texts[0] == "[CLS]choice question: Which team?[SEP][MASK] invoices[MASK] technical[MASK] plans[SEP]st[SEP]"
    assert texts[1] == "[CLS]score question: How urgent?[SEP][MASK] low[MASK] medium[MASK] high[SEP]st[SEP]"
    assert texts[2] == "[CLS]noul question: The writer is angry.[SEP][MASK] false[MASK] true[SEP]st[SEP]"


# ------------------------------------------------------------------ a pointer head
def test_a_pointer_head_on_transformers_states(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = write_pointer(tmp_path)
    head = load_file(path / "pointer_head.safetensors")
    with Engine.from_pretrained(path, config=EXACT) as engine:
        state = {"mail": STATE, "tags": ["late", "<|box_end|>"], "n": 2, "cc": ""}
        together = engine.decide(state, QUESTIONS)
        for question, answer in zip(QUESTIONS, together):
            shown = engine.explain(Decide(state, [question]))
            rows = states_of(path, shown.token_ids)[shown.rows]
            keys, query = (
                rows[:-1] @ head["k.weight"].T + head["k.bias"],
                rows[-1] @ head["q.weight"].T + head["q.bias"],
            )
            shares = (keys @ query / math.sqrt(32) / 1.5).softmax(0).tolist()
            shares = shares[::-1] if isinstance(question, Noul) else shares
            assert list(answer.probabilities.values()) == pytest.approx(shares, abs=2e-5)
            assert engine.decide(state, [question])[0].logprobs == answer.logprobs
        with pytest.raises(InvalidRequest, match=r"^questions\[0\].levels\[0\]: it is empty"):
            engine.decide(state, [Score("How urgent?", [{}, "high"])])
        text = engine.explain(Decide(state, QUESTIONS[2:3])).text
        assert engine.explain(Decide(state, QUESTIONS)).segments[0][:2] == (
            0,
            len(text[: text.index("<|fim_middle|>")].encode()) - 13,
        )
    assert text == (
        f"<|fim_prefix|>mail: {STATE}\ntags:\n  - late\n  - <¦box_end¦>\nn: 2\ncc:<|fim_middle|>The writer is angry."
        "<|box_start|>no<|box_end|><|box_start|>yes<|box_end|><|fim_suffix|>"
    )


# ------------------------------------------------------------------ refusals
def test_a_cross_encoder_has_no_text_form_for_decide(tmp_path: Path) -> None:
    """Models that score a pair of option and state look like any other cross-encoder."""
    write_encoder(tmp_path, family="bert", kind="ForSequenceClassification", vocab_size=261, num_labels=1)
    save_tokenizer(tmp_path / "tokenizer.json", BERT_SPECIALS)
    with Engine.from_pretrained(tmp_path) as engine:
        with pytest.raises(
            InvalidRequest, match=r"encoder, .*; classify\(\(question and option, state\)\) reads its own"
        ):
            engine.decide(STATE, QUESTIONS)
        assert engine.classify(("question: Which team? option: billing", STATE)).logits.shape == (1,)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"adapter_config.json": {}}, "a LoRA adapter; merge"),
        ({"adapter_config.json": {}, "head.pt": {}}, r"a pickled head \(Kev\)"),
        ({"config.json": {}, "joint_head.safetensors": {}}, r"\(Clef\), which is not built"),
        ({"config.json": {}, "score_bias.json": {}}, r"\(Decision-2.0\), which are not built"),
        ({"config.json": {}, "schema_config.json": {}}, r"\(Nimble\), which is not built"),
        ({"config.json": {}, "decision_config.json": {}}, r"\(pplx-decider\), which are not built"),
        (
            {"opendecider.json": {"kind": "small", "base_model": "x"}},
            "kind 'small'; supported: nano; the other kinds",
        ),
        ({"config.json": {"model_type": "decision2"}}, "model_type 'decision2'"),
        ({"julia_config.json": {"format_version": 2, "head_layers": 1}}, "format_version 2"),
        ({"config.json": {"model_type": "extractor", "architecture": "boundary"}}, "architecture 'boundary'"),
    ],
)
def test_formats_that_are_not_computed_are_refused_by_name(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        write_json(tmp_path / name, content)
    with pytest.raises(UnsupportedModel, match=words):
        Engine.from_pretrained(tmp_path)


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head": None}, "head is None"),
        ({"head": {"new_dim": 0, "num_layers": 2, "num_task_types": 3}}, "new_dim is 0"),
        ({"head": {"new_dim": 32, "num_layers": 10**6, "num_task_types": 3}}, "num_layers is 1000000"),
        ({"head": {"new_dim": 32, "num_layers": 2, "num_task_types": 2}}, "num_task_types is 2"),
        ({"head": {"new_dim": 16, "num_layers": 2, "num_task_types": 3}}, "has shape"),
        ({"max_state_tokens": 0}, "max_state_tokens is 0"),
        ({"max_choice_tokens": "x"}, "max_choice_tokens is 'x'"),
        ({"backbone_config": "../x.json"}, "leads out of the model directory"),
        ({"backbone_config": 3}, "backbone_config is 3"),
    ],
)
def test_hostile_configs_of_bev(changes: dict[str, Any], words: str, shared: Path, tmp_path: Path) -> None:
    recorded = recorded_of(shared, "bev_tiny")
    write_bev(tmp_path, recorded, formula_of(shared / "decision"))
    write_json(tmp_path / "config.json", {**recorded["config"], **changes})
    with pytest.raises(ModelError, match=words):
        Engine.from_pretrained(tmp_path)


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    ("write", "changes", "words"),
    [
        (write_opendecider, {"max_len": 3}, "max_len is 3"),
        (write_opendecider, {"kind": 3}, "kind is 3"),
        (write_pointer, {"head_dim": 0}, "head_dim is 0"),
        (write_pointer, {"head_dim": 31}, "has shape"),
        (write_pointer, {"temperature": 0}, "temperature is 0"),
    ],
)
def test_hostile_configs_of_heads(write: Any, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        Engine.from_pretrained(write(tmp_path, **changes))


def test_a_head_that_is_missing_is_named(tmp_path: Path) -> None:
    (write_opendecider(tmp_path) / "head.safetensors").unlink()
    with pytest.raises(ModelError, match=r"head.safetensors: missing"):
        Engine.from_pretrained(tmp_path)
