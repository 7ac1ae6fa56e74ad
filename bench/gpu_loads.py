"""The loads of bench/gpu.py. Keys are those of the published table; each figure is a median with its spread."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prelude.cuda import weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy

from bench.gpu_models import (
    MODELS,
    Floor,
    RandomSource,
    Reference,
    causal,
    save_checkpoint,
    transformers_model,
)
from prelude import AsyncEngine, Engine, EngineConfig, Generate, SamplingParams, default_model
from prelude.batch import (
    DecodeBatch,
    DecodeRows,
    LogprobOutput,
    LogprobRows,
    MixedBatch,
    OneShotBatch,
    PromptSlices,
    SampleOutput,
    SampleRows,
)
from prelude.execution.cuda import attention_calls, probe_step
from prelude.models.config import ModelConfig

LIMIT_ULPS = 2.0
"""Units in the last place of a bfloat16 of the largest logit that any bfloat16 forward may be off."""


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


def i32(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)


def forest(segments: Sequence[tuple[np.ndarray, int]]) -> PromptSlices:
    """``(ids, parent)`` each, without contexts."""
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in segments])])
    ends: list[int] = []
    positions = []
    for ids, parent in segments:
        first = 0 if parent < 0 else ends[parent]
        ends.append(first + len(ids))
        positions.append(np.arange(first, ends[-1]))
    count = len(segments)
    return PromptSlices(
        i32(np.concatenate([ids for ids, _ in segments])),
        i32(np.concatenate(positions)),
        i32(starts),
        i32([parent for _, parent in segments]),
        i32(np.zeros(count)),
        i32(np.zeros(count + 1)),
        i32([]),
    )


def labels(rows: Sequence[int], ids: Sequence[int]) -> LogprobRows:
    count = len(rows)
    return LogprobRows(i32(rows), i32(np.repeat(np.arange(count), len(ids))), i32(np.tile(ids, count)))


def greedy(rows: Sequence[int]) -> SampleRows:
    n = len(rows)
    f32, zeros = np.zeros(n, np.float32), np.zeros(n, np.int32)
    return SampleRows(i32(rows), f32, zeros, np.ones(n, np.float32), f32, np.zeros(n, np.uint64), zeros)


_WAYS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("", {}),
    ("_cublas", {"tune": False}),
    ("_eager", {"graphs": False}),
)
"""As it is served; with cuBLAS's own choice of algorithms; without graphs."""


class Bench:
    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self._open: list[Any] = []

    # ------------------------------------------------------------------ what is measured

    def executor(
        self,
        name: str,
        *,
        graphs: bool = True,
        float32: bool = False,
        deterministic: bool = False,
        tune: bool = True,
        **options: Any,
    ) -> CudaExecutor:
        from prelude.cuda.device import CudaDevice

        config = MODELS[name]
        element = torch.float32 if float32 else torch.bfloat16
        device = CudaDevice(element, head_dim=config.head_dim, deterministic=deterministic, tune=tune)
        with device.scope():
            loaded = weights.load(device, RandomSource(config, "cuda", torch.bfloat16), config, config.max_positions)
        settings: dict[str, Any] = {"num_blocks": 4096, "step_tokens": 16_384, "step_rows": 512}
        executor = CudaExecutor(
            config,
            loaded,
            device,
            logits_chunk_rows=256,
            calls=attention_calls(config, device),
            policy=GraphPolicy(enabled=graphs, after=1),
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

    def correctness(self) -> list[Load]:
        """Folds, chunks, hits and decode of every path against a plain float32 forward over the same weights."""
        source = RandomSource(MODELS["tiny"], "cuda", torch.bfloat16)
        reference = Reference(source)
        worst: dict[str, float] = {}
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
            worst[name] = max(found)
            if not worst[name] <= limit:
                raise NotRight(f"{name}: an error of {worst[name]:.3g}, {limit:g} is allowed")
            if name == "captured" and not executor.graphs.replays:
                raise NotRight("nothing was replayed")
        big = self.executor("06b", num_blocks=64, step_tokens=2048)
        big.wait(big.submit(probe_step(big)))
        error = worst_error(big, Reference(RandomSource(MODELS["06b"], "cuda", torch.bfloat16)), 0, exact=False)
        theirs = transformers_error(MODELS["06b"])
        if not error <= 2 * max(theirs, LIMIT_ULPS):
            raise NotRight(f"0.6B: an error of {error:.3g} ulps, transformers in bfloat16 has {theirs:.3g}")
        loads = [
            Load(f"correctness_{name}.worst", "ulp" if name != "float32" else "", [v]) for name, v in worst.items()
        ]
        return [
            *loads,
            Load("correctness_06b.ulps", "ulp", [error]),
            Load("correctness_06b.transformers", "ulp", [theirs]),
        ]

    # ------------------------------------------------------------------ loads

    def oneshot(self) -> list[Load]:
        floor = Floor(MODELS["06b"]).prefill(128, 1, causal(128)) * 1e3
        loads = []
        for name, options in _WAYS:
            executor = self.executor("06b", **options)
            engine = self.engine(executor)
            values = [v * 1e3 for v in asyncio.run(lone_requests(engine, 128, self.repeats, 60))]
            key = f"oneshot_06b_128in_1out_c1{name}.p50_ms"
            paper = {"prelude": 5.2, "vllm": 13.5, "sglang": 28.3}
            loads.append(Load(key, "ms", values, floor, None if name else 1.1, paper))
            batch = OneShotBatch(forest([(draw(0, 128), -1)]), greedy([127]))
            steps = [v * 1e3 for v in self.timed(lambda e=executor, b=batch: e.wait(e.submit(b)), 30)]
            loads.append(Load(f"oneshot_06b_128in_1out_c1{name}.step_ms", "ms", steps, floor))
            self.release()
        theirs = [v * 1e3 for v in self.by_transformers("06b", 128)]
        return [*loads, Load("oneshot_06b_128in_1out_c1_transformers.step_ms", "ms", theirs, floor)]

    def by_transformers(self, name: str, tokens: int) -> list[float]:
        """Seconds of one forward by transformers with SDPA, ids on the host to a token on the host."""
        model = transformers_model(MODELS[name], RandomSource(MODELS[name], "cuda", torch.bfloat16))
        ids = torch.from_numpy(draw(0, tokens).astype(np.int64))[None]

        def answer() -> int:
            with torch.inference_mode():
                return int(model(ids.cuda(), logits_to_keep=1).logits[0, -1].argmax())

        return self.timed(answer, 10)

    def questions(self) -> list[Load]:
        """64 questions of 8 tokens on one cold state of 1,000."""
        pairs = causal(1000) + 64 * (8 * 1000 + causal(8))
        floor = Floor(MODELS["06b"]).prefill(1000 + 64 * 8, 64, pairs) * 1e3
        segments = [(draw(1, 1000), -1), *((draw(2 + i, 8), 0) for i in range(64))]
        batch = OneShotBatch(forest(segments), labels([1000 + 8 * i + 7 for i in range(64)], [11, 12]))
        loads = []
        for name, options in _WAYS:
            executor = self.executor("06b", **options)
            values = [v * 1e3 for v in self.timed(lambda e=executor: e.wait(e.submit(batch)), 10)]
            key = f"questions_06b_64x8_on_1000{name}.batch_ms"
            loads.append(Load(key, "ms", values, floor, None if name else 2.5))
            self.release()
        return loads

    def throughput(self) -> list[Load]:
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
        loads = []
        for flights, shared, reach, paper in table:
            values = asyncio.run(saturated(engine, 512, flights, shared, self.repeats, seconds=4.0))
            key = f"oneshot_4b_512in_1out_c{flights}{'_shared75' if shared else ''}.requests_s"
            floor = 1 / (per_request * (1 - shared)) if shared else 1 / per_request
            names = dict(zip(("prelude", "vllm", "sglang"), paper))
            loads.append(Load(key, "1/s", values, floor, reach, names, better="higher"))
        self.release()
        eager = self.engine(self.executor("4b", num_blocks=2048, graphs=False))
        alone = {"eager": asyncio.run(saturated(eager, 512, 1, 0.0, self.repeats, seconds=1.0))}
        self.release()
        alone["transformers"] = [1 / seconds for seconds in self.by_transformers("4b", 512)]
        for name, values in alone.items():
            key = f"oneshot_4b_512in_1out_c1_{name}.requests_s"
            loads.append(Load(key, "1/s", values, 1 / per_request, better="higher"))
        return loads

    def decode(self) -> list[Load]:
        """0.6B, 128 in, 32 out, four in flight; with a decode step in flight, each settled before the next, eager."""
        floor = Floor(MODELS["06b"]).decode(4, 144)
        paper = {"prelude": 2.1, "vllm": 1.7, "sglang": 1.8}
        rates = {"prelude": 1474.0, "vllm": 1430.0, "sglang": 1177.0}
        loads = []
        ways: tuple[tuple[str, bool | None, bool], ...] = (
            ("", None, True),
            ("_settled_first", False, True),
            ("_eager", None, False),
        )
        for name, overlap, captured in ways:
            executor = self.executor("06b", graphs=captured)
            engine = self.engine(executor, overlap)
            tpot, rate = asyncio.run(chats(engine, 128, 32, 4, self.repeats))
            key, graphs, first = f"decode_06b_128in_32out_c4{name}", executor.graphs, not name
            replayed = graphs.replays / max(1, graphs.replays + graphs.eager)
            loads += [
                Load(f"{key}.tpot_ms", "ms", [v * 1e3 for v in tpot], floor * 1e3, 0.75 if first else None, paper),
                Load(f"{key}.tokens_s", "1/s", rate, 4 / floor, 5000 if first else None, rates, better="higher"),
                Load(f"{key}.replayed_share", "", [replayed]),
            ]
            self.release()
        return loads

    def startup(self) -> list[Load]:
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
            return [
                Load(
                    "startup_06b.first_answer_s", "s", values[1:], None, 2.0, {"prelude": 2, "vllm": 44, "sglang": 34}
                )
            ]
        finally:
            shutil.rmtree(folder)

    def chat(self) -> list[Load]:
        """One chat's TPOT while decisions take the rest, over what it is alone."""
        executor = self.executor("06b")
        engine = self.engine(executor)
        ratios = asyncio.run(chat_beside_decisions(engine, self.repeats))
        return [Load("chat_beside_oneshot_06b.tpot_ratio", "x", ratios, 1.0, 1.5)]


# ------------------------------------------------------------------ helpers


def draw(seed: int, count: int, vocab: int = 4000) -> np.ndarray:
    """Ids of the packaged tokenizer, which every model here has."""
    return i32(np.random.default_rng(seed).integers(32, vocab, count))


def ulps(ours: np.ndarray, theirs: np.ndarray, logits_scale: float) -> float:
    """Largest difference in units of the last place of a bfloat16 as large as the largest logit."""
    return float(np.abs(ours - theirs).max() / 2.0 ** (np.floor(np.log2(logits_scale)) - 7))


def worst_error(executor: CudaExecutor, reference: Reference, seed: int, *, exact: bool) -> float:
    """A fold, a chunked prompt, a hit on it and decode rows; logprobs of 50 tokens each against ``reference``."""
    vocab = executor.config.vocab_size
    rng = np.random.default_rng(seed)
    wanted = i32(rng.permutation(vocab)[:50])

    def ids(n: int) -> np.ndarray:
        return i32(rng.integers(0, vocab, n))

    def check(sequences: Sequence[np.ndarray], output: Any) -> float:
        worst = 0.0
        for at, sequence in enumerate(sequences):
            expected = reference.logprobs(torch.from_numpy(sequence.astype(np.int64)).to(reference.device)).cpu()
            theirs = expected.numpy()[wanted]
            scale = float((expected - expected.mean()).abs().max())
            if isinstance(output, LogprobOutput):
                ours = output.logprobs[at * 50 : at * 50 + 50]
                worst = max(worst, float(np.abs(ours - theirs).max()) if exact else ulps(ours, theirs, scale))
            elif isinstance(output, SampleOutput):
                best = float(expected.max() - expected[int(output.token_ids[at])])
                worst = max(worst, best if exact else ulps(np.array([best]), np.zeros(1), scale))
        return worst

    state, tails = ids(int(rng.integers(20, 300))), [ids(int(rng.integers(1, 20))) for _ in range(5)]
    other = ids(int(rng.integers(1, 90)))
    segments = [(state, -1), *((tail, 0) for tail in tails), (other, -1)]
    s = forest(segments)
    rows = [int(end) - 1 for end in s.starts[2:]]
    whole = [*(np.concatenate([state, tail]) for tail in tails), other]
    fold = OneShotBatch(s, labels(rows, wanted.tolist()))
    worst = 0.0
    for _ in range(2):  # the second is a replay, where shapes are recorded
        worst = max(worst, check(whole, executor.wait(executor.submit(fold)).outputs[0]))
    return max(worst, paged_error(executor, ids, check))


def paged_error(executor: CudaExecutor, ids: Any, check: Any) -> float:
    """A prompt in two chunks over scattered blocks, and then token by token."""
    size = executor.block_size
    blocks = [int(b) for b in np.random.default_rng(1).permutation(60)]
    prompt = ids(3 * size + 5)
    slots = (np.asarray(blocks[:8])[:, None] * size + np.arange(size)).reshape(-1)
    worst, cut = 0.0, size + 3
    nobody = DecodeRows(*(i32([]) for _ in range(4)), i32([0]), i32([]))
    for first, last in ((0, cut), (cut, len(prompt))):
        table = blocks[: -(-first // size)]
        part = PromptSlices(
            prompt[first:last],
            i32(np.arange(first, last)),
            i32([0, last - first]),
            i32([-1]),
            i32([first]),
            i32([0, len(table)]),
            i32(table),
            i32(slots[first:last]),
        )
        readout = greedy([last - first - 1])
        output = executor.wait(executor.submit(MixedBatch(part, (readout,), nobody, None))).outputs[0]
        worst = max(worst, check([prompt[:last]], output))
    text = prompt
    token = int(output.token_ids[0])
    for _ in range(20):
        length = len(text)
        table = blocks[: length // size + 1]
        rows = DecodeRows(
            i32([token]), i32([length]), i32([slots[length]]), i32([length]), i32([0, len(table)]), i32(table)
        )
        text = np.concatenate([text, i32([token])])
        output = executor.wait(executor.submit(DecodeBatch(rows, greedy([0])))).outputs[0]
        worst = max(worst, check([text], output))
        token = int(output.token_ids[0])
    return worst


def allowed_ulps(config: ModelConfig) -> float:
    """Twice what transformers' bfloat16 forward is off by: products of bfloat16 values round whoever makes them."""
    return 2 * max(transformers_error(config), LIMIT_ULPS)


def transformers_error(config: ModelConfig, device: str = "cuda") -> float:
    """What transformers in bfloat16 differs from float32 by, in ulps."""
    source = RandomSource(config, device, torch.bfloat16)
    model, reference = transformers_model(config, source), Reference(source)
    worst = 0.0
    for seed in range(3):
        ids = torch.from_numpy(draw(seed, 200, min(4000, config.vocab_size)).astype(np.int64)).to(device)
        with torch.inference_mode():
            ours = model(ids[None], logits_to_keep=1).logits[0, -1].double().log_softmax(-1).cpu().numpy()
        theirs = reference.logprobs(ids).cpu().numpy()
        worst = max(worst, ulps(ours, theirs, float(np.abs(theirs - theirs.mean()).max())))
    return worst


def one_token(ids: np.ndarray) -> Generate:
    return Generate(ids.tolist(), SamplingParams(max_tokens=1, temperature=0.0))


async def lone_requests(engine: AsyncEngine, tokens: int, repeats: int, count: int) -> list[float]:
    """p50 of each repeat, text to answer, one at a time."""
    async with engine:
        tokenizer = engine.engine._preparer.tokenizer
        texts = [tokenizer.decode(draw(1000 + i, tokens).tolist()) for i in range(count)]
        found = []
        for repeat in range(repeats + 1):
            times = []
            for text in texts:
                began = time.perf_counter()
                await engine.run(Generate(text, SamplingParams(max_tokens=1, temperature=0.0), cache="never"))
                times.append(time.perf_counter() - began)
            if repeat:  # the first records
                found.append(statistics.median(times))
        return found


async def saturated(
    engine: AsyncEngine, tokens: int, flights: int, shared: float, repeats: int, seconds: float
) -> list[float]:
    """Requests a second with ``flights`` in flight."""
    common = draw(7, int(tokens * shared))
    seeds = iter(range(10_000, 10_000_000))
    await engine.start()

    async def worker(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            ids = np.concatenate([common, draw(next(seeds), tokens - len(common))])
            await engine.run(one_token(ids))
            done += 1
        return done

    found = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        counts = await asyncio.gather(*(worker(began + seconds) for _ in range(flights)))
        if repeat:
            found.append(sum(counts) / (time.perf_counter() - began))
    return found


async def stream_times(engine: AsyncEngine, seed: int, tokens: int, output: int) -> list[float]:
    times = []
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    async for _ in engine.generate(draw(seed, tokens).tolist(), params):
        times.append(time.perf_counter())
    return times


async def chats(
    engine: AsyncEngine, tokens: int, output: int, flights: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds per output token behind the first, and output tokens a second, of each repeat."""
    await engine.start()
    tpots, rates = [], []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        runs = 4
        found: list[list[float]] = []
        for _ in range(runs):
            streams = (stream_times(engine, 31 * repeat + i, tokens, output) for i in range(flights))
            found += await asyncio.gather(*streams)
        seconds = time.perf_counter() - began
        if repeat:
            tpots.append(statistics.median((t[-1] - t[0]) / (output - 1) for t in found))
            rates.append(runs * flights * output / seconds)
    return tpots, rates


async def chat_beside_decisions(engine: AsyncEngine, repeats: int) -> list[float]:
    await engine.start()
    found = []
    for repeat in range(repeats + 1):
        alone = await stream_times(engine, repeat, 128, 64)
        stop = asyncio.Event()

        async def decisions(worker: int, stop: asyncio.Event = stop) -> None:
            seed = worker * 100_000
            while not stop.is_set():
                seed += 1
                await engine.run(one_token(draw(seed, 512)))

        tasks = [asyncio.create_task(decisions(i)) for i in range(32)]
        await asyncio.sleep(0.3)
        beside = await stream_times(engine, repeat, 128, 64)
        stop.set()
        await asyncio.gather(*tasks)
        if repeat:
            found.append((beside[-1] - beside[0]) / (alone[-1] - alone[0]))
    return found
