"""The loads of ``bench gpu``. Keys are those of the published table; each figure is a median with its spread."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from prelude.cuda import weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from bench.gpu.batches import draw, forest, greedy, labels
from bench.gpu.clients import chat_beside_decisions, chats, lone_requests, saturated
from bench.gpu.exactness import LIMIT_ULPS, allowed_ulps, transformers_error, worst_error
from bench.gpu.models import MODELS, Floor, RandomSource, Reference, causal, save_checkpoint, transformers_model
from prelude import AsyncEngine, Engine, EngineConfig, Generate, SamplingParams, default_model
from prelude.batch import OneShotBatch
from prelude.execution.cuda import attention_calls, probe_step


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
    better: str = "lower"

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "value": self.value}


Ways: TypeAlias = "tuple[tuple[str, dict[str, Any]], ...]"
_WAYS: Ways = (
    ("", {}),
    ("_cublas", {"tune": False}),
    ("_eager", {"graphs": False}),
)
"""As it is served; with cuBLAS's own choice of algorithms; without graphs."""
VARIANTS: Ways = tuple(
    (f"_{prefill}{'_pdl' if pdl else ''}{'_search' if tune else ''}", {"prefill": prefill, "pdl": pdl, "tune": tune})
    for prefill in ("fa2", "fa3")
    for pdl in (True, False)
    for tune in (True, False)
)
"""Prefill by FlashInfer's two backends, with and without dependent launch and the search of products."""
VARIED = (33, 71, 128, 200, 301, 442, 65, 500)
"""Tokens of prompts in turn, where lengths vary."""


class Bench:
    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self._open: list[Any] = []

    # ------------------------------------------------------------------ measurements

    def executor(
        self,
        name: str,
        *,
        graphs: bool = True,
        float32: bool = False,
        deterministic: bool = False,
        tune: bool = True,
        pdl: bool = True,
        prefill: str = "auto",
        **options: Any,
    ) -> CudaExecutor:
        """``pdl``: programmatic dependent launch. ``prefill``: FlashInfer's backend of ragged prefill, or "auto"."""
        from prelude.cuda.cuda_device import CudaDevice

        config = MODELS[name]
        element = torch.float32 if float32 else torch.bfloat16
        width = config.spec.attention.head_dim
        device = CudaDevice(element, head_dim=width, deterministic=deterministic, tune=tune, pdl=pdl)
        with device.scope():
            loaded = weights.load(
                device, RandomSource(config, "cuda", torch.bfloat16), config.spec, config.max_positions
            )
        calls = attention_calls(config, device)
        if calls is not None:
            calls.prefill = prefill
        settings: dict[str, Any] = {"num_blocks": 4096, "step_tokens": 16_384, "step_rows": 512}
        executor = CudaExecutor(
            config,
            loaded,
            device,
            logits_chunk_rows=256,
            calls=calls,
            policy=GraphPolicy(enabled=graphs, at_once=True),
            **{**settings, **options},
        )
        self._open.append(executor)
        return executor

    def engine(self, executor: CudaExecutor, overlap: bool | None = None) -> AsyncEngine:
        """An engine over the executor, with the packaged model's tokenizer: its ids are ids of any larger model."""
        from prelude.tokenizer import Tokenizer

        from prelude.admission.preparer import Preparer
        from prelude.runtime.assembly import make_core
        from prelude.runtime.core import EngineCore

        config = EngineConfig(
            max_length=4096,
            max_step_tokens=executor.step_tokens,
            max_running=256,
            chunk_tokens=2048,
            overlap=overlap,
        )
        tokenizer = Tokenizer.from_file(str(default_model.path() / "tokenizer.json"))
        preparer = Preparer(tokenizer, executor.limits(), config, eos_ids=(), bos_id=None)
        core = make_core(EngineCore, executor, config)
        engine = AsyncEngine(Engine(core, preparer, default_model.path()))
        return engine

    def release(self) -> None:
        for executor in self._open:
            executor.close()
        self._open.clear()
        torch.cuda.empty_cache()

    def timed(self, work: Callable[[], Any], count: int = 1) -> list[float]:
        """Seconds of one of ``count`` calls, per repeat; the device is idle before and after."""
        for _ in range(3):
            work()
        found = []
        for _ in range(self.repeats):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                work()
            torch.cuda.synchronize()
            found.append((time.perf_counter() - began) / count)
        return found

    # ------------------------------------------------------------------ correctness

    def correctness(self) -> Iterator[Load]:
        """Folds, chunks, hits and decode of every path against a plain float32 forward over the same weights."""
        source = RandomSource(MODELS["tiny"], "cuda", torch.bfloat16)
        reference = Reference(source)
        allowed = allowed_ulps(MODELS["tiny"])
        for name, options in (
            ("float32", {"float32": True}),
            ("deterministic", {"deterministic": True}),
            ("eager", {"graphs": False}),
            ("captured", {}),
        ):
            executor = self.executor("tiny", num_blocks=256, step_tokens=4096, **options)
            limit = 1e-4 if name == "float32" else allowed
            found = [worst_error(executor, reference, seed, exact=name == "float32") for seed in range(6)]
            worst = max(found)
            yield Load(f"correctness_{name}.worst", "" if name == "float32" else "ulp", [worst])
            if not worst <= limit:
                raise NotRight(f"{name}: an error of {worst:.3g}, {limit:g} is allowed")
            if name == "captured" and not executor.graphs.replays:
                raise NotRight("nothing was replayed")
        big = self.executor("06b", num_blocks=64, step_tokens=2048)
        big.wait(big.submit(probe_step(big)))
        error = worst_error(big, Reference(RandomSource(MODELS["06b"], "cuda", torch.bfloat16)), 0, exact=False)
        theirs = transformers_error(MODELS["06b"])
        if not error <= 2 * max(theirs, LIMIT_ULPS):
            raise NotRight(f"0.6B: an error of {error:.3g} ulps, transformers in bfloat16 has {theirs:.3g}")
        yield Load("correctness_06b.ulps", "ulp", [error])
        yield Load("correctness_06b.transformers", "ulp", [theirs])

    # ------------------------------------------------------------------ loads

    def oneshot(self, ways: Ways = _WAYS) -> Iterator[Load]:
        """0.6B, prompts of exactly 128 tokens, one output token, alone."""
        floor = Floor(MODELS["06b"]).prefill(128, 1, causal(128)) * 1e3
        for name, options in ways:
            executor = self.executor("06b", **options)
            engine = self.engine(executor)
            values = [v * 1e3 for v in asyncio.run(lone_requests(engine, 128, self.repeats, 60))]
            key = f"oneshot_06b_128in_1out_c1{name}.p50_ms"
            paper = {"prelude": 5.2, "vllm": 13.5, "sglang": 28.3}
            yield Load(key, "ms", values, floor, None if name else 1.1, paper)
            batch = OneShotBatch(forest([(draw(0, 128), -1)]), greedy([127]))
            steps = [v * 1e3 for v in self.timed(lambda e=executor, b=batch: e.wait(e.submit(b)), 30)]
            yield Load(f"oneshot_06b_128in_1out_c1{name}.step_ms", "ms", steps, floor)
            self.release()
        if ways is _WAYS:
            theirs = [v * 1e3 for v in self.by_transformers("06b", 128)]
            yield Load("oneshot_06b_128in_1out_c1_transformers.step_ms", "ms", theirs, floor)

    def oneshot_variants(self) -> Iterator[Load]:
        yield from self.oneshot(VARIANTS)

    def oneshot_varied(self) -> Iterator[Load]:
        """0.6B, prompts of ``VARIED`` lengths in turn, one output token, alone."""
        engine = self.engine(self.executor("06b"))
        values = [v * 1e3 for v in asyncio.run(lone_requests(engine, VARIED, self.repeats, 64))]
        yield Load("oneshot_06b_varied_1out_c1.p50_ms", "ms", values)

    def by_transformers(self, name: str, tokens: int) -> list[float]:
        """Seconds of one forward by transformers with SDPA, ids on the host to a token on the host."""
        model = transformers_model(MODELS[name], RandomSource(MODELS[name], "cuda", torch.bfloat16))
        ids = torch.from_numpy(draw(0, tokens).astype(np.int64))[None]

        def answer() -> int:
            with torch.inference_mode():
                return int(model(ids.cuda(), logits_to_keep=1).logits[0, -1].argmax())

        return self.timed(answer, 10)

    def questions(self) -> Iterator[Load]:
        """64 questions of 8 tokens on one cold state of 1,000."""
        pairs = causal(1000) + 64 * (8 * 1000 + causal(8))
        floor = Floor(MODELS["06b"]).prefill(1000 + 64 * 8, 64, pairs) * 1e3
        segments = [(draw(1, 1000), -1), *((draw(2 + i, 8), 0) for i in range(64))]
        batch = OneShotBatch(forest(segments), labels([1000 + 8 * i + 7 for i in range(64)], [11, 12]))
        for name, options in _WAYS:
            executor = self.executor("06b", **options)
            values = [v * 1e3 for v in self.timed(lambda e=executor: e.wait(e.submit(batch)), 10)]
            key = f"questions_06b_64x8_on_1000{name}.batch_ms"
            yield Load(key, "ms", values, floor, None if name else 2.5)
            self.release()

    def throughput(self) -> Iterator[Load]:
        """4B, 512 in, 1 out, with so many in flight; the last with 75 % of the prompt shared. Alone also eagerly and
        by transformers: larger steps are not recorded."""
        per_request = Floor(MODELS["4b"]).prefill(512 * 16, 16, 16 * causal(512)) / 16
        table: list[tuple[int, float, float, tuple[float, ...]]] = [
            (1, 0.0, 110.0, (70.5, 47.8, 42.6)),
            (16, 0.0, 175.0, (157.6, 98.0, 150.9)),
            (96, 0.0, 190.0, (186.7, 134.5, 151.5)),
            (96, 0.75, 550.0, ()),
        ]
        engine = self.engine(self.executor("4b", num_blocks=2048))
        for flights, shared, reach, paper in table:
            values = asyncio.run(saturated(engine, 512, flights, shared, self.repeats, seconds=4.0))
            key = f"oneshot_4b_512in_1out_c{flights}{'_shared75' if shared else ''}.requests_s"
            floor = 1 / (per_request * (1 - shared)) if shared else 1 / per_request
            names = dict(zip(("prelude", "vllm", "sglang"), paper))
            yield Load(key, "1/s", values, floor, reach, names, better="higher")
        self.release()
        eager = self.engine(self.executor("4b", num_blocks=2048, graphs=False))
        alone = {"eager": asyncio.run(saturated(eager, 512, 1, 0.0, self.repeats, seconds=1.0))}
        self.release()
        alone["transformers"] = [1 / seconds for seconds in self.by_transformers("4b", 512)]
        for name, values in alone.items():
            key = f"oneshot_4b_512in_1out_c1_{name}.requests_s"
            yield Load(key, "1/s", values, 1 / per_request, better="higher")

    def decode(self) -> Iterator[Load]:
        """0.6B, 128 in, 32 out, four in flight; with a decode step in flight, each postprocessed before the next,
        eager."""
        floor = Floor(MODELS["06b"]).decode(4, 144)
        paper = {"prelude": 2.1, "vllm": 1.7, "sglang": 1.8}
        rates = {"prelude": 1474.0, "vllm": 1430.0, "sglang": 1177.0}
        ways: tuple[tuple[str, bool | None, bool], ...] = (
            ("", None, True),
            ("_without_overlap", False, True),
            ("_eager", None, False),
        )
        for name, overlap, captured in ways:
            executor = self.executor("06b", graphs=captured)
            engine = self.engine(executor, overlap)
            tpot, rate = asyncio.run(chats(engine, 128, 32, 4, self.repeats))
            key, graphs, first = f"decode_06b_128in_32out_c4{name}", executor.graphs, not name
            replayed = graphs.replays / max(1, graphs.replays + graphs.eager)
            times = [v * 1e3 for v in tpot]
            yield Load(f"{key}.tpot_ms", "ms", times, floor * 1e3, 0.75 if first else None, paper)
            yield Load(f"{key}.tokens_s", "1/s", rate, 4 / floor, 5000 if first else None, rates, better="higher")
            yield Load(f"{key}.replayed_share", "", [replayed])
            self.release()

    def decode_sampled(self) -> Iterator[Load]:
        """As ``decode``, with the sampling that Qwen3 asks for."""
        engine = self.engine(self.executor("06b"))
        tpot, rate = asyncio.run(chats(engine, 128, 32, 4, self.repeats, True))
        key = "decode_06b_128in_32out_c4_sampled"
        times = [v * 1e3 for v in tpot]
        yield Load(f"{key}.tpot_ms", "ms", times, Floor(MODELS["06b"]).decode(4, 144) * 1e3)
        yield Load(f"{key}.tokens_s", "1/s", rate, better="higher")

    def startup(self) -> Iterator[Load]:
        """from_pretrained to the first answer, files cached, imports and kernels done."""
        folder = Path(tempfile.mkdtemp())
        try:
            save_checkpoint(MODELS["06b"], folder, "cuda")
            values = []
            for _ in range(min(3, self.repeats) + 1):
                began = time.perf_counter()
                engine = Engine.from_pretrained(folder, device="cuda", config=EngineConfig(max_length=4096))
                engine.run(Generate("where does the river begin", SamplingParams(max_tokens=1)))
                values.append(time.perf_counter() - began)
                engine.close()
                torch.cuda.empty_cache()
            paper = {"prelude": 2.0, "vllm": 44.0, "sglang": 34.0}
            yield Load("startup_06b.first_answer_s", "s", values[1:], None, 2.0, paper)
        finally:
            shutil.rmtree(folder)

    def chat(self) -> Iterator[Load]:
        """One chat's TPOT while decisions take the rest, over its TPOT alone."""
        executor = self.executor("06b")
        engine = self.engine(executor)
        ratios = asyncio.run(chat_beside_decisions(engine, self.repeats))
        yield Load("chat_beside_oneshot_06b.tpot_ratio", "x", ratios, 1.0, 1.5)
