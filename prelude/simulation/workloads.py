"""Seeded workloads: the same arguments give the same arrivals. All are generators; a million arrivals cost no memory.

The first two are PrefillOnly's (arXiv 2505.07203, section 7.1); their size and rate are arguments, so they can be put
to the scale of the machine.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from prelude.errors import TraceError
from prelude.simulation.traces import Arrival

Workload: TypeAlias = Callable[..., Iterator[Arrival]]


def poisson(rng: random.Random, rate: float) -> Iterator[float]:
    """Moments of arrival, ``rate`` a second."""
    if not 0 < rate < math.inf:
        raise TraceError(f"rate={rate!r} is not a positive number of requests a second")
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now


def post_recommendation(
    rate: float, seed: int = 0, *, users: int = 20, posts: int = 50, post_tokens: int = 150, together: int = 1
) -> Iterator[Arrival]:
    """Is this post for this user? ``users`` with a profile of N(14,000, 3,000) tokens cut to 11,000 .. 17,000 each,
    ``posts`` of ``post_tokens`` for each of them, all in random order. ``together`` posts of a user arrive at once
    (``posts``: a whole feed at a time), ``rate`` requests a second in all."""
    rng = random.Random(f"posts {seed}")
    profiles = [int(min(17_000, max(11_000, rng.gauss(14_000, 3_000)))) for _ in range(users)]
    together = max(1, min(together, posts))
    visits = [(user, first) for user in range(users) for first in range(0, posts, together)]
    rng.shuffle(visits)
    moments = poisson(rng, rate / together)
    for user, first in visits:
        at = next(moments)
        for post in range(first, min(first + together, posts)):
            parts = ((f"user-{seed}-{user}", profiles[user]), (None, post_tokens))
            yield Arrival(at, parts, user=f"user-{user}", id=f"post-{user}-{post}")


def credit_verification(rate: float, seed: int = 0, *, users: int = 60) -> Iterator[Arrival]:
    """``users`` with 40,000 to 60,000 tokens of their own, one request each: nothing is shared."""
    rng = random.Random(f"credit {seed}")
    moments = poisson(rng, rate)
    for user in range(users):
        tokens = rng.randint(40_000, 60_000)
        yield Arrival(next(moments), ((None, tokens),), user="credit", id=f"credit-{user}")


def rubrics(
    rate: float,
    seed: int = 0,
    *,
    requests: int = 1000,
    rubrics: int = 50,
    skew: float = 1.1,
    rubric_tokens: int = 1000,
    text_tokens: tuple[int, int] = (20, 300),
    questions: tuple[int, ...] = (),
    tenants: int = 0,
) -> Iterator[Arrival]:
    """Judging: a rubric drawn by Zipf's law (weight 1 / rank ** ``skew``) and a text of its own."""
    rng = random.Random(f"rubrics {seed}")
    total = 0.0
    bounds = [total := total + 1 / rank**skew for rank in range(1, rubrics + 1)]
    moments = poisson(rng, rate)
    names = [f"rubric-{seed}-{number}" for number in range(rubrics)]
    for number in range(requests):
        name = rng.choices(names, cum_weights=bounds)[0]
        parts = ((name, rubric_tokens), (None, rng.randint(*text_tokens)))
        tenant = f"team-{rng.randrange(tenants)}" if tenants else None
        yield Arrival(next(moments), parts, questions=questions, tenant=tenant, user=name, id=f"judge-{number}")


def chat(
    rate: float,
    seed: int = 0,
    *,
    requests: int = 200,
    system_tokens: int = 300,
    turn_tokens: tuple[int, int] = (20, 400),
    max_tokens: tuple[int, int] = (16, 256),
    turns: int = 4,
) -> Iterator[Arrival]:
    """Conversations under one system prompt. A turn's prompt is all turns before it and a new one; the model's
    answer before it is part of the new one."""
    rng = random.Random(f"chat {seed}")
    moments = poisson(rng, rate)
    talks: list[tuple[int, int, int]] = []  # number, turns so far, tokens so far
    for number in range(requests):
        going = talks and rng.random() < (turns - 1) / turns
        talk, turn, tokens = talks.pop(rng.randrange(len(talks))) if going else (number, 0, 0)
        tokens += rng.randint(*turn_tokens)
        parts = ((f"system-{seed}", system_tokens), (f"talk-{seed}-{talk}", tokens))
        yield Arrival(
            next(moments),
            parts,
            task="generate",
            max_tokens=rng.randint(*max_tokens),
            user="chat",
            id=f"chat-{talk}-{turn}",
        )
        if turn + 1 < turns:
            talks.append((talk, turn + 1, tokens))


def chat_beside_decisions(
    rate: float, seed: int = 0, *, requests: int = 1000, chats: float = 0.1, **options: Any
) -> Iterator[Arrival]:
    """``chats`` of the requests are chat turns, the others judge texts under rubrics."""
    talking = int(requests * chats)
    return merged(
        chat(rate * chats, seed, requests=talking),
        rubrics(rate * (1 - chats), seed, requests=requests - talking, **options),
    )


def mixed(rate: float, seed: int = 0, *, scale: int = 1, together: int = 1) -> Iterator[Arrival]:
    """Both of PrefillOnly's workloads at once, over the same time: 1,000 posts and 60 credit files a ``scale``."""
    posts, files = 1000 * scale, 60 * scale
    share = posts / (posts + files)
    return merged(
        post_recommendation(rate * share, seed, users=20 * scale, together=together),
        credit_verification(rate * (1 - share), seed, users=files),
    )


def bursts(
    rate: float, seed: int = 0, *, requests: int = 1000, burst: float = 8.0, calm: float = 4.0, **options: Any
) -> Iterator[Arrival]:
    """Rubrics at ``rate`` on average: a second at ``burst`` times the calm rate, then ``calm`` seconds without."""
    rng = random.Random(f"bursts {seed}")
    base = rate * (1 + calm) / (burst + calm)
    now, ends, busy = 0.0, rng.expovariate(1.0), True
    for arrival in rubrics(1.0, seed, requests=requests, **options):
        while True:
            gap = rng.expovariate(base * (burst if busy else 1.0))
            if now + gap < ends:
                now += gap
                break
            now, busy = ends, not busy
            ends += rng.expovariate(1.0 if busy else 1.0 / calm)
        yield replace(arrival, at=now)


# ------------------------------------------------------------------ made of others


def merged(*workloads: Iterable[Arrival]) -> Iterator[Arrival]:
    return heapq.merge(*workloads, key=lambda arrival: arrival.at)


def cancelled(workload: Iterable[Arrival], share: float, after: float, seed: int = 0) -> Iterator[Arrival]:
    """A ``share`` of the callers cancel, ``after`` seconds in the mean after their arrival."""
    rng = random.Random(f"cancel {seed}")
    for arrival in workload:
        if rng.random() < share:
            arrival = replace(arrival, cancel_after=rng.expovariate(1 / after))
        yield arrival


WORKLOADS: dict[str, Workload] = {
    "posts": post_recommendation,
    "credit": credit_verification,
    "mixed": mixed,
    "rubrics": rubrics,
    "chat": chat,
    "chat-and-decisions": chat_beside_decisions,
    "bursts": bursts,
}
