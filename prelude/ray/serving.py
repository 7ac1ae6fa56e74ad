"""Ray Serve: an ``AsyncEngine`` in each replica, behind a router that knows their prefix caches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError

from prelude.api.engine import AsyncEngine
from prelude.bulk.batches import load_engine
from prelude.errors import ConfigError, DeadlineExceeded, QueueFull, shown
from prelude.integrations.affinity import Served, report
from prelude.tasks import TaskOf
from prelude.values.config import EngineConfig
from prelude.values.options import RequestOptions, merge_options

ROUTERS = {
    "prefix-affine": "prelude.ray.router:PrefixAffineRouter",
    "power-of-two": "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter",
    "round-robin": "ray.serve.experimental.round_robin_router:RoundRobinRouter",
}
ONGOING = 512  # requests that one replica may have at a time, waiting and running


class Replica:
    """The object in a replica's process. Tasks and results are Prelude's own, pickled by Ray.

        handle = serve.run(prelude.ray.deployment())
        answers = await handle.run.remote(Decide(text, questions), deadline=2.0)

    Cancelling the response (``response.cancel()``, or the task that awaits it) cancels the request in the engine.
    """

    def __init__(
        self,
        model: str | None = None,
        threads: int | None = None,
        config: EngineConfig | None = None,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        config = config or EngineConfig(max_queued_requests=ONGOING)
        self._most_queued = config.max_queued_requests
        engine = load_engine(model, threads, config, load or {})
        engine.warmup()
        self.engine = AsyncEngine(engine)
        self._served = Served()

    async def run(
        self, task: TaskOf[Any], options: RequestOptions | None = None, *, waited: float = 0.0, **keywords: Any
    ) -> Any:
        """The result of ``task``. ``options`` or its fields as keywords. A ``deadline`` counts from the call of the
        handle: ``waited``, which the router fills in, is taken off. Raises Serve's ``BackPressureError`` if the
        engine's queue is full, and Prelude's own errors."""
        [result] = await self._run([task], options, waited, keywords)
        if isinstance(result, Exception):
            raise result
        return result

    async def run_many(
        self,
        tasks: Sequence[TaskOf[Any]],
        options: RequestOptions | None = None,
        *,
        return_exceptions: bool = False,
        waited: float = 0.0,
        **keywords: Any,
    ) -> list[Any]:
        """Results in the order of ``tasks``, which all run in one replica: the one of the first task's prefix. If
        the queue is full all of them are refused, unless ``return_exceptions`` is set."""
        results = await self._run(list(tasks), options, waited, keywords)
        failed = next((one for one in results if isinstance(one, Exception)), None)
        if failed is not None and not return_exceptions:
            raise failed
        return results

    async def _run(
        self, tasks: list[Any], options: RequestOptions | None, waited: float, keywords: Mapping[str, Any]
    ) -> list[Any]:
        options = merge_options(options, keywords)
        if options.deadline is not None:
            if options.deadline <= waited:
                raise DeadlineExceeded(
                    f"deadline: {options.deadline} s; the request waited {waited:.3f} s for a replica"
                )
            options = replace(options, deadline=options.deadline - waited)
        results = await self.engine.run_many(tasks, options, return_exceptions=True, progress=False)
        for task, result in zip(tasks, results):
            if not isinstance(result, Exception):
                self._served.add(task)
        return [self._refused(one) if isinstance(one, QueueFull) else one for one in results]

    def _refused(self, error: QueueFull) -> BackPressureError:
        refused = BackPressureError(int(self.engine.stats()["queued_requests"]), self._most_queued)
        refused.__cause__ = error
        return refused

    async def record_routing_stats(self) -> dict[str, Any]:
        """Called by Serve from time to time; its router reads it. ``prefixes``: hashes of
        ``prelude.integrations.affinity``."""
        kept = self._served.kept()
        return {"prefixes": await asyncio.to_thread(report, kept, self.engine.engine)}

    async def stats(self) -> dict[str, Any]:
        """``Engine.stats`` of the replica that this call comes to."""
        return self.engine.stats()

    async def warm(self, tasks: Iterable[TaskOf[Any]]) -> None:
        """Runs ``tasks`` and drops their results, so that this replica has their prefixes."""
        await self._run(list(tasks), None, 0.0, {})

    def check_health(self) -> None:
        """Called by Serve, which replaces a replica that fails it three times."""
        health = self.engine.health()
        if not health.ok:
            raise RuntimeError(str(asdict(health)))

    def __del__(self) -> None:
        """Called by Serve when it stops the replica, after the requests under way."""
        if hasattr(self, "engine"):
            self.engine.engine.close(drain=False)


def deployment(
    model: str | None = None,
    *,
    replicas: int | None = 1,
    threads: int = 1,
    gpus: float = 0,
    config: EngineConfig | None = None,
    routing: str = "prefix-affine",
    routing_options: Mapping[str, Any] | None = None,
    stats_seconds: float = 5.0,
    load: Mapping[str, Any] | None = None,
    **serve_options: Any,
) -> serve.Application:
    """Return an application for ``serve.run``: ``replicas`` engines of ``model``.

    ``threads``          of each replica on the CPU, which are also the CPUs that Ray reserves for it
    ``config``           of each engine. ``max_queued_requests`` bounds its queue: beyond it a request is refused with
                         Serve's ``BackPressureError`` (HTTP 503)
    ``routing``          "prefix-affine", "power-of-two" (Serve's default) or "round-robin"
    ``routing_options``  of the router: ``slack``, ``least_load`` and ``trust_s`` of ``PrefixAffineRouter``
    ``stats_seconds``    time between two reports of a replica's cache to the routers
    ``load``             further keywords of ``Engine.from_pretrained``
    ``serve_options``    further options of ``serve.deployment``: ``name``, ``autoscaling_config``,
                         ``max_ongoing_requests`` (by default a little above the engine's queue, so that the engine
                         refuses and Serve does not hold requests back), ``max_queued_requests``, ...
    """
    if routing not in ROUTERS:
        raise ConfigError(f"routing={shown(routing)} is not one of {', '.join(ROUTERS)}")
    config = config or EngineConfig(max_queued_requests=ONGOING)
    options: dict[str, Any] = {
        "name": "prelude",
        "max_ongoing_requests": 2 * config.max_queued_requests,
        "ray_actor_options": {"num_cpus": threads, "num_gpus": gpus},
        "request_router_config": RequestRouterConfig(
            request_router_class=ROUTERS[routing],
            request_router_kwargs=dict(routing_options or {}),
            request_routing_stats_period_s=stats_seconds,
        ),
    }
    if "autoscaling_config" not in serve_options:
        options["num_replicas"] = replicas
    made = serve.deployment(Replica, **{**options, **serve_options})
    return made.bind(model, threads, config, dict(load or {}))
