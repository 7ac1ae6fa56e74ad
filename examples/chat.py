"""A chat in a terminal: text as it comes, the conversation kept.

    python examples/chat.py [--model DIR_OR_HUB_NAME] [--system TEXT] [--temperature 0.7] [--max-tokens 256]

/new forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer. The model that ships with the package
decides about texts; it was not made to talk. Name a chat model for a conversation that makes sense.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable

from prelude import AsyncEngine, SamplingParams
from prelude.errors import InvalidRequest, PromptTooLong

Message = dict[str, str]
Write = Callable[[str], None]


class Conversation:
    """Messages, oldest first. A question that no longer fits the model's context is dropped with its answer."""

    def __init__(self, system: str | None = None) -> None:
        self.system: list[Message] = [{"role": "system", "content": system}] if system else []
        self.turns: list[Message] = []

    async def say(self, engine: AsyncEngine, text: str, params: SamplingParams, write: Write) -> None:
        """Streams the answer to ``text``. A question that fails, or is stopped before it has an answer, is forgotten;
        half an answer is kept."""
        self.turns.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            while not answer and not await self._stream(engine, params, write, answer):
                del self.turns[:2]
        finally:
            if answer:
                self.turns.append({"role": "assistant", "content": "".join(answer)})
            else:
                self.turns.pop()

    async def _stream(self, engine: AsyncEngine, params: SamplingParams, write: Write, answer: list[str]) -> bool:
        """False where there are older turns to forget first."""
        try:
            async with engine.generate([*self.system, *self.turns], params) as chunks:
                async for chunk in chunks:
                    answer.append(chunk.text)
                    write(chunk.text)
        except PromptTooLong:
            if len(self.turns) < 3:
                raise
            return False
        return True


async def chat(
    engine: AsyncEngine,
    ask: Callable[[], Awaitable[str | None]],
    write: Write,
    params: SamplingParams,
    system: str | None = None,
) -> Conversation:
    """Until ``ask`` gives None. Returns the conversation."""
    conversation = Conversation(system)
    while (text := await ask()) is not None:
        if text == "/quit":
            break
        if text == "/new":
            conversation = Conversation(system)
        elif text:
            try:
                await stoppable(conversation.say(engine, text, params, write))
            except asyncio.CancelledError:
                write(" [stopped]")
            except InvalidRequest as error:
                write(f"[{error}]")
            write("\n")
    return conversation


async def stoppable(work: Awaitable[None]) -> None:
    """``work``, which Ctrl-C cancels."""
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, task.cancel)
    except (NotImplementedError, RuntimeError, ValueError):  # no signals here: Windows, or not the main thread
        return await task
    try:
        await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def from_terminal() -> str | None:
    try:
        return (await asyncio.to_thread(input, "> ")).strip()
    except EOFError:
        return None


async def run(chosen: argparse.Namespace) -> None:
    params = SamplingParams(max_tokens=chosen.max_tokens, temperature=chosen.temperature, seed=chosen.seed)
    async with AsyncEngine.from_pretrained(chosen.model) as engine:
        await chat(engine, from_terminal, lambda text: print(text, end="", flush=True), params, chosen.system)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory or a hub name; the packaged model by default")
    parser.add_argument("--system")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int)
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
