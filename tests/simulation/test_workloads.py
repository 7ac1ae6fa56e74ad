"""Each workload is what its docstring says: how many requests, of which parts, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prelude.simulation import Arrival
from prelude.simulation.workloads import (
    WORKLOADS,
    bursts,
    cancelled,
    chat,
    chat_beside_decisions,
    credit_verification,
    mixed,
    post_recommendation,
    rubrics,
)


def rate_of(arrivals: Sequence[Arrival]) -> float:
    return len(arrivals) / arrivals[-1].at


def within(arrivals: Sequence[Arrival], part: int, low: int, high: int) -> bool:
    """The tokens of a part lie in the range and reach near both its ends."""
    tokens = [arrival.parts[part][1] for arrival in arrivals]
    slack = (high - low) / 20
    return low <= min(tokens) <= low + slack and high - slack <= max(tokens) <= high


def others(arrivals: Sequence[Arrival]) -> set[Arrival]:
    """The fields beside those that each arrival has of its own."""
    return {replace(one, at=0.0, parts=(), max_tokens=0, id=None, user=None) for one in arrivals}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_is_a_trace_in_order_at_its_rate(name: str) -> None:
    first, again, other = (list(WORKLOADS[name](50.0, seed)) for seed in (0, 0, 1))
    assert first == list(WORKLOADS[name](50.0)) == again != other
    moments = [arrival.at for arrival in first]
    assert moments == sorted(moments) and len({arrival.id for arrival in first}) == len(first)
    assert name == "bursts" or rate_of(first) == pytest.approx(50, rel=0.2)
    assert {arrival.parts[0][0] for arrival in first}.isdisjoint({one.parts[0][0] for one in other} - {None})


def test_posts_and_credit_files() -> None:
    posts = list(post_recommendation(20.0))
    users = Counter(arrival.parts[0] for arrival in posts)
    assert len(users) == 20 and set(users.values()) == {50}
    assert all(11_000 <= tokens <= 17_000 for _, tokens in users) and len({tokens for _, tokens in users}) > 15
    assert {arrival.parts[1] for arrival in posts} == {(None, 150)} and len({one.at for one in posts}) == 1000
    assert [one.parts[0] for one in posts] != sorted(one.parts[0] for one in posts), "in random order"
    together = list(post_recommendation(20.0, together=4))
    assert set(Counter(arrival.at for arrival in together).values()) == {4, 2}, "a user's 50 posts by fours"
    assert rate_of(together) == pytest.approx(20, rel=0.15)
    assert len({arrival.at for arrival in post_recommendation(20.0, together=99)}) == 20, "a whole feed"
    assert others(posts) == {Arrival(0.0, ())}
    assert {(arrival.user, arrival.parts[0][0]) for arrival in posts} == {
        (f"user-{n}", f"user-0-{n}") for n in range(20)
    }
    credit = list(credit_verification(5.0))
    assert others(credit) == {Arrival(0.0, ())} and {arrival.user for arrival in credit} == {"credit"}
    assert len(credit) == 60 and within(credit, 0, 40_000, 60_000) and {one.parts[0][0] for one in credit} == {None}
    both = list(mixed(20.0, scale=2))
    assert len(both) == 2120 and sum(len(arrival.parts) == 1 for arrival in both) == 120
    assert len({arrival.parts[0] for arrival in both if len(arrival.parts) == 2}) == 40
    assert max(one.at for one in both if len(one.parts) == 1) == pytest.approx(2120 / 20, rel=0.25), "the same time"
    assert len(list(mixed(20.0))) == 1060 and len({one.at for one in mixed(20.0, together=50)}) == 80


def test_rubrics_follow_zipfs_law() -> None:
    found = list(rubrics(10.0))
    counts = Counter(arrival.parts[0] for arrival in found)
    assert len(found) == 1000 and 45 <= len(counts) <= 50 and {tokens for _, tokens in counts} == {1000}
    assert within(found, 1, 20, 300) and {arrival.parts[1][0] for arrival in found} == {None}
    weights = [1 / rank**1.1 for rank in range(1, 51)]
    for rank in (1, 2, 3):
        share = counts[f"rubric-0-{rank - 1}", 1000] / 1000
        assert share == pytest.approx(weights[rank - 1] / sum(weights), rel=0.15)
    even = Counter(arrival.parts[0] for arrival in rubrics(10.0, requests=3000, rubrics=3, skew=0))
    assert len(even) == 3 and min(even.values()) > 900
    assert {arrival.tenant for arrival in found} == {None} and {arrival.questions for arrival in found} == {()}
    assert {one.tenant for one in rubrics(10.0, tenants=3)} == {"team-0", "team-1", "team-2"}
    assert all(arrival.user == arrival.parts[0][0] and arrival.task == found[0].task for arrival in found)


def test_a_turn_of_a_chat_holds_the_turns_before_it() -> None:
    found = list(chat(10.0))
    assert len(found) == 200 and {arrival.parts[0] for arrival in found} == {("system-0", 300)}
    talks: dict[str | None, list[int]] = {}
    for arrival in found:
        assert arrival.task == "generate" and 16 <= arrival.max_tokens <= 256
        talks.setdefault(arrival.parts[1][0], []).append(arrival.parts[1][1])
    assert {len(talk) for talk in talks.values()} == {1, 2, 3, 4}
    steps = [b - a for talk in talks.values() for a, b in zip([0, *talk], talk)]
    assert 20 <= min(steps) <= 40 and 380 <= max(steps) <= 400
    lengths = [arrival.max_tokens for arrival in found]
    assert min(lengths) < 30 and max(lengths) > 240
    assert others(found) == {Arrival(0.0, (), task="generate")} and {arrival.user for arrival in found} == {"chat"}
    assert {arrival.id for arrival in found} == {
        f"chat-{str(talk).removeprefix('talk-0-')}-{turn}"
        for talk, turns in talks.items()
        for turn in range(len(turns))
    }
    assert len(talks) / 200 == pytest.approx(1 / 4, rel=0.25), "conversations of four turns"


def test_chats_beside_decisions() -> None:
    found = list(chat_beside_decisions(50.0, rubrics=3))
    kinds = Counter(arrival.task for arrival in found)
    assert kinds["generate"] == 100 and sum(kinds.values()) == 1000
    assert len({arrival.parts[0] for arrival in found if arrival.task != "generate"}) == 3
    chats = [arrival for arrival in found if arrival.task == "generate"]
    assert rate_of(chats) == pytest.approx(5, rel=0.25), "over the same time"
    assert rate_of([arrival for arrival in found if arrival.task != "generate"]) == pytest.approx(45, rel=0.1)


def test_bursts_are_a_second_in_five() -> None:
    found = list(bursts(50.0, requests=20_000))
    assert rate_of(found) == pytest.approx(50, rel=0.15)
    seconds = Counter(int(arrival.at) for arrival in found)
    base = 50 * 5 / 12
    calm = sorted(seconds.values())[: len(seconds) // 2]
    assert sum(calm) / len(calm) == pytest.approx(base, rel=0.2) and max(seconds.values()) > 6 * base
    assert len(list(bursts(50.0))) == 1000
    assert [one.parts for one in bursts(50.0)] == [one.parts for one in rubrics(1.0)]


def test_a_share_of_the_callers_goes_away() -> None:
    found = list(cancelled(rubrics(50.0, requests=3000), 0.2, 0.5))
    away = [arrival.cancel_after for arrival in found if arrival.cancel_after is not None]
    assert len(away) / 3000 == pytest.approx(0.2, rel=0.1) and sum(away) / len(away) == pytest.approx(0.5, rel=0.1)
    assert found == list(cancelled(rubrics(50.0, requests=3000), 0.2, 0.5, seed=0))
    assert found != list(cancelled(rubrics(50.0, requests=3000), 0.2, 0.5, seed=1))
