"""SystemOne: requests to decisions and answers to bodies, over an engine of either kind.

A request of more questions than one step holds becomes several decisions about the same state, run together: which
questions share a step changes no answer in deterministic mode, and the last bits otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from prelude.admission.fitted import apart
from prelude.api.compound import Steps, adrive, drive
from prelude.api.engine import AsyncEngine, Engine, Engines
from prelude.api.verbs import DecideKeywords, RequestKeywords, split_options
from prelude.errors import ConfigError, InvalidRequest, RequestTooLarge, shown
from prelude.fitting.question import FittedQuestion
from prelude.results import Answers
from prelude.systemone.errors import SystemOneError, fault, located
from prelude.systemone.openai import openai_body, parse_openai, relocated
from prelude.systemone.request import Parsed, answer_bodies, parse, usage_of
from prelude.tasks import Decide
from prelude.values.options import RequestOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Yields the tasks to run together next, is sent their results with errors as values, and returns the body.
Part: TypeAlias = tuple[tuple[int, ...], Answers]  # the numbers of its questions
Work: TypeAlias = Generator[list[Decide], list[Any], dict[str, Any]]


class SystemOne:
    """One model under the System One protocol. ``name`` is its name in bodies (its directory's name by default);
    requests may ask for it, for one of ``aliases``, or for no model. Further keywords are those of ``decide``
    (``orders``, ``truncation``, ``template``, ``cache``, ``salt``, ``length_norm``, ``mass``) and hold for all
    requests. ``fitted``: questions that a question of a request may name in its field ``x_fitted``. Any number of
    threads and loops may use it."""

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        name: str | None = None,
        aliases: Iterable[str] = ("jev-latest",),
        description: str = "",
        release_date: str | None = None,
        fitted: Iterable[FittedQuestion] = (),
        **decide: Unpack[DecideKeywords],
    ) -> None:
        self._engines = Engines(engine)
        own, options = split_options(decide, Decide)
        self._model = Decide("", (), **own)
        self._fitted = {one.name: one for one in fitted}
        if options is not None:
            raise ConfigError("options of one request are given with the request: answer(request, priority=...)")
        self._name = name
        self._aliases = frozenset(aliases)
        self._description = description
        self._release_date = release_date

    @property
    def name(self) -> str:
        if self._name is None:
            self._name = self._engines.sync.model_info.path.name
        return self._name

    # -------------------------------------------------------------- the two forms, synchronous and not

    def answer(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """The body that answers ``request``, the body of ``POST /v1/systemone``. Raises ``SystemOneError`` for a bad
        request, and the engine's own errors for any other reason."""
        return self._run([self._systemone(request)], keywords)[0]

    async def aanswer(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """Run ``answer`` in an event loop."""
        return (await self._arun([self._systemone(request)], keywords))[0]

    def answer_many(self, requests: Sequence[Any], **keywords: Unpack[RequestKeywords]) -> list[dict[str, Any]]:
        """The bodies that answer ``requests``, run together. The first request that is wrong raises its error."""
        return self._run([self._systemone(request) for request in requests], keywords)

    async def aanswer_many(
        self, requests: Sequence[Any], **keywords: Unpack[RequestKeywords]
    ) -> list[dict[str, Any]]:
        """Run ``answer_many`` in an event loop."""
        return await self._arun([self._systemone(request) for request in requests], keywords)

    def decisions(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """The body that answers ``request``, the body of OpenAI's ``POST /v1/decisions``. Raises as ``answer``."""
        return self._run([self._openai(request)], keywords)[0]

    async def adecisions(self, request: Any, **keywords: Unpack[RequestKeywords]) -> dict[str, Any]:
        """Run ``decisions`` in an event loop."""
        return (await self._arun([self._openai(request)], keywords))[0]

    def models(self) -> dict[str, Any]:
        """Return the body of ``GET /v1/models``. The date is that of the model's ``config.json``, or of the file that
        the model is, unless it was given."""
        date = self._release_date
        if date is None:
            path = self._engines.sync.model_info.path
            changed = (path / "config.json" if path.is_dir() else path).stat().st_mtime
            date = datetime.fromtimestamp(changed, timezone.utc).strftime("%Y-%m-%d")
        names = [self.name, *sorted(self._aliases - {self.name})]
        about = self._description or f"{self.name}, served by Prelude"
        return {"models": [{"name": name, "description": about, "release_date": date} for name in names]}

    # -------------------------------------------------------------- between a body and tasks

    def _systemone(self, request: Any) -> Work:
        parsed = parse(request, self._fitted)
        self._check_model(request.get("model"))
        parts = yield from self._answered(parsed, self._model)
        answers = {at: answer for numbers, part in parts for at, answer in zip(numbers, part)}
        usage, truncated = usage_of([part for _, part in parts])
        body: dict[str, Any] = {
            "model": self.name,
            "answers": answer_bodies(parsed.names, parsed.raw, [answers[at] for at in range(len(answers))]),
            "usage": usage,
        }
        if truncated:
            body["x_truncated_tokens"] = truncated
        return body

    def _openai(self, request: Any) -> Work:
        parsed, asked, keywords = parse_openai(request)
        self._check_model(request.get("model"))
        if "salt" in keywords:
            keywords["salt"] = _joined(self._model.salt, keywords["salt"])
        try:
            parts = yield from self._answered(parsed, replace(self._model, **keywords))
        except SystemOneError as error:
            raise relocated(error, parsed.raw) from error
        return openai_body(self.name, asked, [part for _, part in parts])

    def _check_model(self, model: Any) -> None:
        if model is None or model in (self.name, *self._aliases):
            return
        known = ", ".join([self.name, *sorted(self._aliases)])
        raise SystemOneError(
            [fault(("model",), f"there is no model {shown(model)}; there is {known}", "value_error")],
            status=404 if isinstance(model, str) else 422,
            error_type="not_found_error" if isinstance(model, str) else None,
        )

    def _answered(self, parsed: Parsed, model: Decide) -> Generator[list[Decide], list[Any], list[Part]]:
        """The answers of all questions, in parts that fit: a part that is too large is halved, down to one question.
        Fitted questions are a part of their own."""
        settings, questions = replace(model, state=parsed.state), parsed.questions
        waiting = apart(settings, questions, range(len(questions)))
        done: list[Part] = []
        while waiting:
            results = yield [task for _, task in waiting]
            smaller: list[tuple[tuple[int, ...], Decide]] = []
            for (numbers, _), result in zip(waiting, results):
                large = isinstance(result, RequestTooLarge) and result.field in ("state", "questions")
                if large and len(numbers) > 1:
                    half = len(numbers) // 2
                    for part in (numbers[:half], numbers[half:]):
                        smaller += apart(settings, questions, part)
                elif isinstance(result, InvalidRequest):
                    names = [parsed.names[at] for at in numbers]
                    raise located(result, names, [parsed.raw[at] for at in numbers]) from result
                elif isinstance(result, Exception):
                    raise result
                else:
                    done.append((numbers, result))
            waiting = smaller
        return sorted(done, key=lambda part: part[0])

    # -------------------------------------------------------------- running

    def _run(self, works: Sequence[Work], keywords: RequestKeywords) -> list[dict[str, Any]]:
        run_many = partial(self._engines.sync.run_many, return_exceptions=True)
        bodies: list[dict[str, Any]] = drive(_together(works), _options(keywords), run_many)
        return bodies

    async def _arun(self, works: Sequence[Work], keywords: RequestKeywords) -> list[dict[str, Any]]:
        run_many = partial(self._engines.awaited.run_many, return_exceptions=True)
        bodies: list[dict[str, Any]] = await adrive(_together(works), _options(keywords), run_many)
        return bodies


def system_one(given: Any, **options: Any) -> SystemOne:
    """Return ``given`` if it is one already, such as a traced one, else one over an engine of either kind."""
    if not isinstance(given, SystemOne):
        return SystemOne(given, **options)
    if options:
        raise ConfigError(f"{', '.join(options)}: options of a SystemOne are given where it is made")
    return given


def _joined(salt: str | None, key: str) -> str:
    """A salt of 64 characters that separates each pair of a service's salt and a request's key from all others."""
    return hashlib.sha256(json.dumps([salt, key]).encode()).hexdigest()


def _options(keywords: RequestKeywords) -> RequestOptions | None:
    return RequestOptions(**keywords) if keywords else None


def _together(works: Sequence[Work]) -> Steps:
    """Several requests at the same time: yields their next tasks, all together; returns their bodies."""
    bodies: list[dict[str, Any]] = [{}] * len(works)
    running = [(at, work, next(work)) for at, work in enumerate(works)]
    while running:
        results = yield [task for _, _, tasks in running for task in tasks]
        asked, running, first = running, [], 0
        for at, work, tasks in asked:
            part, first = results[first : first + len(tasks)], first + len(tasks)
            try:
                running.append((at, work, work.send(part)))
            except StopIteration as end:
                bodies[at] = end.value
    return bodies
