"""Metrics and logs of an engine: a Prometheus collector, and logs as JSON lines.

    metrics = PrometheusMetrics(engine)            needs prometheus_client: pip install 'prelude-engine[metrics]'
    logging.getLogger("prelude").addHandler(json_handler())

The library opens no port; the service serves ``metrics.registry``.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from prelude.api.engine import AsyncEngine, Engine
from prelude.records import fields
from prelude.results import RequestStats
from prelude.runtime.events import Event
from prelude.runtime.stats import EngineStats


def _texts(kind: str) -> dict[str, str]:
    """Return the help texts of the counters, or of the gauges, by the names of ``stats()``."""
    return {one.name: one.metadata[kind] for one in fields(EngineStats) if kind in one.metadata}


_COUNTERS, _GAUGES = _texts("counter"), _texts("gauge")
_LABELLED = {"requests": "execution_class", "rejected": "reason", "steps": "kind", "eager_reasons": "reason"}
_REJECTED = ("queued_requests", "queued_tokens", "deadline")  # each has a series before the first rejection
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PrometheusMetrics:
    """Registers a collector that reads ``engine.stats()`` when it is scraped, and histograms of times per request.

    ``registry`` defaults to a new one (``.registry``). ``close`` unregisters it.
    """

    def __init__(self, engine: Engine | AsyncEngine, registry: Any = None, *, prefix: str = "prelude") -> None:
        try:
            from prometheus_client import CollectorRegistry, Histogram
        except ImportError as error:
            raise ImportError(
                "PrometheusMetrics needs prometheus_client: pip install 'prelude-engine[metrics]'"
            ) from error
        self.registry = CollectorRegistry() if registry is None else registry
        self._engine = engine
        self._prefix = prefix

        def histogram(name: str, text: str) -> Any:
            return Histogram(
                f"{prefix}_{name}_seconds", text, ["execution_class"], registry=self.registry, buckets=_SECONDS
            )

        self._queue = histogram("queue", "from the inbox to the first step")
        self._first = histogram("first_token", "from the inbox to the first token, or the answer")
        self._total = histogram("request", "from the inbox to the end")
        self._per_token = histogram("output_token", "between a chat's tokens, on average")
        self.registry.register(self)
        self._remove: Callable[[], None] | None = engine.on_event(self._heard)

    def close(self) -> None:
        if self._remove is None:
            return
        self._remove()
        self._remove = None
        for collector in (self, self._queue, self._first, self._total, self._per_token):
            self.registry.unregister(collector)

    def _heard(self, event: Event) -> None:
        stats = event.data.get("stats")
        if event.name != "finished" or not isinstance(stats, RequestStats):
            return
        kind = stats.execution_class
        self._queue.labels(kind).observe(stats.queue_ms / 1e3)
        self._first.labels(kind).observe(stats.ttft_ms / 1e3)
        self._total.labels(kind).observe(stats.total_ms / 1e3)
        tokens = event.data.get("output_tokens", 0)
        if tokens > 1:
            self._per_token.labels(kind).observe((stats.total_ms - stats.ttft_ms) / 1e3 / (tokens - 1))

    def describe(self) -> Iterator[Any]:
        return iter(())  # registering computes no statistics

    def collect(self) -> Iterator[Any]:
        """Called by the registry at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._engine.stats()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"{self._prefix}_{name}", text, value=stats[name])
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"{self._prefix}_{name}", text, value=stats[name])
        for name, label in _LABELLED.items():
            family = CounterMetricFamily(f"{self._prefix}_{name}", f"{name} by {label}", labels=[label])
            first = dict.fromkeys(_REJECTED if name == "rejected" else (), 0)
            for value, count in {**first, **stats[name]}.items():
                family.add_metric([value], count)
            yield family
        pauses = stats["gc_pauses"]
        yield CounterMetricFamily(f"{self._prefix}_gc_pauses", "garbage collections", value=pauses["count"])
        yield CounterMetricFamily(
            f"{self._prefix}_gc_pause_seconds", "seconds of garbage collections", value=pauses["total_ms"] / 1e3
        )
        yield GaugeMetricFamily(
            f"{self._prefix}_healthy", "1 while the engine is healthy", value=self._engine.health().ok
        )


# ------------------------------------------------------------------ logs

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and every extra field of the record."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({name: value for name, value in vars(record).items() if name not in _PLAIN})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def json_handler(stream: TextIO | None = None) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter())
    return handler


def log_requests(engine: Engine | AsyncEngine, logger: logging.Logger | None = None) -> Any:
    """Logs the end of every request: its label and counters in the message, and as extra fields for ``json_handler``.
    Returns a function that stops it."""
    logger = logger or logging.getLogger("prelude.requests")

    def heard(event: Event) -> None:
        stats = event.data.get("stats")
        if not isinstance(stats, RequestStats):
            return
        level = logging.INFO if event.name in ("finished", "cancelled") else logging.WARNING
        extra = {
            "event": event.name,
            "request_id": event.request_id,
            "execution_class": stats.execution_class,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "queue_ms": round(stats.queue_ms, 3),
            "total_ms": round(stats.total_ms, 3),
            "error": event.data.get("error"),
        }
        logger.log(
            level,
            "request %s %s: %s, %d prompt tokens (%d cached), %.1f ms in the queue, %.1f ms in all%s",
            event.request_id or "without a request_id",
            event.name,
            stats.execution_class,
            stats.prompt_tokens,
            stats.cached_tokens,
            stats.queue_ms,
            stats.total_ms,
            f"; {extra['error']}" if extra["error"] else "",
            extra=extra,
        )

    return engine.on_event(heard)
