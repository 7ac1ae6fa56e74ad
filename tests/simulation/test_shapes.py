"""The textbooks' figures, simulated: chunks, turns, concurrency and reuse, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from prelude.simulation import Arrival, ClosedLoop, Fleet, LinearCost, machine, simulate
from prelude.simulation.replica import SimulatedRequest
from prelude.simulation.report import Report

TENTH = LinearCost(0.0, 1e-4, 0.0)  # a tenth of a millisecond a token


def chat(tokens: int, at: float = 0.0, max_tokens: int = 1, name: str | None = None) -> Arrival:
    return Arrival(at, ((None, tokens),), task="generate", max_tokens=max_tokens, id=name)


def waits(policy: str, chunk: int) -> dict[str | None, tuple[float, float]]:
    """Milliseconds until each of the textbook's three prompts begins, and until it is through: 2,000 tokens, and 50
    and 70 that come just behind it."""
    chosen = machine("h200-qwen3-4b", chunk_tokens=chunk, decode_policy=policy)
    fleet = Fleet(replace(chosen, cost=TENTH))
    seen = {}
    replica = fleet.replicas[0]
    ended = replica.on_end

    def note(simulated: SimulatedRequest) -> None:
        seen[simulated.arrival.id] = (
            (simulated.started - simulated.came) * 1e3,
            (simulated.first - simulated.came) * 1e3,
        )
        ended(simulated)

    replica.on_end = note
    fleet.run([chat(2000, 0, 2, "long"), chat(50, 1e-5, 2, "short"), chat(70, 2e-5, 2, "third")])
    return seen


@pytest.mark.feature("Q2")
def test_a_short_prompt_waits_for_one_chunk_of_a_long_one() -> None:
    """Behind all 2,000 tokens the two wait 200 ms. With chunks of 256 that take turns they wait for one chunk, 25.6
    ms: 8 times less. With chunks of 128 it is 12.8 ms, 15 times less."""
    behind = waits("first_come_first_served", 256)
    assert [behind[name][0] for name in ("short", "third")] == pytest.approx([200, 200], abs=0.2)
    for chunk, times in ((256, 7.8), (128, 15.6)):
        turns = waits("round_robin", chunk)
        assert [turns[name][0] for name in ("short", "third")] == pytest.approx([chunk / 10] * 2, abs=0.2)
        assert behind["short"][0] / turns["short"][0] == pytest.approx(times, abs=0.1)
        through = [turns[name][1] for name in ("short", "third")]
        assert through == pytest.approx([2 * chunk / 10 + 12] * 2, abs=0.2), "one step more"
        assert turns["long"][1] == pytest.approx(212, abs=0.3), "it shares its second step with 120 tokens of theirs"


def test_chunks_cost_the_chunked_prompt_little() -> None:
    """Beside 16 running chats, a prompt of 4,096 tokens: whole, and in chunks that leave the chats a token each."""

    def report(chunk: int) -> Report:
        chosen = machine("h200-qwen3-4b", chunk_tokens=chunk)
        others = [chat(64, 0.0, 400, f"chat-{i}") for i in range(16)]
        return simulate(chosen, [*others, chat(4096, 0.5, 2, "long")])

    whole, chunked = report(8192), report(1024)
    longer = chunked.first_token.longest / whole.first_token.longest
    assert 1.0 < longer < 1.4


@pytest.mark.feature("F20")
def test_throughput_grows_with_concurrency_until_arithmetic_takes_longer() -> None:
    """Decoding reads the weights once for all rows: eight clients get nearly eight times the tokens of one; past the
    point where products take longer than reading, twice the clients get less than a quarter more."""

    def throughput(clients: int) -> float:
        chosen = machine("h200-qwen3-4b", max_running=512, max_step_requests=512)
        trace = (chat(16, 0.0, 40, f"{i}") for i in range(4 * clients))
        return simulate(chosen, ClosedLoop(trace, clients)).throughput

    few = [throughput(n) for n in (1, 2, 4, 8)]
    assert all(1.8 < b / a <= 2.0 for a, b in pairwise(few))
    assert throughput(512) / throughput(256) < 1.25


@pytest.mark.feature("B11")
def test_the_cache_saves_the_tokens_that_the_load_shares() -> None:
    """Prompts of 400 tokens with a part that one of four known prefixes makes up: nothing with nothing shared, more
    than twice and three times less to compute at 60 and 75 %."""

    def computed(share: int) -> int:
        head = 400 * share // 100
        parts = [((f"known-{i % 4}", head),) if head else () for i in range(64)]
        trace = [Arrival(0.1 * i, (*part, (None, 400 - head))) for i, part in enumerate(parts)]
        return simulate(machine("h200-qwen3-4b"), trace).computed_tokens

    found = {share: computed(share) for share in (0, 25, 60, 75, 95)}
    assert found[0] == 64 * 400
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert 2 < found[0] / found[60] < 3 < found[0] / found[75] < 4 < found[0] / found[95]


@pytest.mark.feature("Q5")
def test_the_two_savings() -> None:
    """Memory that requests do not take is throughput: with twice the blocks nearly twice the texts run at a time.
    A cached prefix is latency: of a prompt whose prefix is known the rest is computed."""

    def texts(blocks: int) -> float:
        chosen = machine("h200-qwen3-4b", kv_blocks=blocks)
        trace = (chat(500, 0.0, 200, f"{i}") for i in range(96))
        return simulate(chosen, ClosedLoop(trace, 48)).throughput

    narrow, wide = texts(8 * 44), texts(16 * 44)  # 700 tokens are 44 blocks of 16
    assert 1.6 < wide / narrow < 2.0

    def median(known: int) -> float:
        parts = [(("known", known),) if known else () for _ in range(20)]
        trace = [Arrival(0.5 * i, (*part, (None, 4000 - known))) for i, part in enumerate(parts)]
        return simulate(machine("h200-qwen3-4b"), trace).latency.p50

    cold, half, most = (median(known) for known in (0, 2000, 3600))
    assert cold > 1.5 * half > 3 * most / 2
