"""Loglikelihood, PromptLogprobs, Embed and Classify: the rows that are read, and the results that are made of their
numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from prelude.admission.pooled import activate, unit
from prelude.admission.preparer import Preparer
from prelude.errors import InvalidRequest, PromptTooLong
from prelude.readouts.batch import (
    HeadOutput,
    HeadRows,
    LogprobOutput,
    LogprobRows,
    OptionOutput,
    OptionRows,
    PooledOutput,
    PooledRows,
    SampleOutput,
)
from prelude.scheduling.request import Request
from prelude.tasks import Classify, Embed, Loglikelihood, PromptLogprobs
from prelude.values.model_settings import EmbeddingSettings
from tests.admission import toys
from tests.scheduling.cores import Collect

TEXT = "The quick brown fox jumps over the lazy dog."


BAD = np.array([0.0, np.inf, 0.0], np.float32)
ROWS = np.arange(3, dtype=np.int32)


@pytest.mark.parametrize(
    ("readout", "output"),
    [
        (HeadRows(ROWS), HeadOutput(BAD[:, None])),
        (PooledRows(ROWS, np.arange(4, dtype=np.int32)), PooledOutput(np.stack([BAD, ROWS], axis=1))),
        (OptionRows(ROWS, np.array([0, 3], np.int32), ROWS[:1]), OptionOutput(BAD)),
        (LogprobRows(ROWS, np.roll(ROWS, -1), ROWS), LogprobOutput(np.array([np.nan, -1.0, -1.0]), None, None, None)),
    ],
)
def test_the_row_of_a_number_that_is_not_finite_is_found_whatever_the_readout(readout: Any, output: Any) -> None:
    assert readout.not_finite(output).tolist() == [1]
    assert readout.not_finite(readout.blank()).tolist() == []


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


ENDS = np.array([0, 2, 3], np.int32)  # of two items
RANKED = LogprobRows(ROWS, ROWS[:2], ROWS[:2], top=4, ranks=True)
FULL: dict[str, Any] = {"logprobs": zeros(2), "ranks": zeros(2), "top_ids": zeros(3, 4), "top_logprobs": zeros(3, 4)}
LESS = [{"logprobs": zeros(3)}, {"ranks": None}, {"ranks": zeros(3)}, {"top_ids": None}, {"top_logprobs": None}]
LESS += [{"top_ids": zeros(2, 4)}, {"top_logprobs": zeros(2, 4)}]


@pytest.mark.parametrize(
    ("readout", "output", "wrong"),
    [
        (HeadRows(ROWS), HeadOutput(zeros(3, 2)), [HeadOutput(zeros(2, 2)), HeadOutput(zeros(3))]),
        (HeadRows(ROWS, ENDS), HeadOutput(zeros(2, 1)), [HeadOutput(zeros(3, 1)), HeadOutput(zeros(2))]),
        (PooledRows(ROWS, ENDS), PooledOutput(zeros(2, 8)), [PooledOutput(zeros(3, 8)), PooledOutput(zeros(2))]),
        (OptionRows(ROWS, ENDS, ROWS[:2]), OptionOutput(zeros(3)),
         [OptionOutput(zeros(2)), OptionOutput(zeros(3, 1))]),
        (LogprobRows(ROWS, ROWS[:2], ROWS[:2]), LogprobOutput(zeros(2), None, None, None), [HeadOutput(zeros(2))]),
        (RANKED, LogprobOutput(**FULL), [LogprobOutput(**{**FULL, **less}) for less in LESS]),
    ],
)  # fmt: skip
def test_an_output_answers_a_readout_by_its_kind_and_shapes(readout: Any, output: Any, wrong: Any) -> None:
    assert readout.answers(output) and (readout is RANKED or readout.answers(readout.blank()))
    for other in (*wrong, None, SampleOutput(ROWS)):
        assert not readout.answers(other)


@pytest.mark.parametrize(
    ("readout", "said"),
    [
        (HeadRows(ROWS), "head at 3 rows"), (HeadRows(ROWS, ENDS), "head at the mean of 3 rows"),
        (OptionRows(ROWS, ENDS, ROWS[:2]), "logits of options at 3 rows"),
        (PooledRows(ROWS[:1], ENDS[:2], "cls"), "hidden states of 1 row, pooling cls"),
        (RANKED, "logprobs of 2 tokens at 3 rows (3 meet the vocabulary), the 4 best tokens of each row"),
        (LogprobRows(ROWS, ROWS, ROWS), "logprobs of 3 tokens at 3 rows (3 meet the vocabulary)"),
        (LogprobRows(ROWS, ROWS, ROWS, raw=True), "logits of 3 tokens at 3 rows (none meets the vocabulary)"),
    ],
)  # fmt: skip
def test_a_readout_in_words(readout: Any, said: str) -> None:
    assert readout.describe() == said
    assert readout.logits_rows == (3 if "(3 meet" in said else 0) == readout.vocab_rows


# ------------------------------------------------------------------ Loglikelihood
def test_a_continuation_is_scored_token_by_token(preparer: Preparer, tokenizer: Any) -> None:
    context, continuation = tokenizer.encode("The quick").ids, tokenizer.encode(" brown fox").ids
    for task in (Loglikelihood("The quick", " brown fox"), Loglikelihood(context, np.array(continuation))):
        result = toys.run(preparer, task)
        assert result.token_ids.tolist() == continuation
        assert result.total == pytest.approx(toys.joint(context, continuation))
        assert len(result.token_logprobs) == len(continuation)
        assert not result.is_greedy
    greedy = [int(np.argmax(toys.row_of(tuple(context))))]
    greedy.append(int(np.argmax(toys.row_of((*context, *greedy)))))
    if max(greedy) < 420:
        assert toys.run(preparer, Loglikelihood(context, greedy)).is_greedy


def test_spaces_stay_where_the_caller_put_them(preparer: Preparer, tokenizer: Any) -> None:
    result = toys.run(preparer, Loglikelihood("The quick ", "brown"))
    context, continuation = tokenizer.encode("The quick ").ids, tokenizer.encode("brown").ids
    assert result.token_ids.tolist() == continuation
    assert result.total == pytest.approx(toys.joint(context, continuation))


def test_the_continuation_survives_truncation(tokenizer: Any) -> None:
    preparer = toys.make(max_length=16)
    context = tokenizer.encode(TEXT * 3).ids
    prepared = preparer.prepare(Loglikelihood(context, [7, 8, 9], truncation="head")).prepared
    # as lm-eval: the last max_length + 1 tokens, all but the last of them fed
    assert prepared.tree.token_ids.tolist() == [*context, 7, 8, 9][-17:][:-1]
    assert prepared.truncated_tokens == len(context) - 14
    preparer.prepare(Loglikelihood([5] * 16, [7]))
    with pytest.raises(PromptTooLong, match=r"context"):
        preparer.prepare(Loglikelihood([5] * 17, [7]))
    preparer.prepare(Loglikelihood([5], [7] * 16))
    with pytest.raises(PromptTooLong, match=r"continuation"):
        preparer.prepare(Loglikelihood([5], [7] * 17, truncation="head"))


@pytest.mark.fault(15)
@pytest.mark.parametrize("bad", [None, b"x", 5, {"role": "user"}, "", [], [{"role": "user", "content": "x"}], {5}])
def test_a_value_that_is_not_a_continuation(preparer: Preparer, bad: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^continuation"):
        preparer.prepare(Loglikelihood("x", bad))


def test_the_tokenizers_own_tokens_stand_before_the_context_only() -> None:
    tokenizer = toys.train(before=[toys.START], after=[toys.STOP])
    prepared = toys.make(tokenizer).prepare(Loglikelihood("The quick", " brown")).prepared
    body = tokenizer.encode("The quick", add_special_tokens=False).ids
    continuation = tokenizer.encode(" brown", add_special_tokens=False).ids
    assert prepared.tree.token_ids.tolist() == [1, *body, *continuation[:-1]]
    assert prepared.readout.rows[0] == len(body)  # type: ignore[union-attr]


# ------------------------------------------------------------------ PromptLogprobs
def test_every_token_of_a_prompt(preparer: Preparer, tokenizer: Any) -> None:
    result = toys.run(preparer, PromptLogprobs(TEXT, top=4))
    encoding = tokenizer.encode(TEXT)
    assert [token.token_id for token in result] == encoding.ids
    assert [token.offsets for token in result] == encoding.offsets
    assert (result[0].logprob, result[0].rank, result[0].top) == (None, None, ())
    for index, token in enumerate(result[1:], start=1):
        row = toys.row_of(tuple(encoding.ids[:index]))
        order = np.argsort(-row, kind="stable")
        assert token.logprob == pytest.approx(row[token.token_id])
        assert token.rank == 1 + order.tolist().index(token.token_id)
        assert [best for best, _ in token.top] == order[:4].tolist()
        assert [value for _, value in token.top] == pytest.approx(row[order[:4]].tolist(), abs=1e-5)


@pytest.mark.feature("A18")
def test_readout_rows_follow_the_task(preparer: Preparer) -> None:
    long = toys.make(max_positions=4096)
    prepared = long.prepare(PromptLogprobs([5, 6] * 2048, last=5)).prepared
    readout = prepared.readout
    assert isinstance(readout, LogprobRows)
    assert readout.rows.tolist() == [4090, 4091, 4092, 4093, 4094] and readout.logits_rows == 5
    request = Request(prepared, Collect())
    assert request.unread == 4090  # the prefix cache may stand in for all before it
    result = toys.run(preparer, PromptLogprobs(TEXT, last=3))
    whole = toys.run(preparer, PromptLogprobs(TEXT))
    assert tuple(result) == tuple(whole)[-3:]
    assert tuple(toys.run(preparer, PromptLogprobs(TEXT, last=len(whole)))) == tuple(whole)
    assert tuple(toys.run(preparer, PromptLogprobs(TEXT, last=10**6))) == tuple(whole)


@pytest.mark.fault(10)
def test_top_and_last_bounds(preparer: Preparer) -> None:
    assert toys.run(preparer, PromptLogprobs(TEXT, top=0))[1].top == ()
    assert len(toys.run(preparer, PromptLogprobs(TEXT, top=256))[1].top) == 256
    for top in (-1, 257, 428, True, 1.0, None, "5"):
        with pytest.raises(InvalidRequest, match=r"^top: .* it takes 0 to 256"):
            preparer.prepare(PromptLogprobs(TEXT, top=top))  # type: ignore[arg-type]
    everything = toys.make(max_top=1000)
    assert len(toys.run(everything, PromptLogprobs("The quick", top=428))[1].top) == 428
    with pytest.raises(InvalidRequest, match=r"it takes 0 to 428"):
        everything.prepare(PromptLogprobs(TEXT, top=429))
    for last in (0, -1, True, 1.0, "5", 1 << 40):
        with pytest.raises(InvalidRequest, match=r"^last: "):
            preparer.prepare(PromptLogprobs(TEXT, last=last))  # type: ignore[arg-type]


@pytest.mark.fault(2)
def test_a_prompt_of_one_token_needs_no_forward_pass(preparer: Preparer) -> None:
    admitted = preparer.prepare(PromptLogprobs([5]))
    assert admitted.prepared.readout is None
    assert [tuple((t.token_id, t.logprob)) for t in toys.finish(admitted)] == [(5, None)]


def test_offsets_follow_truncation_and_ids_have_none(tokenizer: Any) -> None:
    preparer = toys.make(max_length=6)
    offsets = tokenizer.encode(TEXT).offsets
    kept = toys.run(preparer, PromptLogprobs(TEXT, truncation="middle"))
    assert [token.offsets for token in kept] == offsets[:3] + offsets[-3:]
    by_chars = toys.make(max_prompt_chars=5)  # "a b" and " h": the second token ends where the cut part began
    kept = toys.run(by_chars, PromptLogprobs("a b c d e f g h", truncation="middle"))
    assert [token.offsets for token in kept] == [(0, 1), (1, 3), (13, 14), (14, 15)]
    assert {token.offsets for token in toys.run(preparer, PromptLogprobs([5, 6, 7]))} == {None}


# ------------------------------------------------------------------ Embed
def test_pooling_is_named_or_known(preparer: Preparer) -> None:
    with pytest.raises(InvalidRequest, match=r"pooling: the model directory does not say .* name it"):
        preparer.prepare(Embed("x"))
    assert toys.make(embedding=EmbeddingSettings("mean")).prepare(Embed("x")).prepared.readout.pooling == "mean"  # type: ignore[union-attr]
    for bad in ("median", 5, ["mean", None], "", "mean+max"):
        with pytest.raises(InvalidRequest, match=r"pooling: .* is not one of 'last', 'cls', 'mean'"):
            preparer.prepare(Embed("x", pooling=bad))  # type: ignore[arg-type]
    for count in (0, 7):
        with pytest.raises(InvalidRequest, match=rf"pooling: {count} poolings; it takes 1 to 6"):
            preparer.prepare(Embed("x", pooling=["mean"] * count))


@pytest.mark.fault(26)
def test_the_last_token_is_the_last_even_where_it_is_a_pad_token(preparer: Preparer) -> None:
    for prompt in ([5, 6, 0], f"hi{toys.END}{toys.END}"):
        prepared = preparer.prepare(Embed(prompt, pooling="last")).prepared
        assert prepared.tree.token_ids[-1] == 0
        assert prepared.readout.rows.tolist() == [prepared.tree.num_tokens - 1]  # type: ignore[union-attr]


def embedded(vector: Any, **options: Any) -> Any:
    admitted = toys.make(hidden_size=len(vector)).prepare(Embed([5], pooling="last", **options))
    return toys.finish(admitted, PooledOutput(np.array([vector], dtype=np.float32)))


@pytest.mark.fault(16)
def test_dimensions_are_cut_before_normalising() -> None:
    assert embedded([3.0, 4.0, 12.0], dimensions=2).tolist() == pytest.approx([0.6, 0.8])
    assert embedded([3.0, 4.0, 12.0], dimensions=2, normalize=False).tolist() == [3.0, 4.0]
    assert embedded([3.0, 4.0, 0.0]).tolist() == pytest.approx([0.6, 0.8, 0.0])
    assert embedded([1.0] * 4).dtype == np.float32 and embedded([1.0] * 4).stats is not None
    for bad in (0, -1, 4, 1.0, True, "2", math.nan):
        with pytest.raises(InvalidRequest, match=r"^dimensions: .* it takes 1 to 3"):
            embedded([3.0, 4.0, 12.0], dimensions=bad)
    with pytest.raises(InvalidRequest, match=r"^normalize"):
        embedded([1.0], normalize=1)


@pytest.mark.fault(16)
@pytest.mark.fault(77)
def test_vectors_without_a_length_or_with_an_extreme_one() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert embedded([0.0, 0.0]).tolist() == [0.0, 0.0]
        assert embedded([-0.0, 0.0]).tolist() == [0.0, 0.0]
        assert unit(np.array([3e38, -3e38], np.float32)).tolist() == pytest.approx([0.7071068, -0.7071068])
        assert unit(np.array([1e-44, 0], np.float32)).tolist() == [1.0, 0.0]


# ------------------------------------------------------------------ Classify
def classified(logits: list[float], labels: Any = (), **options: Any) -> Any:
    admitted = toys.make(num_labels=len(logits), labels=labels).prepare(Classify([5, 6], **options))
    assert isinstance(admitted.prepared.readout, HeadRows) and admitted.prepared.readout.rows.tolist() == [1]
    return toys.finish(admitted, HeadOutput(np.array([logits], dtype=np.float32)))


def test_activations() -> None:
    assert classified([2.0]).scores.tolist() == pytest.approx([1 / (1 + math.exp(-2))])
    assert classified([2.0], activation="none").scores.tolist() == [2.0]
    assert classified([0.0, math.log(3)]).scores.tolist() == pytest.approx([0.25, 0.75])
    assert classified([0.0, 0.0], activation="sigmoid").scores.tolist() == [0.5, 0.5]
    named = classified([0.0, 5.0], labels=("bad", "good"))
    assert (named.label, named.labels, named.logits.tolist()) == ("good", ("bad", "good"), [0.0, 5.0])
    assert classified([9.0, 5.0]).label == "LABEL_0"
    padded = toys.make(num_labels=2, pad_id=7).prepare(Classify([7, 7])).prepared.rows
    assert padded.tolist() == [0], "of pad tokens alone the first one, as in transformers"
    with pytest.raises(InvalidRequest, match=r"activation: 'relu' is not one of"):
        classified([1.0], activation="relu")


@pytest.mark.fault(75)
@pytest.mark.fault(77)
@pytest.mark.parametrize("logits", [[1e3, -1e3], [1e4, 1e4], [-1e4, 1e4], [0.0, -0.0], [1e-45, 0.0], [-3e38, 3e38]])
def test_extreme_logits(logits: list[float]) -> None:
    given = np.array(logits, dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert activate(given, "softmax").sum() == pytest.approx(1, abs=1e-6)
        sigmoid = activate(given, "sigmoid")
    assert ((sigmoid >= 0) & (sigmoid <= 1)).all()
    assert sigmoid.tolist() == pytest.approx([1.0 if x > 100 else 0.0 if x < -100 else 0.5 for x in logits])
