"""The chat in a terminal: history, forgetting, stopping, and the command line."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from prelude import AsyncEngine, EngineConfig, SamplingParams
from tests.examples.conftest import load

chat = load("chat")
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


def asks(lines: Sequence[str]) -> Callable[[], Awaitable[str | None]]:
    left = iter(lines)

    async def ask() -> str | None:
        return next(left, None)

    return ask


def talk(
    lines: Sequence[str], params: SamplingParams = GREEDY, **options: Any
) -> tuple[Any, list[str], dict[str, Any]]:
    """The conversation, the written lines, and the engine's counters."""
    written: list[str] = []

    async def main() -> tuple[Any, dict[str, Any]]:
        config = EngineConfig(kv_bytes=1 << 23, max_length=options.pop("max_length", None))
        async with AsyncEngine.from_pretrained(config=config) as engine:
            conversation = await chat.chat(engine, asks(lines), written.append, params, **options)
            engine.engine._core.audit()
            return conversation, engine.stats()

    conversation, stats = asyncio.run(main())
    return conversation, written, stats


def test_an_answer_comes_in_parts_and_the_conversation_is_kept() -> None:
    conversation, written, stats = talk(["Hello", "", "And you?", "/quit", "never read"], system="Be brief.")
    assert [turn["role"] for turn in conversation.turns] == ["user", "assistant", "user", "assistant"]
    assert [turn["content"] for turn in conversation.turns[::2]] == ["Hello", "And you?"]
    assert "".join(written) == "".join(turn["content"] + "\n" for turn in conversation.turns[1::2])
    assert len(written) >= 4 and stats["finished"] == 2  # a reader that falls behind gets fewer, longer parts
    assert stats["prefix_hit_tokens"] >= 0


def test_new_forgets_the_conversation() -> None:
    conversation, _, _ = talk(["Hello", "/new", "Again"])
    assert [turn["content"] for turn in conversation.turns[::2]] == ["Again"]


def test_turns_that_do_not_fit_are_forgotten_oldest_first() -> None:
    conversation, written, _ = talk([f"Question {n}: " + "word " * 20 for n in range(6)], max_length=128)
    questions = [turn["content"] for turn in conversation.turns[::2]]
    assert 1 <= len(questions) < 6 and questions[-1].startswith("Question 5")
    conversation, written, _ = talk(["word " * 200, "Hello"], max_length=128)
    assert written[0].startswith("[") and "tokens" in written[0]
    assert [turn["content"] for turn in conversation.turns[::2]] == ["Hello"]


def test_ctrl_c_stops_an_answer_and_keeps_the_half_of_it() -> None:
    parts = 0

    def interrupt(text: str) -> None:
        nonlocal parts
        parts += 1
        if parts == 3:
            os.kill(os.getpid(), signal.SIGINT)

    async def main() -> tuple[Any, dict[str, Any]]:
        async with AsyncEngine.from_pretrained(config=EngineConfig(kv_bytes=1 << 23)) as engine:
            params = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
            conversation = await chat.chat(engine, asks(["Hello"]), interrupt, params)
            await engine.embed("after", pooling="last")
            assert engine.engine._core.pool.live_leases == 0
            return conversation, engine.stats()

    conversation, stats = asyncio.run(main())
    assert stats["decode_tokens"] < 1000 and len(conversation.turns) == 2 and conversation.turns[1]["content"]


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n/quit\n"))
    chat.main(["--temperature", "0", "--max-tokens", "8"])
    assert capsys.readouterr().out.startswith("> ")
