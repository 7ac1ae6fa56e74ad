"""Our kernels: they compile, and their results are those of their twins.

The source itself runs here, under an emulator of CUDA threads on the host. It shows algorithm, order and exchange
between threads; it shows nothing about a GPU's memory model or speed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda import compiler, kernels, weights
from prelude.cuda.executor import CudaExecutor
from prelude.cuda.graphs import GraphPolicy
from torch import Tensor

from prelude.batch import MixedBatch
from prelude.models.checkpoint import Checkpoint
from tests.cuda.emulated import COMPILER, EmulatedDevice
from tests.cuda.plans import BLOCKS, random_edits
from tests.cuda.simulated import SimulatedDevice
from tests.cuda.test_parity import same, same_pools
from tests.execution.helpers import BLOCK, Model, Segment, all_logprobs, decode_rows, i32, run, sampling, slices

emulated = pytest.mark.skipif(COMPILER is None, reason="no g++ to run kernels on the host")
NVCC = shutil.which("nvcc")
WIDTH = 32  # of a head


def _nvrtc() -> str | None:
    """Why NVRTC cannot be used; None if it can. The library of the wheel is loaded where pathfinder would not
    look."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "cuda-python is not installed"
    found = importlib.util.find_spec("nvidia")
    for folder in list(found.submodule_search_locations or []) if found else []:
        for library in sorted(Path(folder).glob("*/lib/libnvrtc*.so*")):  # builtins sort first
            if ".alt." not in library.name:
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    try:
        compiler.nvrtc_version()
    except Exception as error:
        return f"no libnvrtc: {type(error).__name__}"
    return None


@pytest.fixture(scope="session")
def nvrtc() -> None:
    lacks = _nvrtc()
    if lacks is not None:
        pytest.skip(lacks)


# ------------------------------------------------------------------ they compile


@pytest.mark.parametrize("file", kernels.FILES)
@pytest.mark.parametrize(("float32", "head_dim"), [(False, 128), (True, 32)])
def test_nvrtc_compiles(nvrtc: None, file: str, float32: bool, head_dim: int) -> None:
    made = compiler.nvrtc(compiler.source(file), compiler.options("sm_90a", float32=float32, head_dim=head_dim), file)
    assert made[:4] == b"\x7fELF"
    assert all(kernel.name.encode() in made for kernel in kernels.ALL if kernel.file == file)


def test_nvrtc_names_the_line(nvrtc: None) -> None:
    with pytest.raises(compiler.CompileError, match="undefined_thing"):
        compiler.nvrtc('extern "C" __global__ void k() { undefined_thing(); }', ("--gpu-architecture=sm_90a",), "k")


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("file", kernels.FILES)
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_nvcc_compiles_without_spills(tmp_path: Path, file: str, arch: str) -> None:
    source = tmp_path / f"{file}.cu"
    source.write_text(compiler.source(file), encoding="utf-8")
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    done = subprocess.run(
        [
            str(NVCC),
            target,
            "-std=c++17",
            "-cubin",
            "-Xptxas",
            "-v",
            "-Werror",
            "all-warnings",
            "-DHEAD_DIM=128",
            "-o",
            "out",
            source.name,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    spills = [line for line in done.stderr.splitlines() if "spill" in line]
    assert spills and all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("flags", "wide"),
    [((), r"cp\.async\.cg\.shared\.global"), (("-DPRELUDE_FLOAT32",), r"ld\.global\.v4\.f32")],
)
def test_attend_reads_keys_by_16_bytes(tmp_path: Path, flags: tuple[str, ...], wide: str) -> None:
    (tmp_path / "attend.cu").write_text(compiler.source("attend"), encoding="utf-8")
    command = [str(NVCC), "-arch=sm_90a", "-std=c++17", "-ptx", "-DHEAD_DIM=128", *flags, "attend.cu"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    made = (tmp_path / "attend.ptx").read_text(encoding="utf-8")
    assert re.search(wide, made) and not re.search(r"ld\.global(\.nc)?\.[a-z]16", made)
    assert ("mma.sync" in made) == (not flags)


def test_a_cubin_is_compiled_once_per_content(tmp_path: Path) -> None:
    made: list[str] = []

    def fake(text: str, flags: Any, name: str) -> bytes:
        made.append(name)
        return b"\x7fELF" + str(flags).encode()

    def get(flags: tuple[str, ...], version: str = "1") -> bytes:
        return compiler.cubin("norms", flags, version=version, folder=tmp_path, compile_=fake)

    assert get(("a",)) == get(("a",)) and made == ["norms"]
    get(("b",))
    get(("a",), version="2")
    assert len(made) == 3 and len(list(tmp_path.iterdir())) == 3
    nowhere = tmp_path / "file"
    nowhere.write_text("", encoding="utf-8")
    assert compiler.cubin("norms", ("a",), version="1", folder=nowhere / "x", compile_=fake).startswith(b"\x7fELF")


def test_cubins_that_were_built_into_the_package_are_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "BUILT", tmp_path / "built")
    made = compiler.build("sm_90a", [64, 96], "nvrtc 13.0", lambda text, flags, name: name.encode())
    assert len(made) == 2 * len(kernels.FILES) + 1, "heads of 96 values have no kernel of short prompts"

    def get(version: str, head_dim: int = 64) -> bytes:
        flags = compiler.options("sm_90a", float32=False, head_dim=head_dim)
        return compiler.cubin(
            "norms", flags, version=version, folder=tmp_path, compile_=lambda text, flags, name: b"compiled"
        )

    assert get("nvrtc 13.0") == get("nvrtc 13.5") == get("nvrtc 13.0", 96) == b"norms"
    assert get("nvrtc 12.9") == get("nvrtc 13.0", 128) == b"compiled"


# ------------------------------------------------------------------ the results are those of the twins


def both(
    kernel: kernels.Kernel,
    grid: tuple[int, ...],
    args: list[Any],
    outputs: list[int],
    element: torch.dtype,
    shared: int = 0,
    width: int = WIDTH,
) -> list[tuple[Tensor, Tensor]]:
    """Output arguments after the kernel itself, and after its twin."""
    results = []
    for device in (EmulatedDevice(element, width), SimulatedDevice(element)):
        placed = []
        for arg in args:
            if isinstance(arg, Tensor):
                on_device = device.empty(tuple(arg.shape), arg.dtype)
                on_device.copy_(arg)
                placed.append(on_device)
            else:
                placed.append(arg)
        device.launch(kernel, grid, placed, shared)
        device.close()
        results.append([placed[i] for i in outputs])
    return list(zip(*results))


ELEMENTS = [torch.float32, torch.bfloat16]


def close(pairs: list[tuple[Tensor, Tensor]], element: torch.dtype) -> None:
    for ours, theirs in pairs:
        tolerance = 1e-5 if element == torch.float32 or ours.dtype == torch.float32 else 2**-7
        assert torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance), (
            (ours - theirs).abs().max()
        )


@emulated
@pytest.mark.parametrize("element", ELEMENTS)
def test_norms(element: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    n, width, vocab = 5, 76, 11

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    table, gain = randn(vocab, width).to(element), randn(width)
    ids, pending_tokens = torch.tensor([3, -2, 10, 0, -1], dtype=torch.int32), torch.tensor([7, 9], dtype=torch.int32)
    x, normed = torch.zeros(n, width), torch.zeros(n, width, dtype=element)
    pairs = both(
        kernels.EMBED_NORM, (n,), [ids, pending_tokens, table, gain, 1e-6, width, x, normed], [6, 7], element
    )
    assert torch.equal(pairs[0][0], table[[3, 9, 10, 0, 7]].float())
    close(pairs, element)
    source = randn(n, width)
    close(both(kernels.RMS_NORM, (n,), [source, gain, 1e-6, width, normed], [4], element), element)
    rows = torch.tensor([4, 0, 4], dtype=torch.int32)
    places = [torch.zeros(3, width), torch.zeros(3, width, dtype=element), torch.zeros(3, width)]
    close(both(kernels.GATHER_NORM, (3,), [rows, source, gain, 1e-6, width, *places], [5, 6, 7], element), element)
    none = [None, None, torch.zeros(3, width)]
    close(both(kernels.GATHER_NORM, (3,), [rows, source, gain, 1e-6, width, *none], [7], element), element)
    cast = source.to(element)
    close(
        both(kernels.GATHER, (3,), [rows, cast, width, torch.zeros(3, width, dtype=element)], [3], element), element
    )
    indptr = torch.tensor([0, 1, 5], dtype=torch.int32)
    ahead = torch.tensor([3, 9], dtype=torch.int32)
    for mode in range(len(kernels.POOLINGS)):
        for before in (None, ahead):
            args = [source, indptr, before, mode, width, width + 4, torch.zeros(2, width + 4)]
            close(both(kernels.POOL_ROWS, (2,), args, [6], element), element)


@emulated
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("gains", [True, False])
def test_qk_rope_and_silu(element: torch.dtype, gains: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    n, counts, slots = 3, (4, 2, 2), torch.tensor([5, -1, 0], dtype=torch.int32)
    heads = torch.randn(n, sum(counts), WIDTH, generator=generator).to(element)
    positions = torch.tensor([6, 0, 3], dtype=torch.int32)
    rope_table = torch.randn(8, WIDTH, generator=generator)
    q_gain, k_gain = torch.randn(2, WIDTH, generator=generator) if gains else (None, None)
    pool = [torch.zeros(6, 2, WIDTH, dtype=element) for _ in range(2)]
    args = [heads, *counts, positions, rope_table, q_gain, k_gain, 1e-6, slots, *pool]
    pairs = both(kernels.QK_ROPE, (n,), args, [0, 10, 11], element)
    close(pairs, element)
    ours = pairs[0][0]
    assert torch.equal(pairs[1][0][5], ours[0, 4:6]) and torch.equal(pairs[2][0][0], ours[2, 6:])
    assert not pairs[1][0][1:5].any()
    alone = [heads[:, :4].contiguous(), 4, 0, 0, positions, rope_table, q_gain, None, 1e-6, None, None, None]
    close(both(kernels.QK_ROPE, (n,), alone, [0], element), element)
    inner = 1100  # more than one block along a row
    gate_up = torch.randn(2, 2 * inner, generator=generator).to(element)
    args = [gate_up, inner, torch.zeros(2, inner, dtype=element)]
    close(both(kernels.SILU_GATE, (2, 2), args, [2], element), element)


@emulated
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("counts", [(5, 1, 1), (3, 0, 0)])
def test_qk_rope_by_eight_values(element: torch.dtype, counts: tuple[int, int, int]) -> None:
    """Heads of 64: four of them side by side in a warp, the last warp not full."""
    generator, width, n = torch.Generator().manual_seed(3), 64, 3
    heads = torch.randn(n, sum(counts), width, generator=generator).to(element)
    positions, slots = torch.tensor([6, 0, 3], dtype=torch.int32), torch.tensor([5, -1, 0], dtype=torch.int32)
    rope_table, gain = torch.randn(8, width, generator=generator), torch.randn(width, generator=generator)
    kept = [slots, *(torch.zeros(6, 1, width, dtype=element) for _ in range(2))] if counts[1] else [None] * 3
    args = [heads, *counts, positions, rope_table, gain, None, 1e-6, *kept]
    pairs = both(kernels.QK_ROPE, (n,), args, [0, 10, 11] if counts[1] else [0], element, width=width)
    close(pairs, element)
    if counts[1]:
        assert torch.equal(pairs[2][0][5, 0], heads[0, 6]) and not pairs[1][0][1:5].any()


class Lists:
    """Random rows over a prompt, a fold of it, cached keys and decode rows, and their attention in float32."""

    def __init__(self, element: torch.dtype, width: int, heads: int, kv_heads: int, long: int = 90) -> None:
        self.generator = torch.Generator().manual_seed(width + heads)
        self.element, self.heads, self.kv_heads, self.width = element, heads, kv_heads, width
        self.tokens = self._randn(long + 30, heads + 2 * kv_heads)
        self.pool = [self._randn(50, kv_heads) for _ in range(2)]
        cached = -1 - torch.randperm(50, generator=self.generator)
        prompt, fold, chat = torch.arange(long), torch.arange(long, long + 9), torch.arange(long + 9, long + 30)
        # (list, row of the step, keys): the prompt's rows, those of the fold, of a hit, and two of decode
        lists = [prompt, torch.cat([prompt, fold]), torch.cat([cached[:37], chat]), cached[:50], cached[3:4]]
        starts = np.cumsum([0, *(len(one) for one in lists)])
        self.keys = torch.cat(lists).to(torch.int32)
        rows = [(0, i, i + 1) for i in range(long)] + [(1, long + i, long + 1 + i) for i in range(9)]
        rows += [(2, long + 9 + i, 38 + i) for i in range(21)] + [(3, 0, 50), (4, 1, 1)]
        self.at = torch.tensor([row for _, row, _ in rows])
        self.first = torch.tensor([int(starts[which]) for which, _, _ in rows], dtype=torch.int32)
        self.count = torch.tensor([keys for _, _, keys in rows], dtype=torch.int32)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.width, generator=self.generator).to(self.element)

    def run(self, rows: Any = slice(None), span: int = kernels.EVERY) -> Tensor:
        """[rows, heads, D] of the kernel."""
        device = EmulatedDevice(self.element, self.width)

        def placed(value: Tensor) -> Tensor:
            on = device.empty(tuple(value.shape), value.dtype)
            on.copy_(value)
            return on

        tokens, q = placed(self.tokens), placed(self.tokens[self.at[rows]])[:, : self.heads]
        k, v = tokens[:, self.heads : -self.kv_heads], tokens[:, -self.kv_heads :]
        lists = placed(self.keys), placed(self.first[rows]), placed(self.count[rows])
        out = device.empty(tuple(q.shape), self.element)
        pool = placed(self.pool[0]), placed(self.pool[1])
        kernels.attend(device, q, k, v, pool, lists, self.kv_heads, out, span)
        device.close()
        return out

    def wanted(self, span: int = kernels.EVERY) -> Tensor:
        found, tokens, group = [], self.tokens.float(), self.heads // self.kv_heads
        parts = tokens[:, self.heads : -self.kv_heads], tokens[:, -self.kv_heads :]
        for row, first, count in zip(self.at, self.first.tolist(), self.count.tolist()):
            listed = self.keys[max(first, first + count - span) : first + count].long()
            k, v = (torch.where((listed < 0)[:, None, None], pool.float()[-1 - listed.clamp(max=-1)], own[listed])
                    for own, pool in zip(parts, self.pool))  # fmt: skip
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
            scores = torch.einsum("hd,mhd->hm", tokens[row, : self.heads], k) * self.width**-0.5
            found.append(torch.einsum("hm,mhd->hd", scores.softmax(-1), v))
        return torch.stack(found)


@emulated
@pytest.mark.parametrize(
    ("element", "width", "heads", "kv_heads"),
    [
        *[(torch.float32, 32, 4, 2), (torch.float32, 6, 2, 1), (torch.bfloat16, 24, 4, 2)],  # a key a lane
        *[(torch.bfloat16, 16, 4, 2), (torch.bfloat16, 64, 3, 1), (torch.bfloat16, 128, 2, 2)],  # by tensor cores
        *[(torch.bfloat16, 144, 4, 1), (torch.bfloat16, 16, 70, 1), (torch.bfloat16, 16, 16, 1)],
    ],
)
def test_attend(element: torch.dtype, width: int, heads: int, kv_heads: int) -> None:
    """Against float32; and a row has its bits in any company: alone, in another chunk of its prompt, and whether its
    neighbours are there or not. With a window too."""
    lists = Lists(element, width, heads, kv_heads)
    for span in (kernels.EVERY, 40):
        whole = lists.run(span=span)
        close([(whole, lists.wanted(span).to(element))], element)
        for rows in ([37], slice(20, 75), [5, 89, 90, 98, 99, 121], slice(91, None, 3)):
            assert torch.equal(lists.run(rows, span), whole[rows])


@emulated
def test_a_row_sees_no_keys_but_its_own() -> None:
    """Values of other prompts that are not finite stay out, and of its own sequence those beyond a window."""
    lists = Lists(torch.bfloat16, 16, 4, 2)
    whole, within = lists.run(), lists.run(span=30)
    lists.tokens[99:], lists.pool[1][:] = float("nan"), float("inf")
    assert torch.equal(lists.run()[:99], whole[:99])
    lists.tokens[:20] = float("nan")
    assert torch.equal(lists.run(span=30)[70:99], within[70:99])


def _logits(rows: int, vocab: int, seed: int) -> Tensor:
    """With ties among the best, and far apart."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    logits[0, 3] = logits[0, 7] = logits[0].max() + 1
    logits[-1] = (logits[-1] * 2).round() / 2
    return logits


@emulated
@pytest.mark.parametrize("element", ELEMENTS)
def test_logits_of_given_tokens_alone(element: torch.dtype) -> None:
    width, vocab = 76, 50
    normed, head = (torch.randn(n, width, generator=torch.Generator().manual_seed(n)) for n in (6, vocab))
    pairs = torch.tensor([[0, 7], [5, 49], [-1, 0], [3, 0], [0, 8]], dtype=torch.int32)
    untouched = torch.full((5,), 9.0, dtype=torch.float64)
    args = [
        normed.to(element),
        head.to(element),
        width,
        pairs[:, 0].contiguous(),
        pairs[:, 1].contiguous(),
        untouched,
    ]
    ((ours, theirs),) = both(kernels.LABELS, (5,), args, [5], element)
    close([(ours, theirs)], torch.float32)
    assert ours[2] == 9.0 and (ours[[0, 1, 3, 4]] != 9.0).all()


@emulated
def test_statistics_pairs_and_best_tokens() -> None:
    rows, vocab, f32 = 4, 301, torch.float32
    logits = _logits(rows, vocab, 3)
    logits[2, 5] = float("nan")
    stats = [torch.zeros(rows), torch.zeros(rows, dtype=torch.float64)]
    counts = [torch.zeros(rows, dtype=torch.int32) for _ in range(2)]
    args, shared = [logits, vocab, *stats, *counts], kernels._STATS_SHARED
    found = both(kernels.ROW_STATS, (rows,), args, [2, 3, 4, 5], f32, shared)
    good = [0, 1, 3]
    close([(a[good], b[good]) for a, b in found[:2]], f32)
    assert torch.equal(found[2][0][good], found[2][1][good]) and found[2][0][0] == 3
    assert found[3][0].tolist() == found[3][1].tolist() == [1, 1, 0, 1]
    largest, rest = found[0][0].clone(), found[1][0].clone()
    pairs = torch.tensor([[0, 7], [3, 5], [-1, 0], [1, 300], [0, 3]], dtype=torch.int32)
    args = [logits, vocab, pairs[:, 0].contiguous(), pairs[:, 1].contiguous(), largest, rest]
    out = [torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.int32)]
    picked = both(kernels.PICK, (5,), [*args, *out], [6, 7], f32)
    close(picked[:1], f32)
    assert torch.equal(*picked[1]) and picked[1][0].tolist()[0] == 2 and picked[1][0].tolist()[4] == 1
    logits[2, 5] = 0.0
    best = [torch.zeros(rows, 9, dtype=torch.int32), torch.zeros(rows, 9)]
    tops = both(kernels.TOP, (rows,), [logits, vocab, 9, largest, rest, *best], [5, 6], f32)
    assert torch.equal(*tops[0])
    close([(a[good], b[good]) for a, b in tops[1:]], f32)


@emulated
@pytest.mark.parametrize("vocab", [2, 7, 64, 301])
def test_statistics_join_the_blocks_of_a_cluster(vocab: int) -> None:
    """Ties between blocks, blocks of masked logits alone, rows that are not finite, and blocks without a part."""
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    logits[0, [0, vocab - 1]] = 50.0
    logits[1, : vocab // 2] = float("-inf")
    logits[2, vocab // 2 :] = float("-inf")
    logits[3] = float("-inf")
    logits[4, vocab - 1] = float("inf")
    stats = [torch.zeros(6), torch.zeros(6, dtype=torch.float64)]
    args = [logits, vocab, *stats, *(torch.zeros(6, dtype=torch.int32) for _ in range(2))]
    shared = kernels._STATS_SHARED
    largest, rest, best, finite = both(kernels.ROW_STATS, (6,), args, [2, 3, 4, 5], torch.float32, shared)
    good = [0, 1, 2, 5]
    close([(a[good], b[good]) for a, b in (largest, rest)], torch.float32)
    assert torch.equal(best[0][good], best[1][good]) and best[0][0] == 0
    assert finite[0].tolist() == finite[1].tolist() == [1, 0, 0, 0, 0, 1]


@emulated
def test_edits() -> None:
    rows, vocab = 3, 60
    edits = random_edits(np.random.default_rng(4), rows, vocab)
    lists = [torch.from_numpy(getattr(edits, name)) for name in edits.__slots__]
    logits = _logits(rows, vocab, 5)
    scratch = torch.zeros(max(1, len(edits.allowed_ids)))
    ((ours, theirs),) = both(kernels.EDIT, (rows,), [logits, vocab, *lists, scratch], [0], torch.float32)
    assert torch.equal(ours.isinf(), theirs.isinf())
    assert torch.allclose(ours[ours.isfinite()], theirs[theirs.isfinite()], rtol=1e-6)
    assert not torch.equal(ours, logits)


# ------------------------------------------------------------------ the executor on the kernels themselves


def emulated_executor(model: Model, deterministic: bool) -> CudaExecutor:
    config = model.config
    device = EmulatedDevice(torch.float32, config.spec.attention.head_dim, deterministic=deterministic)
    with device.scope(), Checkpoint.open(model.path, config) as checkpoint:
        loaded = weights.load(device, checkpoint, config.spec, config.max_positions)
    policy = GraphPolicy(enabled=False)
    return CudaExecutor(
        config, loaded, device, num_blocks=BLOCKS, block_size=BLOCK, step_tokens=512, step_rows=32, policy=policy
    )


@emulated
@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_through_the_kernels(model: Model, deterministic: bool) -> None:
    """A fold, a hit, a published block and a decode row; logprobs, drawn tokens: no twin is used."""
    executor, reference = emulated_executor(model, deterministic), model.executor(num_blocks=BLOCKS)
    s = slices(
        [
            Segment(i32([5, 9, 2]), write=[3]),
            Segment(i32([7]), parent=0),
            Segment(i32([8, 1]), parent=0),
            Segment(i32([4]), context=18, blocks=[6, 1]),
        ]
    )
    rows = decode_rows([17], [5], [[9]])
    readout = all_logprobs(i32([3, 5, 6]), ranks=True, top=2)
    drawn = sampling([0], temperature=0.8, seeds=3, top_k=20, top_p=0.9, logprobs=True)
    batch = MixedBatch(s, (readout,), rows, drawn)
    same(run(executor, batch), run(reference, batch), 2e-4)
    same_pools(executor, reference, 1e-4)
