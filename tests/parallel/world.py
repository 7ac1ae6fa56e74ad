"""Real processes of torch.distributed on gloo, which meet through a file, so that no port is chosen.

The processes of a world stay for all of a module's tests: each job loads a model anew, in a group of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.threads import use_threads

_PRELOAD = ["prelude.api.engine", "prelude.loading.ranks", "prelude.cpu.executor", "tests.parallel.world"]

_WAIT = 4 * PATIENCE  # processes start, and load, beside those of other tests


class Failed(Exception):
    """The error of a rank: the name of its type, and its text."""

    def __init__(self, kind: str, said: str, trace: str) -> None:
        super().__init__(f"{kind}: {said}\n{trace}")
        self.kind, self.said, self.trace = kind, said, trace

    def __reduce__(self) -> Any:
        return Failed, (self.kind, self.said, self.trace)


class World:
    def __init__(self, size: int, meeting: Path, before: Callable[[], None] | None = None) -> None:
        """``before``: called in each process before its first job."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self.size = size
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(rank, size, str(meeting), there, before), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, model: Path, use: Callable[[Any], Any], configs: list[dict[str, Any]], **load: Any) -> list[Any]:
        """Of each rank: the result of ``use``, the number of steps that the rank served, or ``Failed``."""
        self.begin(model, use, configs, **load)
        return [self.end(rank) for rank in range(self.size)]

    def begin(self, model: Path, use: Callable[[Any], Any], configs: list[dict[str, Any]], **load: Any) -> None:
        for pipe, config in zip(self.pipes, configs):
            pipe.send((str(model), use, config, load))

    def end(self, rank: int) -> Any:
        assert self.pipes[rank].poll(_WAIT), f"rank {rank} does not end"
        return self.pipes[rank].recv()

    def answers(
        self, model: Path, use: Callable[[Any], Any], load: dict[str, Any] | None = None, **config: Any
    ) -> Any:
        """The result of ``use``; no rank failed."""
        config = {"tensor_parallel": self.size, **config}
        found = self.run(model, use, [config] * self.size, **(load or {}))
        for one in found:
            if isinstance(one, Failed):
                raise one
        assert len(set(found[1:])) == 1  # all ranks served the same steps
        return found[0]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join()


def _work(rank: int, size: int, meeting: str, jobs: Connection, before: Callable[[], None] | None) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch.distributed as dist

    use_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=_WAIT)
    )
    if before is not None:
        before()
    while True:
        try:
            job = jobs.recv()
        except (EOFError, OSError):
            os._exit(0)  # the test is over; other ranks may be gone already
        jobs.send(_done(rank, *job))


def _done(rank: int, model: str, use: Callable[[Any], Any], config: dict[str, Any], load: dict[str, Any]) -> Any:
    from prelude import Engine, EngineConfig, serve_rank

    try:
        made = EngineConfig().changed(**config)
        if rank:
            return serve_rank(model, config=made, **load)
        with Engine.from_pretrained(model, config=made, **load) as engine:
            found = use(engine)
            pickle.dumps(found)
            return found
    except BaseException as error:
        return Failed(type(error).__name__, str(error), traceback.format_exc())
