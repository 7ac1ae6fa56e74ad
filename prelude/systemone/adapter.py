"""SystemOne: requests to decisions and answers to bodies, over an engine of either kind.

A request of more questions than one step holds becomes several decisions about the same state, run together: which
questions share a step changes no answer in deterministic mode, and the last bits otherwise.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from prelude.engine import AsyncEngine, Engine
from prelude.errors import ConfigError, InvalidRequest, RequestTooLarge, shown
from prelude.results import Answer, Answers
from prelude.systemone.answers import answer_body, usage_of
from prelude.systemone.errors import SystemOneError, fault, located
from prelude.systemone.openai import openai_body, parse_openai, relocated
from prelude.systemone.request import Parsed, parse
from prelude.tasks import Decide, Question
from prelude.verbs import DecideKeywords, RequestKeywords, split_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

# What is to be run together next; what came of it, errors as values; and the body at the end.
Work: TypeAlias = Generator[list[Decide], list[Any], dict[str, Any]]


class SystemOne:
    """One model under the System One protocol. ``name`` is what bodies call it (its directory's name by default);
    requests may ask for it, for one of ``aliases``, or for no model. Further keywords are those of ``decide``
    (``orders``, ``truncation``, ``template``, ``cache``, ``salt``, ``length_norm``, ``mass``) and hold for all
    requests. Any number of threads and loops may use it."""

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        name: str | None = None,
        aliases: Iterable[str] = ("jev-latest",),
        description: str = "",
        release_date: str | None = None,
        **decide: Unpack[DecideKeywords],
    ) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise ConfigError(f"{shown(engine)} is not an Engine or an AsyncEngine")
        self._engine = engine
        self._own, options = split_options(decide, Decide)
        if options is not None:
            raise ConfigError("options of one request are given with the request: answer(request, priority=...)")
        self._name = name
        self._aliases = frozenset(aliases)
        self._description = description
        self._release_date = release_date

    @property
    def name(self) -> str:
        return self._name or self._engine.model_info.path.name

    # -------------------------------------------------------------- the two forms, synchronous and not

    def answer(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """The body that answers ``request``, the body of ``POST /v1/systemone``. Raises ``SystemOneError`` for a bad
        request, and what the engine raises for any other reason."""
        return self._run(self._systemone(request), keywords)

    async def aanswer(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """As ``answer``, in an event loop."""
        return await self._arun(self._systemone(request), keywords)

    def decisions(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """The body that answers ``request``, the body of OpenAI's ``POST /v1/decisions``. Raises as ``answer``."""
        return self._run(self._openai(request), keywords)

    async def adecisions(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """As ``decisions``, in an event loop."""
        return await self._arun(self._openai(request), keywords)

    def models(self) -> dict[str, Any]:
        """The body of ``GET /v1/models``. The date is that of the model's ``config.json``, unless it was given."""
        date = self._release_date
        if date is None:
            changed = (self._engine.model_info.path / "config.json").stat().st_mtime
            date = datetime.fromtimestamp(changed, timezone.utc).strftime("%Y-%m-%d")
        names = [self.name, *sorted(self._aliases - {self.name})]
        about = self._description or f"{self.name}, served by Prelude"
        return {"models": [{"name": name, "description": about, "release_date": date} for name in names]}

    # -------------------------------------------------------------- between a body and tasks

    def _systemone(self, request: Any) -> Work:
        parsed = parse(request)
        self._check_model(request.get("model"))
        parts = yield from self._answered(parsed)
        answers = [answer for part in parts for answer in part]
        body = {
            "model": self.name,
            "answers": {
                name: answer_body(question, answer)
                for name, question, answer in zip(parsed.names, parsed.raw, answers)
            },
            "usage": usage_of(parts),
        }
        truncated = sum(part.stats.truncated_tokens for part in parts)
        return {**body, "x_truncated_tokens": truncated} if truncated else body

    def _openai(self, request: Any) -> Work:
        parsed, asked = parse_openai(request)
        self._check_model(request.get("model"))
        try:
            parts = yield from self._answered(parsed)
        except SystemOneError as error:
            raise relocated(error) from error
        return openai_body(self.name, asked, parts)

    def _check_model(self, model: Any) -> None:
        if model is None or model in (self.name, *self._aliases):
            return
        known = ", ".join([self.name, *sorted(self._aliases)])
        raise SystemOneError(
            [fault(("model",), f"there is no model {shown(model)}; there is {known}", "value_error")],
            status=404 if isinstance(model, str) else 422,
            error_type="not_found_error" if isinstance(model, str) else None,
        )

    def _answered(self, parsed: Parsed) -> Generator[list[Decide], list[Any], list[Answers]]:
        """The answers of all questions, in parts that fit: what is too large is halved down to one question."""
        waiting: list[tuple[int, Sequence[Question]]] = [(0, parsed.questions)]
        done: dict[int, Answers] = {}
        while waiting:
            results = yield [Decide(parsed.state, part, **self._own) for _, part in waiting]
            smaller: list[tuple[int, Sequence[Question]]] = []
            for (first, part), result in zip(waiting, results):
                if isinstance(result, RequestTooLarge) and len(part) > 1 and result.field in ("state", "questions"):
                    half = len(part) // 2
                    smaller += [(first, part[:half]), (first + half, part[half:])]
                elif isinstance(result, InvalidRequest):
                    raise located(result, parsed.names[first:], parsed.raw[first:]) from result
                elif isinstance(result, Exception):
                    raise result
                else:
                    done[first] = result
            waiting = smaller
        return [done[first] for first in sorted(done)]

    # -------------------------------------------------------------- running

    def _run(self, work: Work, keywords: Any) -> dict[str, Any]:
        engine = self._engine.engine if isinstance(self._engine, AsyncEngine) else self._engine
        try:
            tasks = next(work)
            while True:
                tasks = work.send(engine.run_many(tasks, return_exceptions=True, **keywords))
        except StopIteration as end:
            body: dict[str, Any] = end.value
            return body

    async def _arun(self, work: Work, keywords: Any) -> dict[str, Any]:
        if isinstance(self._engine, Engine):
            self._engine = AsyncEngine(self._engine)
        try:
            tasks = next(work)
            while True:
                tasks = work.send(await self._engine.run_many(tasks, return_exceptions=True, **keywords))
        except StopIteration as end:
            body: dict[str, Any] = end.value
            return body


__all__ = ["Answer", "SystemOne"]
