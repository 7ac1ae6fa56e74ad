"""The stages of ``bench gpu_first`` over a simulated device and a small model.

    python -m tests.cuda.dry_run NAME --results FILE ...

The stage that ``PRELUDE_DRY_FAULT`` names fails a check of correctness behind its first result.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import torch
from prelude.cuda import weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from bench.gpu import chips, clients, exactness, loads, models, ready, stages
from bench.gpu.models import RandomSource, qwen3
from prelude import AsyncEngine
from tests.cuda.simulated import SimulatedCalls, SimulatedDevice
from tests.parallel import simulated_gpus
from tests.threads import use_threads

SMALL = qwen3(64, 1, 8, 512, head_dim=16, vocab=4096, positions=4096)


def executor(self: loads.Bench, name: str, *, graphs: bool = True, **options: Any) -> CudaExecutor:
    """In the place of ``Bench.executor``."""
    device = SimulatedDevice(torch.float32, deterministic=options.get("deterministic", False))
    with device.scope():
        loaded = weights.load(device, RandomSource(SMALL, "cpu", torch.bfloat16), SMALL.spec, 4096)
    heads = SMALL.spec.attention
    calls = SimulatedCalls(device, heads.heads, heads.kv_heads, heads.head_dim)
    policy = GraphPolicy(enabled=graphs, at_once=True)
    made = CudaExecutor(SMALL, loaded, device, num_blocks=300, step_tokens=4352, calls=calls, policy=policy)
    self._open.append(made)
    return made


def shortened(times: Any) -> Any:
    """A load with two texts, or a tenth of a second."""

    def run(engine: AsyncEngine, *sizes: Any, seconds: float = 0.0) -> Any:
        if times is clients.lone_requests:
            return times(engine, 16, 1, 2)
        return times(engine, 16, 2, 1, 0.1) if times is clients.saturated else times(engine, 12, 4, 2, 1)

    return run


def patch() -> None:
    simulated_gpus.install()  # for ``from_pretrained``
    loads.save_checkpoint = lambda config, folder, device: models.save_checkpoint(SMALL, folder)
    torch.cuda.empty_cache = lambda: None
    loads.MODELS = {name: SMALL for name in models.MODELS}
    loads.STATE = 256
    loads.READY = (sys.executable, "-m", "tests.cuda.dry_run", "answer")
    loads.Bench.chip = chips.H200
    loads.Bench.search_large_steps = staticmethod(lambda executor: None)
    loads.Bench.executor = executor
    loads.Bench.device = staticmethod(lambda name, element, **_: SimulatedDevice(element))
    loads.attention_calls = lambda *_: None
    loads.Bench.timed = lambda self, work, count=1, repeats=None: [float(work() is None) + 0.001]
    loads.RandomSource = lambda config, device, dtype: RandomSource(SMALL, "cpu", dtype)
    loads.probe_step = lambda big: loads.OneShotBatch(loads.forest([(loads.draw(0, 8), -1)]), loads.greedy([7]))
    loads.worst_error = lambda on, reference, seed, exact: exactness.worst_error(on, reference, seed, exact=True)
    loads.allowed_ulps = lambda config: 2.0
    loads.lone_requests = shortened(clients.lone_requests)
    loads.saturated = shortened(clients.saturated)
    loads.chats = shortened(clients.chats)
    torch.cuda.synchronize = lambda *given: None
    stages.GPU_TESTS, stages.TEST_MARK = "tests/cuda/test_refusals.py", "not gpu"  # tests that run here


def break_at(stage: type[stages.Stage]) -> None:
    """Makes the stage's first ``tell`` its last."""
    tell = stage.tell

    def once(self: stages.Stage, key: str, **values: Any) -> NoReturn:
        tell(self, key, **values)
        raise loads.NotRight("an error of 9")

    stage.tell = once


def main() -> int:
    use_threads(1)
    patch()
    if sys.argv[1] == "answer":
        del sys.argv[1]
        ready.main()
        return 0
    if sys.argv[1] == os.environ.get("PRELUDE_DRY_FAULT"):
        break_at(stages.Stage)
    return stages.main()


if __name__ == "__main__":
    stages.leave(main())
