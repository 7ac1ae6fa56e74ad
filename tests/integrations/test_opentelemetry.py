"""OpenInference spans of decisions, as an exporter of the real SDK receives them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from prelude import Engine
from prelude.errors import ConfigError, InvalidRequest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from prelude.integrations.opentelemetry import TracedSystemOne

REQUEST: dict[str, Any] = {
    "model": "jev-latest",
    "state": "I was charged twice.",
    "questions": {"refund": {"type": "noul", "instructions": "A refund?"}},
}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


def test_a_decision_is_one_span(engine: Engine, provider: Any, exporter: InMemorySpanExporter) -> None:
    one = TracedSystemOne(engine, tracer_provider=provider, name="packaged")
    body = one.answer(REQUEST)
    with provider.get_tracer("caller").start_as_current_span("outer"):
        asyncio.run(one.aanswer(REQUEST))
    first, second, outer = exporter.get_finished_spans()
    found = dict(first.attributes or {})
    assert found == {
        "openinference.span.kind": "DECISION", "decision.system": "typesafe", "decision.provider": "prelude",
        "decision.model_name": "packaged", "decision.request.model_name": "jev-latest",
        "decision.response.model_name": "packaged", "decision.token_count.input": body["usage"]["input_tokens"],
        "decision.token_count.output": 0,
    }  # fmt: skip
    assert second.parent is not None and second.parent.span_id == outer.context.span_id


def test_content_is_recorded_on_request_and_errors_are_marked(
    engine: Engine, provider: Any, exporter: InMemorySpanExporter
) -> None:
    one = TracedSystemOne(engine, tracer_provider=provider, content=True)
    body = one.answer(REQUEST)
    with pytest.raises(InvalidRequest):
        one.decisions({"input": "a", "questions": []})
    told, failed = exporter.get_finished_spans()
    assert json.loads(str((told.attributes or {})["input.value"])) == REQUEST
    assert json.loads(str((told.attributes or {})["output.value"])) == body
    assert told.status.is_ok and not failed.status.is_ok and failed.events[0].name == "exception"
    assert (failed.attributes or {})["decision.system"] == "openai"


def test_requests_that_run_together_have_a_span_each(
    engine: Engine, provider: Any, exporter: InMemorySpanExporter
) -> None:
    one = TracedSystemOne(engine, tracer_provider=provider)
    assert one.answer_many([REQUEST] * 2) == asyncio.run(one.aanswer_many([REQUEST] * 2))
    told = exporter.get_finished_spans()
    assert len(told) == 4 and all(span.status.is_ok and span.parent is None for span in told)
    assert {(span.attributes or {})["decision.model_name"] for span in told} == {one.name}


def test_a_request_that_is_no_json_is_refused_as_without_spans(
    engine: Engine, provider: Any, exporter: InMemorySpanExporter
) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    circle: dict[str, Any] = {"questions": {}}
    circle["state"] = circle
    one = TracedSystemOne(engine, tracer_provider=provider, content=True)
    for request in (deep, {"state": deep, "questions": {}}, {("a", 1): 1}, circle):
        with pytest.raises(InvalidRequest):
            one.answer(request)
    assert len(exporter.get_finished_spans()) == 4


def test_clients_take_a_traced_one(engine: Engine, provider: Any, exporter: InMemorySpanExporter) -> None:
    pytest.importorskip("dspy")
    from prelude.integrations.dspy import PreludeDecisions

    PreludeDecisions(TracedSystemOne(engine, tracer_provider=provider))("a", REQUEST["questions"])
    assert len(exporter.get_finished_spans()) == 1
    with pytest.raises(ConfigError, match="where it is made"):
        PreludeDecisions(TracedSystemOne(engine), name="other")
