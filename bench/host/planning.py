"""The cost of planning next to a forward pass: the native parts by themselves, the host's whole path of a request,
and the end-to-end time over a bare forward (``bench tiny``).

    python -m bench planning [--json FILE] [--quick]

Times are CPU time of this thread, the 10th percentile over repeats, a request (a block for the hashes), called
from Python as the scheduler calls it. A request is 512 tokens in 32 blocks and 64 of them make a repeat. No model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from prelude._native import core

from bench import record
from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts
from bench.host import path as host_path
from bench.host import tiny

Ints = npt.NDArray[np.int32]
ROWS = 64
TOKENS = 512
BLOCK = 16
BLOCKS = TOKENS // BLOCK


@dataclass(frozen=True)
class Timing:
    p10: float
    median: float
    p90: float


def timed(run: Callable[[Any], object], units: int, repeats: int, before: Callable[[], Any] = lambda: None) -> Timing:
    """Microseconds of CPU time a unit. ``before`` makes the argument of ``run``, off the clock."""
    taken = []
    for _ in range(repeats + 3):
        given = before()
        began = time.thread_time_ns()
        run(given)
        taken.append((time.thread_time_ns() - began) / units / 1000)
    p10, median, p90 = np.percentile(taken[3:], [10, 50, 90])
    return Timing(float(p10), float(median), float(p90))


class Bench:
    def __init__(self, quick: bool) -> None:
        self.repeats = 60 if quick else 400
        self.rng = np.random.default_rng(0)
        self.report = Report("Planning, native parts", facts=machine_facts())
        self.us: dict[str, float] = {}

    def add(self, name: str, load: str, measure: str, t: Timing, reach: float) -> float:
        self.us[name] = t.p10
        self.report.add(load, measure, (t.p10, t.p10, t.p90), "us", reach=f"{reach:g}", note=f"median {t.median:.3f}")
        return t.p10

    def prompts(self, rows: int = ROWS, tokens: int = TOKENS) -> list[Ints]:
        return list(self.rng.integers(0, 150_000, (rows, tokens)).astype(np.int32))

    def full_pool(self, num_blocks: int) -> tuple[core.BlockAllocator, core.PrefixTrie]:
        """A pool whose blocks are all cached, as unique prompts of 512 tokens leave it."""
        pool = core.BlockAllocator(num_blocks, BLOCK)
        trie = core.PrefixTrie(pool, seed=1)
        for _ in range(num_blocks // BLOCKS // ROWS):
            for p in self.prompts():
                trie.insert(p, trie.allocate(BLOCKS))
        return pool, trie

    # --- measurements -----------------------------------------------------------------------------------------

    def hashes(self) -> None:
        tokens = self.prompts(1, 16 * 256)[0]
        for name, key, reach in (("plain", None, 0.01), ("keyed", bytes(range(16)), 0.1)):

            def run(_: object, key: bytes | None = key) -> None:
                core.block_hashes(tokens, BLOCK, 0, key)

            t = timed(run, 256, self.repeats)
            self.add(f"hash_{name}", "4,096 tokens", f"block hash, {name}", t, reach)

    def allocation(self, pools: dict[str, int]) -> None:
        """64 requests take 32 blocks each from a pool full of cached ones, then give them back."""
        costs = []
        for name, size in pools.items():
            pool, trie = self.full_pool(size)

            def refill(pool: core.BlockAllocator = pool, trie: core.PrefixTrie = trie) -> None:
                if pool.num_free:
                    for p in self.prompts():
                        trie.insert(p, trie.allocate(BLOCKS))

            def run(_: object, pool: core.BlockAllocator = pool, trie: core.PrefixTrie = trie) -> None:
                for held in [trie.allocate(BLOCKS) for _ in range(ROWS)]:
                    pool.release(held)

            t = timed(run, ROWS, self.repeats, refill)
            costs.append(self.add(f"alloc_evict_free_{name}", f"pool of {name}", "allocate, evict, free 32", t, 0.7))
            held = [trie.match(p).node for p in self.taken_back(trie)]

            def take_back(_: object, trie: core.PrefixTrie = trie, held: list[int] = held) -> None:
                for node in held:
                    trie.lock(node)
                for node in held:
                    trie.unlock(node)

            t = timed(take_back, ROWS, self.repeats)
            self.add(f"take_back_{name}", f"pool of {name}", "lock and unlock 32 cached", t, 0.7)
        ratio = costs[-1] / costs[0]
        self.us["pool_ratio"] = ratio
        self.report.add("largest pool over smallest", "allocate, evict, free 32", (ratio,) * 3, "x", reach="1.3")

    def taken_back(self, trie: core.PrefixTrie) -> list[Ints]:
        prompts = self.prompts()
        for p in prompts:
            trie.insert(p, trie.allocate(BLOCKS))
        return prompts

    def trie(self, pools: dict[str, int]) -> None:
        for name, size in pools.items():
            self.trie_in(name, size)

    def trie_in(self, name: str, size: int) -> None:
        pool, trie = self.full_pool(size)
        load, hit = f"pool of {name}, 512 tokens", BLOCKS * 3 // 4
        known = self.prompts()
        for p in known:
            trie.insert(p[: hit * BLOCK], trie.allocate(hit))
        tails = self.prompts(ROWS, TOKENS - hit * BLOCK)
        asked = [np.concatenate([p[: hit * BLOCK], t]) for p, t in zip(known, tails)]

        def match(_: object) -> None:
            for p in asked:
                trie.match(p)

        self.add(f"match75_{name}", load, "75 % match", timed(match, ROWS, self.repeats), 0.6)
        t = timed(lambda _: [trie.would_hit(p) for p in asked], ROWS, self.repeats)
        self.add(f"would_hit75_{name}", load, "75 % would hit", t, 0.6)

        def fresh() -> list[tuple[Ints, Ints]]:
            prompts = [np.concatenate([p[: hit * BLOCK], t]) for p, t in zip(known, self.prompts(ROWS, 128))]
            return [(p, trie.allocate(BLOCKS - hit)) for p in prompts]

        def insert(given: list[tuple[Ints, Ints]]) -> None:
            for p, blocks in given:
                trie.insert(p, blocks, 0, hit)

        self.add(f"insert25_{name}", load, "insert the other 25 %", timed(insert, ROWS, self.repeats, fresh), 0.8)

        def unique() -> list[tuple[Ints, Ints]]:
            return [(p, trie.allocate(BLOCKS)) for p in self.prompts()]

        def insert_all(given: list[tuple[Ints, Ints]]) -> None:
            for p, blocks in given:
                trie.insert(p, blocks)

        self.add(f"insert_{name}", load, "insert all 32", timed(insert_all, ROWS, self.repeats, unique), 0.8)

        def evict(_: object) -> None:
            for _ in range(ROWS):
                trie.evict(BLOCKS)

        def refill() -> None:
            while pool.num_free:
                for p in self.prompts():
                    trie.insert(p, trie.allocate(BLOCKS))

        self.add(f"evict_{name}", load, "evict 32", timed(evict, ROWS, self.repeats, refill), 0.5)

    def packing(self) -> None:
        """64 prompts of 128 tokens, each on 4 cached blocks and writing its KV."""
        prompts = self.prompts(ROWS, 128)
        places = np.arange(64, 64 + 128, dtype=np.int32)
        starts, parents = np.array([0, 128], np.int32), np.array([-1], np.int32)
        context, own = np.arange(4, dtype=np.int32), np.arange(8, dtype=np.int32)
        prompt_rows = [(p, places, starts, parents, 0, -1, -1, context, 64, own, 0, 128) for p in prompts]
        t = timed(lambda _: core.pack_step([], [], prompt_rows, BLOCK), ROWS, self.repeats)
        self.add("pack_prompt", "64 prompts of 128 tokens", "pack, rows given", t, 0.3)

        def gather(_: object) -> None:
            rows = []
            for p in prompts:
                rows.append((p, places, starts, parents, 0, -1, -1, context, 64, own, 0, 128))
            core.pack_step([], [], rows, BLOCK)

        t = timed(gather, ROWS, self.repeats)
        self.add("pack_prompt_rows", "64 prompts of 128 tokens", "pack, and make the rows", t, 0.3)

    def lists(self) -> None:
        """The additional cost of a prompt as a list of Python integers over one as an array."""
        _, trie = self.full_pool(1 << 12)
        prompts = [p.tolist() for p in self.prompts()]
        t = timed(lambda _: [trie.match(p) for p in prompts], ROWS, self.repeats)
        self.add("match_list", "512 tokens in a list", "match, nothing found", t, 3.5)


def main() -> None:
    parser = options_parser(__doc__)
    add_outputs(parser, plot=False)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, within 30 s")
    options = parser.parse_args()
    end_to_end = tiny.measured(options.quick)  # first: memory that the others leave behind is no part of it
    bench = Bench(options.quick)
    pools = {"4k": 1 << 12, "1M": 1 << 20}
    bench.hashes()
    bench.allocation(pools)
    bench.trie(pools)
    bench.lists()
    bench.packing()
    bench.report.show()
    path = host_path.measured(options.quick)
    path.report.show()
    end_to_end.report.show()
    if options.json:
        rows = {
            **asdict(bench.report),
            "native_us": bench.us,
            "host_path": asdict(path.report)["rows"],
            "host_path_us": path.us,
            "decide_host_us": path.decide_us,
            "end_to_end": asdict(end_to_end.report)["rows"],
            "end_to_end_us": end_to_end.us,
        }
        record.write(options.json, rows)


if __name__ == "__main__":
    main()
