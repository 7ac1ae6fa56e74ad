"""OpenTelemetry: a span of OpenInference's kind DECISION for every decision request.

    one = TracedSystemOne(engine, content=True)
    one.answer({...})                       # or in the place of an engine: PreludeModel(one), Transport(one)

The attributes are ``decision.*`` of OpenInference: model, system (the form of the request), provider and token
counts, and with ``content=True`` the request and the answer as JSON. The current span of the caller's thread or task
is the parent. pip install 'prelude-engine[opentelemetry]'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span, Status, StatusCode

from prelude import __version__
from prelude.errors import shown
from prelude.systemone import SystemOne

_JSON = "application/json"


class TracedSystemOne(SystemOne):
    """``SystemOne`` with a span around each request. ``tracer_provider``: the global one if it is not given.
    ``content``: whether spans hold questions and answers; these may be private, so the default is no."""

    def __init__(
        self,
        engine: Any,
        *,
        tracer_provider: Any = None,
        content: bool = False,
        provider: str = "prelude",
        **options: Any,
    ) -> None:
        super().__init__(engine, **options)
        self._tracer = trace.get_tracer("prelude", __version__, tracer_provider=tracer_provider)
        self._content = content
        self._provider = provider

    def answer(self, request: Any, **keywords: Any) -> dict[str, Any]:
        with self._span(request, "typesafe") as span:
            return self._told(span, super().answer(request, **keywords))

    async def aanswer(self, request: Any, **keywords: Any) -> dict[str, Any]:
        with self._span(request, "typesafe") as span:
            return self._told(span, await super().aanswer(request, **keywords))

    def answer_many(self, requests: Sequence[Any], **keywords: Any) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            spans = self._spans(requests, stack)
            return [*map(self._told, spans, super().answer_many(requests, **keywords))]

    async def aanswer_many(self, requests: Sequence[Any], **keywords: Any) -> list[dict[str, Any]]:
        with ExitStack() as stack:
            spans = self._spans(requests, stack)
            return [*map(self._told, spans, await super().aanswer_many(requests, **keywords))]

    def decisions(self, request: Any, **keywords: Any) -> dict[str, Any]:
        with self._span(request, "openai") as span:
            return self._told(span, super().decisions(request, **keywords))

    async def adecisions(self, request: Any, **keywords: Any) -> dict[str, Any]:
        with self._span(request, "openai") as span:
            return self._told(span, await super().adecisions(request, **keywords))

    def _spans(self, requests: Sequence[Any], stack: ExitStack) -> list[Span]:
        parent = get_current()
        return [stack.enter_context(self._span(request, "typesafe", parent)) for request in requests]

    @contextmanager
    def _span(self, request: Any, system: str, parent: Context | None = None) -> Iterator[Span]:
        attributes = {
            "openinference.span.kind": "DECISION",
            "decision.system": system,
            "decision.provider": self._provider,
            "decision.model_name": self.name,
        }
        asked = request.get("model") if isinstance(request, dict) else None
        if isinstance(asked, str):
            attributes["decision.request.model_name"] = asked
        if self._content:
            attributes |= {"input.value": _json(request), "input.mime_type": _JSON}
        with self._tracer.start_as_current_span(
            "decision", parent, attributes=attributes, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                raise

    def _told(self, span: Span, body: dict[str, Any]) -> dict[str, Any]:
        span.set_attribute("decision.response.model_name", body["model"])
        span.set_attribute("decision.token_count.input", body["usage"]["input_tokens"])
        span.set_attribute("decision.token_count.output", body["usage"]["output_tokens"])
        if self._content:
            span.set_attribute("output.value", _json(body))
            span.set_attribute("output.mime_type", _JSON)
        span.set_status(Status(StatusCode.OK))
        return body


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):  # no JSON: the request is refused behind this
        return shown(value)
