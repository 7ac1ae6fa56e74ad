"""``allowed_tokens_fn``: the caller chooses, token by token, the ids that may come next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prelude import AsyncEngine, Engine, Generate, SamplingParams
from prelude.errors import ExecutionError, InvalidRequest
from tests.engine.conftest import Oracle
from tests.patience import until

PROMPT = [11, 12, 13, 14]
EVEN, ODD = np.arange(2, 4000, 2, dtype=np.int32), np.arange(3, 4000, 2, dtype=np.int32)


def params(fn: Any, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "temperature": 0, "ignore_eos": True, "allowed_tokens_fn": fn, **more})


def by_turns(output: list[int]) -> np.ndarray:
    return EVEN if len(output) % 2 == 0 else ODD


def after_the_last(output: list[int]) -> list[int] | None:
    """A chain, where the last token decides; every fourth is free."""
    if len(output) % 4 == 3:
        return None
    last = output[-1] if output else 7
    return [(last * 31 + step) % 3999 + 1 for step in range(0, 900, 9)]


@pytest.mark.parametrize("chosen", [by_turns, after_the_last])
def test_greedy_text_is_that_of_transformers(
    make_engine: Callable[..., Engine], oracle: Oracle, chosen: Callable[[list[int]], Any]
) -> None:
    torch = oracle.torch

    def prefix_allowed_tokens_fn(batch: int, ids: Any) -> list[int]:
        allowed = chosen(ids[len(PROMPT) :].tolist())
        return list(range(4096)) if allowed is None else list(map(int, allowed))

    with torch.inference_mode():
        expected = oracle.model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        )[0, len(PROMPT) :].tolist()
    for overlap in (False, True):
        engine = make_engine(overlap=overlap)
        assert list(engine.complete(PROMPT, params(chosen)).token_ids) == expected
        streamed = [token for chunk in engine.stream(PROMPT, params(chosen)) for token in chunk.token_ids]
        assert streamed == expected


def test_the_function_changes_its_own_row_alone(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(deterministic=True)
    free = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    penalised = SamplingParams(max_tokens=12, seed=3, presence_penalty=0.7, ignore_eos=True)
    each = [params(by_turns), free, penalised, params(after_the_last, seed=5, temperature=1.0)]
    alone = [engine.complete(PROMPT, one).token_ids for one in each]
    together = engine.run_many([Generate(PROMPT, one) for one in each])
    assert [result.token_ids for result in together] == alone


def test_the_function_sees_the_drawn_ids_and_may_keep_them(make_engine: Callable[..., Engine]) -> None:
    seen: list[list[int]] = []

    def watch(output: list[int]) -> None:
        seen.append(output)

    done = make_engine().complete(PROMPT, params(watch))
    assert seen == [list(done.token_ids[:count]) for count in range(12)]


@pytest.mark.parametrize(
    "kind", [tuple, set, lambda ids: np.array(ids, np.int64), lambda ids: np.array([*ids, 9], np.int32)[:-1][::-1]]
)
def test_every_kind_of_list_allows_the_same(make_engine: Callable[..., Engine], kind: Callable[..., Any]) -> None:
    """Out of order, and with an id that comes twice where the kind can hold it."""
    engine = make_engine()
    given = [40, 22, 30, 22, 31, 4095, 0]
    expected = engine.complete(PROMPT, params(lambda output: sorted(set(given)), max_tokens=4)).token_ids
    assert engine.complete(PROMPT, params(lambda output: kind(given), max_tokens=4)).token_ids == expected


@pytest.mark.parametrize("count", [1, 12])
def test_the_function_goes_with_the_other_lists(make_engine: Callable[..., Engine], count: int) -> None:
    engine = make_engine()
    static = engine.complete(
        PROMPT, params(None, max_tokens=count, allowed_token_ids=[20, 22, 30], banned_token_ids=[22])
    )
    lists = ((by_turns if count == 1 else lambda _: EVEN, [20, 22, 30, 31]), (lambda _: None, [20, 22, 30]))
    for chosen, allowed in lists:
        both = engine.complete(
            PROMPT, params(chosen, max_tokens=count, allowed_token_ids=allowed, banned_token_ids=[22])
        )
        assert both.token_ids == static.token_ids


@pytest.mark.parametrize(
    "answer, says",
    [
        ([], "no token allowed after 0 tokens"), ([4096], "4096"), ([-1], "-1"),
        (np.array([5, 1 << 30], dtype=np.int32), str(1 << 30)), (["a"], "'a'"), (7, "not a list of token ids"),
        ([0], "no token allowed"), ([1] * 4097, "4097 ids; the limit is 4096"),
        (np.array([5, 1 << 40]), str(1 << 40)), ([5, True], "True"),
    ],
)  # fmt: skip
def test_a_bad_first_choice_is_refused(make_engine: Callable[..., Engine], answer: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"params.allowed_tokens_fn.*{says}"):
        make_engine().complete(PROMPT, params(lambda output: answer, banned_token_ids=[0]))
    with pytest.raises(InvalidRequest, match=r"params.allowed_tokens_fn: 7 cannot be called"):
        make_engine().complete(PROMPT, params(7))


def test_a_later_failure_ends_its_own_request(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()

    def fails(output: list[int]) -> list[int]:
        if len(output) == 3:
            raise KeyError("state 3")
        return [20, 21]

    tasks = [Generate(PROMPT, params(fn)) for fn in (fails, lambda output: [] if output else [5], by_turns)]
    ends = params(lambda output: [5] if output else [20], stop_token_ids=[5])
    tasks += [Generate(PROMPT, replace(ends, min_tokens=least)) for least in (2, 1)]
    raised, empty, well, early, ended = engine.run_many(tasks, return_exceptions=True)
    assert isinstance(raised, ExecutionError) and isinstance(raised.__cause__, KeyError)
    for none in (empty, early):
        assert isinstance(none, ExecutionError) and "no token allowed after 1 tokens" in str(none)
    assert (ended.token_ids, ended.finish_reason) == ((20,), "stop"), "the end is allowed after min_tokens"
    assert well.token_ids == engine.complete(PROMPT, params(by_turns)).token_ids
    stream = engine.stream(PROMPT, params(fails))
    until(lambda: not engine.stats()["live_streams"])
    assert len(next(stream).token_ids) == 3, "the text before an error is read before it"
    with pytest.raises(ExecutionError, match="state 3"):
        next(stream)
    assert engine.health().ok and engine.stats()["failed_steps"] == 0


def test_an_array_that_is_written_later_is_not_looked_at_again(make_engine: Callable[..., Engine]) -> None:
    """The first choice is made while the task is prepared, and is used when its step is packed."""
    chosen = np.array([20, 21, 22], dtype=np.int32)

    def writes(output: list[int]) -> list[int]:
        chosen[:] = [1 << 20, 1 << 21, 1 << 22]
        return [30]

    engine = make_engine()
    first, second = engine.run_many([Generate(PROMPT, params(fn, max_tokens=1)) for fn in (lambda _: chosen, writes)])
    assert first.token_ids[0] in (20, 21, 22) and second.token_ids == (30,)
    assert engine.stats()["failed_steps"] == 0


def test_a_list_that_is_written_in_place_is_looked_at_each_time(make_engine: Callable[..., Engine]) -> None:
    chosen = [20, 21, 22]

    def moves(output: list[int]) -> list[int]:
        if len(output) >= 4:
            chosen[1] = 100 + len(output)
            return chosen[1:2] if len(output) % 2 else chosen
        return chosen

    text = make_engine().complete(PROMPT, params(moves)).token_ids
    assert all(token in (20, 21, 22) for token in text[:4])
    for at, token in enumerate(text[4:], 4):
        assert token in ([100 + at] if at % 2 else [20, 100 + at, 22]), text


def test_the_function_must_not_wait_for_the_engine(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()

    def asks(output: list[int]) -> list[int]:
        if output:
            engine.complete(PROMPT, SamplingParams(max_tokens=1))
        return [20, 21]

    with pytest.raises(ExecutionError, match="must not wait"):
        engine.complete(PROMPT, params(asks))


def test_the_function_serves_an_asynchronous_engine(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()

    async def main() -> Any:
        return await asyncio.gather(*(AsyncEngine(engine).complete(PROMPT, params(by_turns)) for _ in range(3)))

    for result in asyncio.run(main()):
        assert [token % 2 for token in result.token_ids] == [0, 1] * 6
