"""The loads of the first run. Keys are those of the published table; each figure is a median with its spread."""

from __future__ import annotations

import asyncio
import gc
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from prelude.cuda import weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from bench.gpu import chips
from bench.gpu.batches import draw, forest, greedy, labels
from bench.gpu.clients import chats, lone_requests, saturated
from bench.gpu.exactness import allowed_ulps, worst_error
from bench.gpu.models import MODELS, Floor, RandomSource, Reference, causal, save_checkpoint
from prelude import AsyncEngine, Engine, EngineConfig, default_model
from prelude.loading.cuda import attention_calls, probe_step
from prelude.readouts.batch import OneShotBatch


class NotRight(Exception):
    """A wrong answer, however fast."""


@dataclass
class Load:
    key: str
    unit: str
    values: list[float]
    floor: float | None = None
    reach: float | None = None
    paper: dict[str, float] = field(default_factory=dict)
    ok: bool | None = None
    """Of a check."""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    def plain(self) -> dict[str, Any]:
        return {key: x for key, x in {**asdict(self), "value": self.value}.items() if x is not None}


STATE = 8192
"""Tokens of the state that questions are asked about."""
READY = (sys.executable, "-m", "bench.gpu.ready")  # a process that serves the model of a folder


class Bench:
    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.attention = "FlashInfer"
        self.steps: list[dict[str, Any]] = []
        """Of each executor that was closed: how its steps ran."""
        self._open: list[Any] = []

    @cached_property
    def chip(self) -> chips.Chip:
        return chips.here()

    def floor(self, name: str) -> Floor:
        return Floor(MODELS[name], self.chip)

    def load(self, *figure: Any) -> Load:
        """``reach`` and ``paper`` are for one GPU, and left out on any other."""
        made = Load(*figure)
        return made if self.chip == chips.AIMED else replace(made, reach=None, paper={})

    # ------------------------------------------------------------------ measurements

    def executor(
        self, name: str, *, graphs: bool = True, float32: bool = False, deterministic: bool = False, **options: Any
    ) -> CudaExecutor:
        config = MODELS[name]
        device = self.device(name, torch.float32 if float32 else torch.bfloat16, deterministic=deterministic)
        source = RandomSource(config, "cuda", torch.bfloat16)
        with device.scope():
            loaded = weights.load(device, source, config.spec, config.max_positions)
        calls = attention_calls(config, device)
        if calls is None and not float32 and not deterministic:
            self.attention = "key lists"
        settings: dict[str, Any] = {"num_blocks": 4096, "step_tokens": 16_384, "step_rows": 512} | options
        settings["policy"] = GraphPolicy(enabled=graphs, at_once=True, search=True)
        executor = CudaExecutor(config, loaded, device, logits_chunk_rows=256, calls=calls, **settings)
        self._open.append(executor)
        return executor

    @staticmethod
    def search_large_steps(executor: CudaExecutor) -> None:
        """As ``engine.warmup()`` does it; no shape is recorded."""
        with executor.device.scope():
            executor.recorder.search_large_rows()

    def engine(self, executor: CudaExecutor) -> AsyncEngine:
        """An engine over the executor, with the packaged model's tokenizer: its ids are ids of any larger model."""
        from prelude.tokenizer import Tokenizer

        from prelude.admission.preparer import Preparer
        from prelude.runtime.assembly import make_core
        from prelude.runtime.core import EngineCore

        limits: dict[str, Any] = {"max_length": 4096, "max_running": 256, "chunk_tokens": 2048}
        config = EngineConfig().changed(max_step_tokens=executor.step_tokens, **limits)
        tokenizer = Tokenizer.from_file(str(default_model.path() / "tokenizer.json"))
        preparer = Preparer(tokenizer, executor.limits(), config)
        return AsyncEngine(Engine(make_core(EngineCore, executor, config), preparer, default_model.path()))

    def release(self) -> None:
        for executor in self._open:
            graphs, reasons = executor.graphs, executor.eager_reasons
            ran = {"replayed": graphs.replays, "eager": graphs.eager, "reasons": reasons}
            self.steps.append(ran | {"recorded": graphs.captures, "not_recorded": graphs.failures})
            executor.close()
        self._open.clear()
        gc.collect()  # an engine and its executor hold each other
        torch.cuda.empty_cache()

    def timed(self, work: Callable[[], Any], count: int = 1, repeats: int | None = None) -> list[float]:
        """Seconds of one of ``count`` calls, per repeat; the device is idle before and after."""
        for _ in range(3):
            work()
        found = []
        for _ in range(repeats or self.repeats):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                work()
            torch.cuda.synchronize()
            found.append((time.perf_counter() - began) / count)
        return found

    @staticmethod
    def device(name: str, element: torch.dtype, **options: Any) -> Any:
        from prelude.cuda.cuda_device import CudaDevice

        return CudaDevice(element, head_dim=MODELS[name].spec.attention.head_dim, **options)

    # ------------------------------------------------------------------ correctness

    def flashinfer(self) -> Iterator[Load]:
        """Its trial on the heads of each model. If it fails, the stages behind go without FlashInfer."""
        for name in ("06b", "4b"):
            device = self.device(name, torch.bfloat16, tune=False)
            began = time.perf_counter()
            attention_calls(MODELS[name], device, "flashinfer")
            yield Load(f"flashinfer_{name}.trial_s", "s", [time.perf_counter() - began])
            device.close()

    def correctness(self) -> Iterator[Load]:
        """Folds, chunks, hits and decode of every path against float32 over the same weights. A path
        that is wrong, or fails, hides no other: the errors come last."""
        wrong: list[str] = []
        for name, check in (
            ("float32", lambda: self._paths("float32", float32=True)),
            ("deterministic", lambda: self._paths("deterministic", deterministic=True)),
            ("eager", lambda: self._paths("eager", graphs=False)),
            ("captured", lambda: self._paths("captured")),
            ("06b", self._small),
        ):
            try:
                worst, allowed = check()
            except Exception as error:  # costs no other model and no other path
                traceback.print_exc()
                wrong.append(f"{name}: {type(error).__name__}: {error}")
                continue
            unit = "" if name == "float32" else "ulp"
            yield Load(f"correctness_{name}.worst", unit, [worst], ok=worst <= allowed)
            if not worst <= allowed:
                wrong.append(f"{name}: an error of {worst:.3g}, {allowed:.3g} is allowed")
        if wrong:
            raise NotRight("; ".join(wrong))

    def _paths(self, name: str, **options: Any) -> tuple[float, float]:
        """The error of one path over the tiny model, and how much is allowed."""
        reference = Reference(RandomSource(MODELS["tiny"], "cuda", torch.bfloat16))
        executor = self.executor("tiny", num_blocks=256, step_tokens=4096, **options)
        worst = max(worst_error(executor, reference, seed, exact=name == "float32") for seed in range(6))
        graphs = executor.graphs
        if name == "captured" and (not graphs.replays or graphs.failures):
            raise NotRight(f"{graphs.replays} steps were replayed, {graphs.failures} shapes not recorded")
        return worst, 1e-4 if name == "float32" else allowed_ulps(MODELS["tiny"])

    def _small(self) -> tuple[float, float]:
        """Likewise of the 0.6B model."""
        executor = self.executor("06b", num_blocks=64, step_tokens=2048)
        executor.wait(executor.submit(probe_step(executor)))
        reference = Reference(RandomSource(MODELS["06b"], "cuda", torch.bfloat16))
        return worst_error(executor, reference, 0, exact=False), allowed_ulps(MODELS["06b"])

    # ------------------------------------------------------------------ loads

    def oneshot(self) -> Iterator[Load]:
        """0.6B, prompts of exactly 128 tokens, one output token, alone."""
        floor = self.floor("06b").prefill(128, 1, causal(128)) * 1e3
        executor = self.executor("06b")
        engine = self.engine(executor)
        values = [v * 1e3 for v in asyncio.run(lone_requests(engine, 128, self.repeats, 60))]
        key, paper = "oneshot_06b_128in_1out_c1", {"prelude": 5.2, "vllm": 13.5, "sglang": 28.3}
        yield self.load(f"{key}.p50_ms", "ms", values, floor, 1.1, paper)
        batch = OneShotBatch(forest([(draw(0, 128), -1)]), greedy([127]))
        steps = [v * 1e3 for v in self.timed(lambda: executor.wait(executor.submit(batch)), 30)]
        yield Load(f"{key}.step_ms", "ms", steps, floor)
        self.release()

    def questions(self) -> Iterator[Load]:
        """64 questions of 8 tokens on one cold state, and the state's prefill alone, in turn: their quotient."""
        state = STATE
        executor = self.executor("06b")
        self.search_large_steps(executor)
        questions = [(draw(2 + i, 8), 0) for i in range(64)]
        ends = [state + 8 * i + 7 for i in range(64)]
        asked = OneShotBatch(forest([(draw(1, state), -1), *questions]), labels(ends, [11, 12]))
        alone = OneShotBatch(forest([(draw(1, state), -1)]), labels([state - 1], [11, 12]))
        both: tuple[list[float], list[float]] = ([], [])
        for _ in range(self.repeats):
            for batch, values in zip((asked, alone), both):  # side by side: the clocks change
                values.append(statistics.median(self.timed(lambda b=batch: executor.wait(executor.submit(b)), 3, 1)))
        pairs = causal(state) + 64 * (8 * state + causal(8))
        floor = self.floor("06b")
        floors = floor.prefill(state + 64 * 8, 64, pairs), floor.prefill(state, 1, causal(state))
        key = f"questions_06b_64x8_on_{state}"
        yield self.load(f"{key}.over_prefill", "x", [a / b for a, b in zip(*both)], 1.0, 1.1)
        for name, values, floor in zip(("batch_ms", "prefill_ms"), both, floors):
            yield Load(f"{key}.{name}", "ms", [v * 1e3 for v in values], floor * 1e3)
        self.release()

    def throughput(self) -> Iterator[Load]:
        """4B, 512 in, 1 out, with 96 in flight."""
        executor = self.executor("4b", num_blocks=2048)
        self.search_large_steps(executor)
        paper = {"prelude": 186.7, "vllm": 134.5, "sglang": 151.5}
        key, floor, engine = "oneshot_4b_512in_1out_c96.requests_s", 1 / self._request_of_4b(), self.engine(executor)
        for repeats in sorted({1, self.repeats}):  # one at first: a stage that is ended has a figure
            values = self._saturated(engine, repeats)
            yield self.load(key, "1/s", values, floor, 190.0, paper)
        self.release()

    def deterministic(self) -> Iterator[Load]:
        """4B, 512 in, 1 out, with 96 in flight: the rate of deterministic mode over that of the default."""
        key, floor = "deterministic_4b_512in_1out_c96", 1 / self._request_of_4b()
        executor = self.executor("4b", num_blocks=2048)
        self.search_large_steps(executor)
        default = self._saturated(self.engine(executor), 2, 2.0)
        yield Load(f"{key}_default.requests_s", "1/s", default, floor)
        self.release()
        engine = self.engine(self.executor("4b", num_blocks=2048, deterministic=True))
        for repeats in sorted({1, self.repeats}):
            rates = self._saturated(engine, repeats, 2.0)
            yield Load(f"{key}.requests_s", "1/s", rates, floor)
            quotients = [rate / statistics.median(default) for rate in rates]
            yield self.load(f"{key}.over_default", "x", quotients, 1.0, 0.95)
        self.release()

    def _request_of_4b(self) -> float:
        """The least seconds of a request of 512 tokens in, in steps of 16."""
        return self.floor("4b").prefill(512 * 16, 16, 16 * causal(512)) / 16

    def _saturated(self, engine: AsyncEngine, repeats: int, seconds: float = 4.0) -> list[float]:
        return asyncio.run(saturated(engine, 512, 96, repeats, seconds=seconds))

    def decode(self) -> Iterator[Load]:
        """0.6B, 128 in, 32 out, four in flight, with a decode step in flight."""
        floor = self.floor("06b").decode(4, 144)
        paper = {"prelude": 2.1, "vllm": 1.7, "sglang": 1.8}
        rates = {"prelude": 1474.0, "vllm": 1430.0, "sglang": 1177.0}
        executor = self.executor("06b")
        tpot, rate = asyncio.run(chats(self.engine(executor), 128, 32, 4, self.repeats))
        key, graphs = "decode_06b_128in_32out_c4", executor.graphs
        yield self.load(f"{key}.tpot_ms", "ms", [v * 1e3 for v in tpot], floor * 1e3, 0.75, paper)
        yield self.load(f"{key}.tokens_s", "1/s", rate, 4 / floor, 5000.0, rates)
        yield Load(f"{key}.replayed_share", "", [graphs.replays / max(1, graphs.replays + graphs.eager)])
        self.release()

    def ready(self) -> Iterator[Load]:
        """Seconds from the start of a process to its first answer, files cached."""
        folder = Path(tempfile.mkdtemp())
        try:
            save_checkpoint(MODELS["06b"], folder, "cuda")
            torch.cuda.empty_cache()
            values: list[float] = []
            for _ in range(self.repeats + 1):
                began = time.time()
                with subprocess.Popen([*READY, str(folder)], stdout=subprocess.PIPE, text=True) as process:
                    answered = [line for line in process.stdout or () if line.startswith("answered ")]
                if process.returncode or len(answered) != 1:
                    raise RuntimeError(f"the process ended with {process.returncode} and {len(answered)} answers")
                values.append(float(answered[0].split()[1]) - began)
                if len(values) > 1:  # each of them, for the next ones may take too long
                    yield self.load("ready_06b.first_answer_s", "s", values[1:], None, 2.0, {"prelude": 2.0})
        finally:
            shutil.rmtree(folder)
