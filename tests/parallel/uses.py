"""The tests' uses of an engine, in any process. Results are plain values."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np

from prelude import (
    Choice,
    Decide,
    Embed,
    Generate,
    Loglikelihood,
    PreludeError,
    PromptLogprobs,
    SamplingParams,
    YesNo,
)
from tests.patience import until

RUBRIC = "Judge the text by these rules. " + " ".join(f"Rule {i}: mind the {i}th word." for i in range(8))
LABELS = ["harbour", "harbour master", "city"]
IDS = [17, 5, 101, 7, 60, 33, 2, 90, 41]


def decision(i: int, **more: Any) -> Decide:
    return Decide(
        f"{RUBRIC}\n\nboats lay at the quay on day {i}", [Choice("Where?", LABELS), YesNo("Polite?")], **more
    )


def numbers(engine: Any, labels: bool = True) -> dict[str, Any]:
    """Token ids and numbers of every readout that a decoder has."""
    greedy = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=4)
    drawn = SamplingParams(
        max_tokens=6,
        temperature=0.9,
        seed=11,
        top_k=40,
        top_p=0.95,
        ignore_eos=True,
        repetition_penalty=1.2,
        logit_bias={9: 1.5, 150: 2.0},
    )
    tasks = [
        Generate(IDS, greedy), Generate(IDS, drawn), Loglikelihood(IDS, [3, 200, 9]), Embed(IDS * 5, pooling="mean"),
        PromptLogprobs(IDS, top=5), *([decision(0), decision(1)] if labels else []),
        Generate(IDS, SamplingParams(max_tokens=1, temperature=0)),
    ]  # fmt: skip
    found = engine.run_many(tasks)
    again = engine.run(decision(2)) if labels else None  # the rubric is cached now
    written, sampled, likely, vector, prompt = found[:5]
    said = {
        "tokens": [written.token_ids, sampled.token_ids, found[-1].token_ids],
        "logprobs": [one.logprob for one in written.logprobs],
        "best": [[(t, p) for t, p in one.top] for one in written.logprobs], "likely": likely.token_logprobs.tolist(),
        "vector": np.asarray(vector).tolist(), "ranks": [one.rank for one in prompt],
        "prompt": [one.logprob for one in prompt][1:], "greedy": likely.is_greedy,
    }  # fmt: skip
    if again is not None:
        said["decided"] = [[dict(answer.logprobs) for answer in answers] for answers in (*found[5:7], again)]
        said["cached"] = again.stats.cached_tokens
    return said


def bits(engine: Any) -> dict[str, Any]:
    """Answers alone, together and from the cache, with all their bits."""

    def of(answers: Any) -> list[tuple[float, ...]]:
        return [tuple(answer.logprobs.values()) for answer in answers]

    tasks = [decision(i, cache="never") for i in range(5)]
    params = SamplingParams(max_tokens=4, temperature=0.8, seed=5, ignore_eos=True, logprobs=2)
    alone = [of(engine.run(task)) for task in tasks]
    text = engine.run(Generate(IDS, params))
    together = engine.run_many([*tasks, Generate(IDS, params), *(Embed(IDS * n, pooling="mean") for n in (3, 11))])
    engine.run(decision(7))
    cached = [of(answers) for answers in engine.run_many([decision(i) for i in range(5)])]
    return {
        "alone": alone,
        "together": [of(answers) for answers in together[:5]],
        "cached": cached,
        "texts": [text.logprobs == together[5].logprobs, text.token_ids == together[5].token_ids],
        "hits": engine.stats()["prefix_hit_tokens"],
    }


def texts(engine: Any) -> list[list[int]]:
    """Steps overlap: a decode row names its token before the host has it."""
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    return [text.token_ids for text in engine.run_many([Generate([*IDS, i], params) for i in range(3)])]


def own_bytes(engine: Any) -> tuple[int, int]:
    return engine.model_info.weight_bytes, engine.model_info.kv_tokens


def killed(engine: Any, victim: int) -> dict[str, Any]:
    """Process ``victim`` is killed in the middle of texts; the engine is asked on."""
    params = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
    texts: list[Any] = []
    many = [Generate([*IDS, i], params) for i in range(3)]
    beside = threading.Thread(target=lambda: texts.extend(engine.run_many(many, return_exceptions=True)))
    beside.start()
    stream = engine.generate(IDS, params)
    for _ in range(3):
        next(stream)
    os.kill(victim, signal.SIGKILL)
    errors = texts
    for task in (None, decision(0), Generate(IDS, params)):
        try:
            if task is None:
                for _ in stream:
                    pass
            else:
                engine.run(task)
        except PreludeError as error:
            errors.append(error)
    beside.join()
    health = engine.health()
    return {"errors": [type(error).__name__ for error in errors], "ok": health.ok, "reason": health.reason}


def idle(engine: Any, victim: int, how: int) -> dict[str, Any]:
    """Process ``victim`` gets the signal ``how`` while the engine has nothing to do."""
    os.kill(victim, how)
    until(lambda: not engine.health().ok, "the loss is not noticed")
    try:
        engine.run(decision(1))
    except PreludeError as error:
        return {"reason": engine.health().reason, "error": type(error).__name__}
    return {}


def dies(engine: Any) -> None:
    engine.run(decision(0))
    os.kill(os.getpid(), signal.SIGKILL)
