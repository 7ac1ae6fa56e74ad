"""Our kernels: they compile, and their results are those of their twins.

The source itself runs here, under an emulator of CUDA threads on the host. It shows algorithm, order and exchange
between threads; it shows nothing about a GPU's memory model or speed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prelude.cuda import compiler, kernels
from torch import Tensor

from prelude.readouts.batch import MixedBatch
from tests.cuda.conftest import on_device
from tests.cuda.emulated import F32, EmulatedDevice, both, needs_compiler
from tests.cuda.plans import BLOCKS, random_edits
from tests.cuda.test_parity import same, same_pools
from tests.execution.helpers import Model, Segment, all_logprobs, decode_rows, i32, run, sampling, slices

NVCC = shutil.which("nvcc")
ELEMENTS = [torch.float32, torch.bfloat16]


# ------------------------------------------------------------------ they compile
@pytest.fixture(scope="session")
def nvrtc() -> None:
    try:
        compiler.nvrtc_version()
    except Exception as error:
        pytest.skip(f"no cuda-python or no libnvrtc: {type(error).__name__}")


@pytest.mark.parametrize("file", kernels.FILES)
@pytest.mark.parametrize(("float32", "head_dim"), [(False, 128), (True, 32)])
def test_nvrtc_compiles(nvrtc: None, file: str, float32: bool, head_dim: int) -> None:
    made = compiler.nvrtc(compiler.source(file), compiler.options("sm_90a", float32=float32, head_dim=head_dim), file)
    assert made[:4] == b"\x7fELF"
    assert all(kernel.name.encode() in made for kernel in kernels.ALL if kernel.file == file)


def test_nvrtc_names_the_line(nvrtc: None) -> None:
    with pytest.raises(compiler.CompileError, match="undefined_thing"):
        compiler.nvrtc('extern "C" __global__ void k() { undefined_thing(); }', ("--gpu-architecture=sm_90a",), "k")


def nvcc(folder: Path, file: str, *options: str) -> str:
    """The remarks of the compiler, which writes ``out``."""
    (folder / f"{file}.cu").write_text(compiler.source(file), encoding="utf-8")
    command = [str(NVCC), "-std=c++17", "-o", "out", *options, f"{file}.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("file", kernels.FILES)
@pytest.mark.parametrize("arch", ["80", "90a"])
def test_nvcc_compiles_without_spills(tmp_path: Path, file: str, arch: str) -> None:
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    strict = ("-cubin", "-Xptxas", "-v", "-Werror", "all-warnings")
    said = nvcc(tmp_path, file, target, *strict, "-DHEAD_DIM=128")
    spills = [line for line in said.splitlines() if "spill" in line]
    assert spills and all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)


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
    assert len(made) == 2 * len(kernels.FILES)

    def get(version: str, head_dim: int = 64) -> bytes:
        flags = compiler.options("sm_90a", float32=False, head_dim=head_dim)
        return compiler.cubin(
            "norms", flags, version=version, folder=tmp_path, compile_=lambda text, flags, name: b"compiled"
        )

    assert get("nvrtc 13.0") == get("nvrtc 13.5") == get("nvrtc 13.0", 96) == b"norms"
    assert get("nvrtc 12.9") == get("nvrtc 13.0", 128) == b"compiled"


# ------------------------------------------------------------------ the results are those of the twins
def close(pairs: list[Any], element: torch.dtype = F32) -> None:
    for ours, theirs in pairs:
        if isinstance(ours, Tensor):
            tolerance = 2**-7 if element == ours.dtype == torch.bfloat16 else 1e-5
            assert torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance)
        elif isinstance(ours, tuple):
            close(list(zip(ours, theirs)), element)


def alike(launch: Callable[..., None], *given: Any, element: torch.dtype = F32, width: int = 32) -> list[Any]:
    """Everything that is given, as the kernel leaves it, which is as its twin does."""
    pairs = both(launch, *given, element=element, width=width)
    close(pairs, element)
    return [ours for ours, _ in pairs]


def launch(kernel: kernels.Kernel, rows: int) -> Callable[..., None]:
    return lambda device, *args: device.launch(kernel, (rows,), args)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@needs_compiler
@pytest.mark.parametrize("element", ELEMENTS)
def test_norms(element: torch.dtype) -> None:
    n, width, eps = 5, 76, 1e-6
    table, gain, source = randn(0, 11, width).to(element), randn(1, width), randn(2, n, width)
    x, normed, rows = torch.zeros(n, width), torch.zeros(n, width, dtype=element), ints(4, 0, 4)
    embedded = alike(
        kernels.embed_norm, ints(3, -2, 10, 0, -1), ints(7, 9), table, gain, eps, x, normed, element=element
    )
    assert torch.equal(embedded[5], table[[3, 9, 10, 0, 7]].float())
    alike(kernels.rms_norm, source, gain, eps, normed, element=element)
    for places in ((x[:3], normed[:3], x[:3]), (None, None, x[:3])):
        alike(launch(kernels.GATHER_NORM, 3), rows, source, gain, eps, width, *places, element=element)
    alike(kernels.gather, rows, source.to(element), normed[:3], element=element)
    for mode in range(len(kernels.POOLINGS)):
        for before in (None, ints(3, 9)):
            out = torch.zeros(2, width + 4)
            args = (source, ints(0, 1, 5), before, mode, width, width + 4, out)
            assert alike(launch(kernels.POOL_ROWS, 2), *args, element=element)[-1][:, :width].any()


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("gains", [True, False])
@pytest.mark.parametrize(
    ("width", "counts"),
    # Of heads of 64 four stand side by side in a warp, the last of which is not full.
    [(32, (4, 2, 2)), (32, (4, 0, 0)), (64, (5, 1, 1)), (64, (3, 0, 0))],
)
def test_qk_rope(element: torch.dtype, gains: bool, width: int, counts: tuple[int, int, int]) -> None:
    queries, keys, _ = counts
    heads, slots, positions = randn(1, 3, sum(counts), width).to(element), ints(5, -1, 0), ints(6, 0, 3)
    pool = [torch.zeros(6, keys, width, dtype=element) for _ in range(2)] if keys else None
    own = tuple(randn(2, 2, width)) if gains else (None, None)
    args = (heads, counts, positions, randn(3, 8, width), own, 1e-6, slots if keys else None, pool)
    turned, *_, written = alike(kernels.qk_rope, *args, element=element, width=width)
    assert not torch.equal(turned, heads)
    if keys:
        assert torch.equal(written[0][5], turned[0, queries : queries + keys])
        assert torch.equal(written[1][0], turned[2, queries + keys :]) and not written[0][1:5].any()


@needs_compiler
@pytest.mark.parametrize("element", ELEMENTS)
def test_silu(element: torch.dtype) -> None:
    """More than one block along a row, by eight values and by four."""
    for inner in (kernels.SILU_GATE.block * 8 + 8, kernels.SILU_GATE.block * 8 + 4):
        gate_up = randn(4, 2, 2 * inner).to(element)
        alike(kernels.silu_gate, gate_up, torch.zeros(2, inner, dtype=element), element=element)


class Lists:
    """Random rows over a prompt, a fold of it, cached keys and decode rows, and their attention."""

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
        self.first = ints(*(int(starts[which]) for which, _, _ in rows))
        self.count = ints(*(keys for _, _, keys in rows))

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.width, generator=self.generator).to(self.element)

    def run(self, rows: Any = slice(None), span: int = kernels.EVERY) -> tuple[Tensor, Tensor]:
        """[rows, heads, D] by the kernel and by its twin."""

        def attend(device: Any, q: Tensor, tokens: Tensor, *rest: Any) -> None:
            k, v = tokens[:, self.heads : -self.kv_heads], tokens[:, -self.kv_heads :]
            kernels.attend(device, q[:, : self.heads], k, v, *rest, span)

        q, lists = self.tokens[self.at[rows]], (self.keys, self.first[rows], self.count[rows])
        out = torch.empty(len(q), self.heads, self.width, dtype=self.element)
        given = (q, self.tokens, self.pool, lists, self.kv_heads, out)
        found: tuple[Tensor, Tensor] = both(attend, *given, element=self.element, width=self.width)[-1]
        return found


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize(
    ("element", "width", "heads", "kv_heads"),
    [
        *[(torch.float32, 32, 4, 2), (torch.float32, 6, 2, 1), (torch.bfloat16, 24, 4, 2)],  # a key a lane
        *[(torch.bfloat16, 16, 4, 2), (torch.bfloat16, 64, 3, 1), (torch.bfloat16, 128, 2, 2)],  # by tensor cores
        *[(torch.bfloat16, 144, 4, 1), (torch.bfloat16, 16, 70, 1), (torch.bfloat16, 16, 16, 1)],
    ],
)
def test_attend(element: torch.dtype, width: int, heads: int, kv_heads: int) -> None:
    """A row has its bits in any company: alone, in another chunk of its prompt, and whether its neighbours are there
    or not. With a window too."""
    lists = Lists(element, width, heads, kv_heads)
    for span in (kernels.EVERY, 40):
        whole, twins = lists.run(span=span)
        close([(whole, twins)], element)
        for rows in ([37], slice(20, 75), [5, 89, 90, 98, 99, 121], slice(91, None, 3)):
            assert torch.equal(lists.run(rows, span)[0], whole[rows])


@needs_compiler
def test_a_row_sees_no_keys_but_its_own() -> None:
    """Values of other prompts that are not finite stay out, and of its own sequence those beyond a window."""
    lists = Lists(torch.bfloat16, 16, 4, 2)
    whole, within = lists.run()[0], lists.run(span=30)[0]
    lists.tokens[99:], lists.pool[1][:] = float("nan"), float("inf")
    assert torch.equal(lists.run()[0][:99], whole[:99])
    lists.tokens[:20] = float("nan")
    assert torch.equal(lists.run(span=30)[0][70:99], within[70:99])


@needs_compiler
@pytest.mark.parametrize("element", ELEMENTS)
def test_logits_of_given_tokens_alone(element: torch.dtype) -> None:
    normed, head = randn(6, 6, 76).to(element), randn(7, 50, 76).to(element)
    untouched = torch.full((5,), 9.0, dtype=torch.float64)
    args = (normed, head, ints(0, 5, -1, 3, 0), ints(7, 49, 0, 0, 8), untouched)
    logits = alike(kernels.labels, *args, element=element)[-1]
    assert logits[2] == 9.0 and (logits[[0, 1, 3, 4]] != 9.0).all()


@needs_compiler
@pytest.mark.parametrize("vocab", [2, 7, 64, 301])
def test_statistics_join_the_blocks_of_a_cluster(vocab: int) -> None:
    """Ties between blocks, blocks of masked logits alone, rows that are not finite, and blocks without a part."""
    logits = randn(vocab, 7, vocab) * 4
    logits[0, [0, vocab - 1]] = 50.0
    logits[1, : vocab // 2] = float("-inf")
    logits[2, vocab // 2 :] = float("-inf")
    logits[3] = float("-inf")
    logits[4, vocab - 1] = float("inf")
    logits[6, vocab // 2] = float("nan")
    places = (torch.zeros(7), torch.zeros(7, dtype=torch.float64), ints(*[0] * 7), ints(*[0] * 7))
    _, pair = both(kernels.row_stats, logits, places)
    largest, rest, best, finite = zip(*pair)
    good = [0, 1, 2, 5]
    close([(ours[good], theirs[good]) for ours, theirs in (largest, rest, best)])
    assert best[0][0] == 0 and finite[0].tolist() == finite[1].tolist() == [1, 0, 0, 0, 0, 1, 0]


@needs_compiler
def test_pairs_and_best_tokens() -> None:
    rows, vocab = 4, 301
    logits = randn(3, rows, vocab) * 4
    logits[0, 3] = logits[0, 7] = logits[0].max() + 1
    logits[3] = (logits[3] * 2).round() / 2  # with ties
    largest = logits.amax(1)
    stats = (largest, (logits - largest[:, None]).exp().double().sum(1).log())
    out = torch.zeros(5, dtype=torch.float64), ints(*[0] * 5)
    pairs = ints(0, 3, -1, 1, 0), ints(7, 5, 0, 300, 3)
    ranks = alike(launch(kernels.PICK, 5), logits, vocab, *pairs, *stats, *out)[-1]
    assert ranks[0] == 2 and ranks[4] == 1
    best = torch.zeros(rows, 9, dtype=torch.int32), torch.zeros(rows, 9)
    ids = alike(launch(kernels.TOP, rows), logits, vocab, 9, *stats, *best)[-2]
    assert ids[0, :2].tolist() == [3, 7]


@needs_compiler
def test_edits() -> None:
    rows, vocab = 3, 60
    edits = random_edits(np.random.default_rng(4), rows, vocab)
    lists = [torch.from_numpy(getattr(edits, name)) for name in edits.__slots__]
    logits, scratch = randn(5, rows, vocab), torch.zeros(max(1, len(edits.allowed_ids)))
    ((ours, theirs), *_) = both(launch(kernels.EDIT, rows), logits, vocab, *lists, scratch)
    assert torch.allclose(ours, theirs, rtol=1e-6) and not torch.equal(ours, logits)


# ------------------------------------------------------------------ the executor on the kernels themselves
@needs_compiler
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_through_the_kernels(model: Model, deterministic: bool) -> None:
    """A fold, a hit, a published block and a decode row; logprobs, drawn tokens: no twin is used."""
    width = model.config.spec.attention.head_dim
    device = EmulatedDevice(torch.float32, width, deterministic=deterministic)
    executor, reference = on_device(model, device=device, levels=False), model.executor(num_blocks=BLOCKS)
    s = slices(
        [
            Segment(i32([5, 9, 2]), write=[3]),
            Segment(i32([7]), parent=0),
            Segment(i32([8, 1]), parent=0),
            Segment(i32([4]), context=18, blocks=[6, 1]),
        ]
    )
    readout = all_logprobs(i32([3, 5, 6]), ranks=True, top=2)
    drawn = sampling([0], temperature=0.8, seeds=3, top_k=20, top_p=0.9, logprobs=True)
    batch = MixedBatch(s, (readout,), decode_rows([17], [5], [[9]]), drawn)
    same(run(executor, batch), run(reference, batch), 2e-4)
    same_pools(executor, reference, 1e-4)
