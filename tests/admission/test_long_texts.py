"""``truncation=`` and texts past the character limit; long documents in a question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prelude import Choice, Engine, EngineConfig, Generate, SamplingParams, YesNo, default_model
from prelude.errors import PromptTooLong, RequestTooLarge

WORDS = " ".join(f"word{at}" for at in range(3000))  # 25,889 characters
LIMIT = 16 * 512


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine.from_pretrained(default_model.path(), config=EngineConfig(max_length=512, kv_bytes=1 << 22)) as made:
        yield made


def ids_of(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.fault(3)
@pytest.mark.parametrize("truncation", ["head", "tail", "middle"])
def test_a_text_past_the_character_limit_is_cut(engine: Engine, truncation: str) -> None:
    """By the characters that the limit leaves at the same side, then by tokens."""
    half = LIMIT // 2
    window = {"head": WORDS[-LIMIT:], "tail": WORDS[:LIMIT], "middle": WORDS[:half] + WORDS[-half:]}[truncation]
    task = Generate(WORDS, SamplingParams(max_tokens=1), truncation=truncation)  # type: ignore[arg-type]
    known = engine.explain(task).token_ids.tolist()
    whole = ids_of(engine, window)
    expected = {"head": whole[-511:], "tail": whole[:511], "middle": whole[:256] + whole[-255:]}[truncation]
    assert known == expected
    done = engine.complete(WORDS, SamplingParams(max_tokens=1), truncation=truncation)
    assert done.stats.truncated_tokens == len(whole) - 511
    with pytest.raises(RequestTooLarge, match="25889 characters; the limit is 8192"):
        engine.complete(WORDS, SamplingParams(max_tokens=1))


@pytest.mark.fault(3)
@pytest.mark.parametrize("of", [list, tuple, np.array])
@pytest.mark.parametrize("count", [512, LIMIT, LIMIT + 500])
@pytest.mark.parametrize("truncation", ["head", "tail", "middle"])
def test_ids_past_the_limits_are_cut_and_counted(engine: Engine, truncation: Any, count: int, of: Any) -> None:
    ids = np.resize(np.arange(300, 400), count).tolist()
    expected = {"head": ids[-511:], "tail": ids[:511], "middle": ids[:256] + ids[-255:]}[truncation]
    task = Generate(of(ids), SamplingParams(max_tokens=1), truncation=truncation)
    assert engine.explain(task).token_ids.tolist() == expected
    assert engine.run(task).stats.truncated_tokens == count - 511
    with pytest.raises(RequestTooLarge if count > LIMIT else PromptTooLong):
        engine.explain(replace(task, truncation="error"))


def test_offsets_are_those_of_the_given_text(engine: Engine) -> None:
    for truncation in ("head", "tail", "middle"):
        for token in engine.prompt_logprobs(WORDS, top=0, truncation=truncation)[2:]:
            assert token.offsets is not None
            piece = engine.tokenizer.decode([token.token_id])
            assert WORDS[slice(*token.offsets)].strip() == piece.strip()


def test_the_state_of_a_decision_is_cut_by_characters_too(engine: Engine) -> None:
    shown = engine.explain(decide(WORDS, YesNo("Is it long?"), "tail"))
    assert len(shown.token_ids) <= 512 and "word0 word1 word2" in shown.text and "Is it long?" in shown.text


# ------------------------------------------------------------------ documents in a question
def decide(state: Any, question: Any, truncation: str) -> Any:
    from prelude import Decide

    return Decide(state, [question], truncation=truncation)  # type: ignore[arg-type]


@pytest.mark.parametrize("truncation", ["head", "tail", "middle"])
@pytest.mark.parametrize("document", [WORDS, WORDS[:6000]], ids=["past the characters", "past the tokens"])
def test_a_document_in_a_question_is_cut_and_the_query_is_whole(
    engine: Engine, truncation: str, document: str
) -> None:
    labels = ["it answers the query", "it does not"]
    task = decide("What is the quay made of?", Choice(document, labels), truncation)
    shown = engine.explain(task)
    assert "What is the quay made of?" in shown.text
    assert "Options: it answers the query, it does not" in shown.text, "labels and template are whole"
    deepest = max(len(ids) for _, ids in shown.labels[0])
    leaf = max(end - start for start, end, _ in shown.segments)
    assert leaf <= 512 and 500 <= len(shown.token_ids) <= 512 + 2 * deepest
    assert ("word0 word1" in shown.text) == (truncation != "head")
    answers = engine.run(task)
    assert answers.stats.truncated_tokens > 500 and abs(sum(answers[0].probabilities.values()) - 1) < 1e-6
    with pytest.raises((PromptTooLong, RequestTooLarge)):
        engine.run(decide("What is the quay made of?", Choice(document, labels), "error"))


def test_the_longer_of_state_and_question_is_cut(engine: Engine) -> None:
    short = engine.explain(decide(WORDS[:6000], YesNo("Is it long?"), "tail"))
    assert "Is it long?" in short.text and len(short.token_ids) == 512
    both = engine.explain(decide(WORDS[:6000], YesNo(WORDS[6000:12000]), "tail"))
    assert len(both.token_ids) == 512
    at = both.text.index("Question:")
    assert abs(len(ids_of(engine, both.text[:at])) - 256) < 8, "each has its half"


def test_the_next_call_finds_the_whole_question(engine: Engine) -> None:
    """Plans are kept by question; one that was cut is not."""
    question = YesNo(WORDS[:900])
    whole = engine.explain(decide("a", question, "error")).token_ids
    cut = engine.explain(decide(WORDS[:6000], question, "tail")).token_ids
    assert len(cut) == 512 and 300 < len(whole) < 512
    assert engine.explain(decide("a", question, "error")).token_ids.tolist() == whole.tolist()


# ------------------------------------------------------------------ messages
def talk(*texts: Any) -> list[dict[str, Any]]:
    roles = ("system", "user", "assistant")
    return [{"role": roles[min(at, 2)], "content": text} for at, text in enumerate(texts)]


def window(texts: list[str], room: int, truncation: str) -> list[str]:
    """``texts`` cut as one text, letter by letter."""
    letters = [(at, letter) for at, text in enumerate(texts) for letter in text]
    half = (room + 1) // 2
    kept = {"head": letters[-room:], "tail": letters[:room], "middle": letters[:half] + letters[half - room :]}
    return ["".join(letter for at, letter in kept[truncation] if at == text) for text in range(len(texts))]


@pytest.mark.parametrize("truncation", ["head", "tail", "middle"])
def test_messages_past_the_character_limit_are_cut_as_one_text(engine: Engine, truncation: str) -> None:
    texts = [WORDS[:1500], WORDS[2000:9500], "", WORDS[9500:11_000]]
    parts = [{"type": "text", "text": texts[1][:3000]}, {"type": "text", "text": texts[1][3000:]}]
    keys = 2 * len("typetexttext")  # the rest of the messages: keys of parts and their type
    expected = talk(*window(texts, LIMIT, truncation))
    with_parts = talk(*window(texts, LIMIT - keys, truncation))
    for given, same in ((talk(*texts), expected), (talk(texts[0], parts, *texts[2:]), with_parts)):
        long, short = (engine.explain(decide(messages, YesNo("Long?"), truncation)) for messages in (given, same))
        assert long.text == short.text and long.token_ids.tolist() == short.token_ids.tolist()
        assert engine.run(decide(given, YesNo("Long?"), truncation))[0].label in ("yes", "no")
    with pytest.raises(RequestTooLarge, match='truncation="head"'):
        engine.explain(decide(talk(*texts), YesNo("Long?"), "error"))
    answered = {"type": "function_call_output", "call_id": "1", "output": WORDS}
    called = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "1"}
    shown = engine.explain(decide([called, answered], YesNo("Long?"), truncation)).text
    assert ("word0 word1" in shown, "word2999" in shown) == (truncation != "head", truncation != "tail")


@pytest.mark.parametrize("truncation", ["head", "tail", "middle"])
def test_a_chat_prompt_past_the_character_limit_is_cut(chatty: Any, truncation: Any) -> None:
    limit, room = chatty.context.max_chars, chatty.context.max_length - 1
    texts = ["You answer.", WORDS[: limit + 500]]
    cut = talk(*window(texts, limit, truncation))
    params = SamplingParams(max_tokens=1)
    given, same = (
        chatty.explain(Generate(messages, params, truncation=truncation)) for messages in (talk(*texts), cut)
    )
    assert given.token_ids.tolist() == same.token_ids.tolist() and len(given.token_ids) == room


def test_fields_beside_the_texts_are_not_cut(engine: Engine) -> None:
    messages = [{"role": "user", "content": WORDS[:100], "tool_calls": ["x" * LIMIT]}]
    with pytest.raises(RequestTooLarge, match="characters"):
        engine.explain(decide(messages, YesNo("Long?"), "tail"))
