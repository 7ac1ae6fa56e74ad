"""Seen from outside: counters, timelines, events, Prometheus, logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prelude import AsyncEngine, EngineConfig, Event, SamplingParams, YesNo
from prelude.errors import DeadlineExceeded, ExecutionError, QueueFull
from tests import toy
from tests.scheduling.cores import Collect, chat, last_logprob, post, prompt
from tests.service import Fault, FaultyExecutor, run_steps, service_core, toy_service

ENGINE_COUNTERS = [
    "steps", "prefill_tokens", "decode_tokens", "lm_head_rows", "tokenizer_calls", "blocks_free", "blocks_used",
    "blocks_cached", "blocks_locked", "states_free", "states_used", "evictions", "preemptions", "prefix_hit_tokens",
    "deferrals", "graph_replays", "eager_steps", "peak_activation_bytes", "queued_requests", "queued_tokens",
    "rejected", "live_streams", "live_futures", "decode_state_objects", "streaming_objects", "gc_pauses",
]  # fmt: skip
REQUEST_COUNTERS = [
    "execution_class", "prompt_tokens", "cached_tokens", "computed_tokens", "deferred_ticks", "chunks",
    "preemptions", "queue_ms", "forward_ms", "detok_ms", "finish_reason", "truncated_tokens", "estimated_jct",
    "batch_size_seen",
]  # fmt: skip
NAMES = ("prompt", "accept", "tokenise", "schedule", "run", "sample", "append", "detokenise", "stream", "repeat")


def test_every_named_counter_is_there() -> None:
    engine = toy_service().engine
    stats = engine.stats()
    assert [name for name in ENGINE_COUNTERS if name not in stats] == []
    end = engine.run(chat(prompt(6, 1), 5))
    assert [name for name in REQUEST_COUNTERS if not hasattr(end.stats, name)] == []
    json.dumps(engine.stats())
    engine.close()


def test_counters_count_each_event() -> None:
    core = service_core(toy.ToyExecutor(num_blocks=24), queued=20)
    sink = Collect()
    shared = prompt(16, 1)
    post(core, last_logprob(shared), sink)
    core.step()
    talks = [post(core, chat(prompt(6, i), 12), sink) for i in range(3)]
    post(core, chat(shared, 4), sink)
    core.step()
    seen = core.snapshot()
    assert seen["live_futures"] == 4 and seen["running_requests"] == 4 and seen["queued_requests"] == 0
    assert seen["blocks_locked"] == 6, "the shared prefix but its last block, and a block of each other prompt"
    assert seen["blocks_free"] + seen["blocks_used"] + seen["blocks_cached"] == 24
    assert seen["decode_state_objects"] == 4 and seen["streaming_objects"] == 0
    for i in range(20):
        post(core, last_logprob(prompt(20, 50 + i)), sink)
    with pytest.raises(QueueFull):
        post(core, last_logprob(prompt(5, 99)), sink)
    waiting = core.snapshot()
    assert waiting["queued_requests"] == 20 and waiting["queued_tokens"] == 400
    core.cancel(talks[0])
    run_steps(core)
    end = core.snapshot()
    assert end["rejected"] == {"queued_requests": 1}
    assert end["finished"] == 24 and end["cancelled"] == 1 and end["live_futures"] == 0
    assert end["requests"] == {"oneshot": 21, "decode": 4} and end["evictions"] > 0


# ------------------------------------------------------------------ timelines
@pytest.mark.feature("N1")
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_the_ten_spans_of_one_request_in_order(checkpoint: Path, overlap: bool) -> None:
    async def main() -> None:
        config = EngineConfig(kv_bytes=1 << 22, overlap=overlap)
        async with AsyncEngine.from_pretrained(checkpoint, dtype="float32", config=config) as engine:
            params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
            done = await engine.complete("The harbour was quiet.", params, trace=True, request_id="r")
            spans = done.stats.timeline
            assert spans is not None
            first: dict[str, Any] = {}
            for span in spans:
                first.setdefault(span.name, span)
            assert list(first) == list(NAMES), "the path, in its order"
            path = [span for span in spans if span.name != "repeat"]
            assert all(a.end <= b.start + 1e-6 and a.start <= a.end for a, b in pairwise(path))
            names = [span.name for span in path]
            assert names.count("run") == names.count("sample") == names.count("append") == 6
            assert first["repeat"].start >= first["append"].end - 1e-6
            answers = await engine.decide("The harbour was quiet.", [YesNo("Is it?")], trace=True)
            short = [span.name for span in answers.stats.timeline or ()]
            assert short == list(NAMES[:-1]), "one step: nothing repeats"
            assert (await engine.complete("x", params)).stats.timeline is None
            assert [s.name for s in engine.engine.complete("x", params, trace=True).stats.timeline or ()][
                -1
            ] == "repeat"

    asyncio.run(main())


@pytest.mark.feature("N1")
@pytest.mark.parametrize("way", ["async", "sync", "one token"])
def test_a_stream_has_the_ten_spans_and_one_on_its_way_out_a_chunk(checkpoint: Path, way: str) -> None:
    async def main() -> None:
        config = EngineConfig(kv_bytes=1 << 22)
        async with AsyncEngine.from_pretrained(checkpoint, dtype="float32", config=config) as engine:
            tokens = 1 if way == "one token" else 6
            params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
            text = "The harbour was quiet."
            if way == "sync":
                chunks = await asyncio.to_thread(lambda: list(engine.engine.stream(text, params, trace=True)))
            else:
                chunks = [chunk async for chunk in engine.generate(text, params, trace=True)]
            spans = (chunks[-1].stats and chunks[-1].stats.timeline) or ()
            first: dict[str, Any] = {}
            for span in sorted(spans, key=lambda span: span.start):
                first.setdefault(span.name, span)
            names = [span.name for span in spans]
            if way == "one token":
                assert list(first) == list(NAMES[:-1]), "one step: nothing repeats"
                return
            assert set(names) == set(NAMES)
            path = [name for name in first if name != "repeat"]
            assert path == list(NAMES[:-1]), "the path, in its order"
            assert names.count("run") == names.count("sample") == names.count("append") == 6
            assert names.count("detokenise") == 7, "one a token, and the held-back text at the end"
            assert names.count("stream") == len(chunks)
            for name in ("append", "detokenise"):
                mine = [span for span in spans if span.name == name]
                assert all(a.end <= b.start + 1e-6 for a, b in pairwise(mine))
            assert all(span.start <= span.end for span in spans)
            assert first["detokenise"].end <= first["stream"].start + 1e-3
            untraced = [chunk async for chunk in engine.generate(text, params)]
            assert untraced[-1].stats is not None and untraced[-1].stats.timeline is None

    asyncio.run(main())


# ------------------------------------------------------------------ events
def test_events_tell_a_requests_life() -> None:
    core = service_core(FaultyExecutor(Fault("raise", "wait", 2), num_blocks=64), queued=3)
    heard: list[Event] = []
    remove = core.events.add(heard.append)
    sink = Collect()
    post(core, chat(prompt(6, 1), 5), sink, request_id="a")
    gone = post(core, chat(prompt(6, 2), 5), sink, request_id="b")
    core.step()
    core.cancel(gone)
    run_steps(core)
    mine = [event.name for event in heard if event.request_id == "a"]
    assert mine == ["accepted", "scheduled", "first_token", "replayed", "finished"]
    assert [event.name for event in heard if event.request_id == "b"][-1] == "cancelled"
    steps = [event.data for event in heard if event.name == "step"]
    assert len(steps) == sum(core.stats.steps.values()) and all("seconds" in data for data in steps)
    assert [event.name for event in heard].count("step_failed") == 1
    with core.reserve(5) as places:
        assert places.left == 3
    assert (heard[-1].name, heard[-1].data["count"]) == ("rejected", core.snapshot()["rejected"]["queued_requests"])
    count = len(heard)
    remove()
    post(core, chat(prompt(6, 1), 5), sink)
    run_steps(core)
    assert len(heard) == count


# ------------------------------------------------------------------ Prometheus and logs
def test_prometheus_reads_the_same_numbers() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from prelude.integrations.metrics import PrometheusMetrics

    engine = toy_service(service_core(FaultyExecutor(Fault("raise", "wait", 0)))).engine
    metrics = PrometheusMetrics(engine)
    with pytest.raises(ExecutionError):
        engine.run(last_logprob(prompt(6, 2)))
    for i in range(5):
        engine.run(chat(prompt(6, i), 7))
    engine.run(last_logprob(prompt(6, 1)))
    get = metrics.registry.get_sample_value
    assert get("prelude_finished_total") == 6
    assert get("prelude_requests_total", {"execution_class": "decode"}) == 5
    assert get("prelude_steps_total", {"kind": "decode"}) == engine.stats()["steps"]["decode"]
    assert get("prelude_blocks_free") == engine.stats()["blocks_free"]
    assert get("prelude_healthy") == 1
    assert get("prelude_rejected_total", {"reason": "deadline"}) == 0, "a series before the first rejection"
    for kind, count in (("decode", 5), ("oneshot", 1)):  # those that failed have no time
        assert get("prelude_request_seconds_count", {"execution_class": kind}) == count
    assert get("prelude_output_token_seconds_count", {"execution_class": "decode"}) == 5
    assert get("prelude_output_token_seconds_count", {"execution_class": "oneshot"}) is None
    assert b"prelude_queue_seconds_bucket" in prometheus.generate_latest(metrics.registry)
    own = prometheus.CollectorRegistry()
    second = PrometheusMetrics(engine, own, prefix="mine")
    assert second.registry is own and own.get_sample_value("mine_finished_total") == 6
    metrics.close()
    metrics.close()
    second.close()
    assert prometheus.generate_latest(own) == b""
    engine.close()


def test_prometheus_is_imported_only_when_asked_for() -> None:
    import subprocess
    import sys

    code = "import sys, prelude.integrations.metrics, prelude.api.engine; print('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_logs_are_lines_of_json_with_the_requests_label() -> None:
    from prelude.integrations.metrics import json_handler, log_requests

    out = io.StringIO()
    handler = json_handler(out)
    logger = logging.getLogger("prelude")
    logger.addHandler(handler)
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.INFO)
    try:
        engine = toy_service(service_core(FaultyExecutor(Fault("raise", "wait", 0)))).engine
        log_requests(engine)
        with pytest.raises(Exception, match="injected"):
            engine.run(last_logprob(prompt(5, 1)), request_id="r-1")
        engine.run(last_logprob(prompt(5, 1)), request_id="r-2")
        with pytest.raises(DeadlineExceeded):
            engine.run(last_logprob(prompt(5, 1)), deadline=0)
        engine.close()
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
        logger.setLevel(level)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    step = next(line for line in lines if line.get("event") == "step_failed")
    assert step["request_ids"] == ["r-1"] and "RuntimeError" in step["exception"]
    ends = {line["request_id"]: line for line in lines if line["logger"] == "prelude.requests"}
    assert not {"args", "msg", "levelname"} & ends["r-2"].keys()
    assert ends["r-1"]["event"] == "failed" and ends["r-1"]["level"] == "WARNING"
    assert ends["r-2"]["event"] == "finished" and ends["r-2"]["prompt_tokens"] == 5
