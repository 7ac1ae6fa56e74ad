"""Our kernels: their sources, arguments and extents, and for each kernel a function that launches it.

``kinds`` says for each argument ``int``, ``float``, or the type behind a pointer (``?`` if it may be null).
``extents`` gives, for a grid and arguments, how many values each pointer must have behind it; reads through
indices are checked where the indices are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.device import Device

Argument: TypeAlias = "Tensor | int | float | None"
FILES = ("norms", "heads", "attend", "skinny_gemm", "logits", "sample", "publish")
"""Loaded with the device; another file is when a kernel of it is first launched."""
_TYPES = {"i32": torch.int32, "f32": torch.float32, "f64": torch.float64}


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    file: str
    block: int
    kinds: tuple[str, ...]
    extents: Callable[..., tuple[int, ...]]  # (rows, *args) -> least number of values per pointer argument
    cluster: int = 1
    """Blocks that share memory, from compute capability 9.0. A grid counts clusters; before 9.0 each is one block."""


def check(kernel: Kernel, grid: tuple[int, ...], args: Sequence[Argument], element: torch.dtype) -> None:
    """Raise ``TypeError`` or ``IndexError`` unless ``args`` fit ``kernel``: our own mistakes, found before
    they are the device's."""
    if len(args) != len(kernel.kinds):
        raise TypeError(f"{kernel.name} takes {len(kernel.kinds)} arguments, not {len(args)}")
    for kind, value in zip(kernel.kinds, args):
        if kind in ("int", "float"):
            if not isinstance(value, int if kind == "int" else (int, float)):
                raise TypeError(f"{kernel.name}: {value!r} where {kind} is taken")
        elif value is None:
            if not kind.endswith("?"):
                raise TypeError(f"{kernel.name}: null where {kind} is taken")
        else:
            wanted = element if kind.startswith("element") else _TYPES[kind.removesuffix("?")]
            if not isinstance(value, Tensor) or value.dtype != wanted:
                raise TypeError(f"{kernel.name}: {getattr(value, 'dtype', value)!r} where {wanted} is taken")
    pointers = [v for k, v in zip(kernel.kinds, args) if k not in ("int", "float")]
    for needed, value in zip(kernel.extents(grid[0], *args), pointers):
        if isinstance(value, Tensor) and room(value) < needed:
            raise IndexError(f"{kernel.name}: needs {needed} values, {room(value)} are there")


def room(tensor: Tensor) -> int:
    """Return values from the first of ``tensor`` to the end of its memory."""
    return int(tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset())


def _kernel(
    name: str, file: str, block: int, kinds: str, extents: Callable[..., tuple[int, ...]], cluster: int = 1
) -> Kernel:
    return Kernel(name, file, block, tuple(kinds.split()), extents, cluster)


EMBED_NORM = _kernel(
    "embed_norm",
    "norms",
    256,
    "i32 i32 element f32 float int f32 element",
    lambda n, ids, pending_tokens, table, gain, eps, width, x, normed: (n, 1, width, width, n * width, n * width),
)
RMS_NORM = _kernel(
    "rms_norm",
    "norms",
    256,
    "f32 f32 float int element",
    lambda n, x, gain, eps, width, normed: (n * width, width, n * width),
)
GATHER_NORM = _kernel(
    "gather_norm",
    "norms",
    256,
    "i32 f32 f32 float int f32? element? f32?",
    lambda n, rows, x, gain, eps, width, *out: (n, width, width, n * width, n * width, n * width),
)
GATHER = _kernel(
    "gather", "norms", 128, "i32 element int element", lambda n, rows, source, width, to: (n, width, n * width)
)
POOL_ROWS = _kernel(
    "pool_rows",
    "norms",
    256,
    "f32 i32 i32? int int int f32",
    lambda n, exact, indptr, before, mode, width, stride, out: (width, n + 1, n, (n - 1) * stride + width),
)
POOLINGS = ("mean", "max", "mean_sqrt_len_tokens", "weightedmean", "cls", "last")
"""Poolings in the order of the kernel's modes."""
QK_ROPE = _kernel(
    "qk_rope",
    "heads",
    512,
    "element int int int i32 f32 f32? f32? float i32? element? element?",
    lambda n, heads, queries, keys, values, *rest: (n * (queries + keys + values), n, 1, 1, 1, n, 1, 1),
)
SILU_GATE = _kernel(
    "silu_gate", "heads", 256, "element int element", lambda n, gate_up, inner, out: (2 * n * inner, n * inner)
)
ATTEND = _kernel(
    "attend",
    "attend",
    128,
    "element int element element int element element i32 i32 i32 int int float int int int element",
    lambda n, *args: (1, 0, 0, 0, 0, 0, args[13], args[13], args[13] * args[10]),
)
SKINNY_ROWS = 16
"""Rows of a product by the kernels of skinny_gemm.cu, at most."""
_SKINNY_OUTPUTS, _SKINNY_COLUMNS, _SKINNY_CHUNK = 16, 32, 6144


def _skinny(name: str, warps: int) -> Kernel:
    def extents(blocks: int, *args: Any) -> tuple[int, ...]:
        width, rows, outputs = args[2], args[3], blocks * _SKINNY_OUTPUTS
        return (rows * width, outputs * width, rows * outputs, rows * outputs)

    return _kernel(name, "skinny_gemm", 32 * warps, "element element int int element? f32?", extents)


SKINNY_GEMM = _skinny("skinny_gemm", 8)
SKINNY_GEMM_WIDE = _skinny("skinny_gemm_wide", 16)
_TILE_QUERIES = 64
_FULL_GRID = 1024
"""Blocks from which on a block of ``attend`` has all tiles of its rows."""
EVERY = (1 << 31) - 1
"""A span of keys that leaves none out."""
ROW_STATS = _kernel(
    "row_stats",
    "logits",
    1024,
    "f32 int f32 f64 i32? i32",
    lambda n, logits, vocab, *out: (n * vocab, n, n, n, n),
    cluster=8,
)
_STATS_SHARED = 33 * 24  # of ``Found`` in logits.cu
PICK = _kernel(
    "pick",
    "logits",
    256,
    "f32 int i32 i32 f32 f64 f64 i32?",
    lambda n, logits, vocab, *rest: (vocab, n, n, 1, 1, n, n),
)
LABELS = _kernel(
    "labels",
    "logits",
    128,
    "element element int i32 i32 f64",
    lambda n, normed, head, width, *rest: (width, width, n, n, n),
)
TOP = _kernel(
    "top",
    "logits",
    1024,
    "f32 int int f32 f64 i32 f32",
    lambda n, logits, vocab, count, *rest: (n * vocab, n, n, n * count, n * count),
)
EDIT = _kernel(
    "edit",
    "logits",
    512,
    "f32 int f32 f32 f32 i32 i32 i32 i32 i32 f32 i32 i32 i32 i32 f32",
    lambda n, logits, vocab, *rest: (n * vocab, n, n, n, n + 1, 0, 0, n + 1, 0, 0, n + 1, 0, n + 1, 0, 0),
)
SAMPLE = _kernel(
    "sample",
    "sample",
    1024,
    "f32 int f32 i32 f32 f32 f64 i32 int i32",
    lambda n, logits, vocab, *rest: (n * vocab, n, n, n, n, n, n, n),
    cluster=8,
)
_SAMPLE_BYTES = 21632  # of ``Block`` in sample.cu
_SAMPLE_SHARED = 96 << 10  # every GPU that is served has so much
PUBLISH = _kernel(
    "publish",
    "publish",
    256,
    "i32 int i32 int int i32",
    lambda n, source, count, ticket, stride, areas, host: (count, 2, areas * stride),
)
ALL = tuple(value for value in tuple(globals().values()) if isinstance(value, Kernel))


def embed_norm(
    device: Device,
    ids: Tensor,
    pending_tokens: Tensor,
    table: Tensor,
    gain: Tensor,
    eps: float,
    x: Tensor,
    normed: Tensor,
) -> None:
    """``x = table[ids]`` in float32, ``normed`` its RMSNorm. An id below 0 is ``pending_tokens[-1 - id]``."""
    device.launch(EMBED_NORM, (x.shape[0],), (ids, pending_tokens, table, gain, eps, x.shape[1], x, normed))


def rms_norm(device: Device, x: Tensor, gain: Tensor, eps: float, normed: Tensor) -> None:
    device.launch(RMS_NORM, (x.shape[0],), (x, gain, eps, x.shape[1], normed))


def gather_norm(
    device: Device,
    rows: Tensor,
    x: Tensor,
    gain: Tensor,
    eps: float,
    *,
    picked: Tensor | None = None,
    normed: Tensor | None = None,
    exact: Tensor | None = None,
) -> None:
    """Rows of ``x``: as they are to ``picked``, normed to ``normed``, normed in float32 to ``exact``."""
    device.launch(GATHER_NORM, (rows.shape[0],), (rows, x, gain, eps, x.shape[1], picked, normed, exact))


def gather(device: Device, rows: Tensor, source: Tensor, to: Tensor) -> None:
    device.launch(GATHER, (rows.shape[0],), (rows, source, source.shape[1], to))


def pool_rows(
    device: Device, pooling: str, exact: Tensor, indptr: Tensor, before: Tensor | None, out: Tensor
) -> None:
    """``out`` [items, width], whose rows may be apart: of each item's rows of ``exact`` one of ``POOLINGS``."""
    width, mode = exact.shape[1], POOLINGS.index(pooling)
    device.launch(POOL_ROWS, (out.shape[0],), (exact, indptr, before, mode, width, out.stride(0), out))


def qk_rope(
    device: Device,
    heads: Tensor,
    counts: tuple[int, int, int],
    positions: Tensor,
    rope_table: Tensor,
    gains: tuple[Tensor | None, Tensor | None],
    eps: float,
    slots: Tensor | None,
    pool: tuple[Tensor, Tensor] | None,
) -> None:
    """``heads`` [rows, queries + keys + values, D] in place; keys and values also to ``pool`` at ``slots``."""
    pool_k, pool_v = pool if pool is not None else (None, None)
    device.launch(
        QK_ROPE, (heads.shape[0],), (heads, *counts, positions, rope_table, *gains, eps, slots, pool_k, pool_v)
    )


def silu_gate(device: Device, gate_up: Tensor, out: Tensor) -> None:
    inner = out.shape[1]
    per_block = SILU_GATE.block * 8
    device.launch(SILU_GATE, (out.shape[0], -(-inner // per_block)), (gate_up, inner, out))


def skinny_gemm(device: Device, x: Tensor, weight: Tensor, out: Tensor, *, add: bool) -> bool:
    """Enqueue ``out = x @ weight.T`` for an ``out`` in the element type, or ``out += x @ weight.T`` for one in
    float32, of at most ``SKINNY_ROWS`` rows that lie in one piece; False if the kernels do not serve these sizes."""
    (rows, width), outputs = x.shape, weight.shape[0]
    if not 0 < rows <= SKINNY_ROWS or width % _SKINNY_COLUMNS or outputs % _SKINNY_OUTPUTS:
        return False
    if x.dtype != device.element:
        return False
    if out.dtype != (torch.float32 if add else x.dtype) or not all(t.is_contiguous() for t in (x, weight, out)):
        return False
    blocks = outputs // _SKINNY_OUTPUTS
    kernel = SKINNY_GEMM_WIDE if blocks <= device.processors else SKINNY_GEMM
    pitch, warps = min(width, _SKINNY_CHUNK) + 8, kernel.block // 32
    shared = (8 if rows <= 8 else 16) * (2 * pitch + 4 * warps * _SKINNY_OUTPUTS)  # rows of x, and each warp's sums
    outs = (None, out) if add else (out, None)
    device.launch(kernel, (blocks,), (x, weight, width, rows, *outs), shared=shared)
    return True


def publish(device: Device, source: Tensor, ticket: Tensor, areas: int, host: Tensor) -> None:
    """``source`` into one of the ``areas`` of equal size that ``host`` has, behind its header, and then the number of
    ``ticket``, all int32."""
    device.launch(PUBLISH, (1,), (source, source.shape[0], ticket, host.shape[0] // areas, areas, host))


def labels(device: Device, normed: Tensor, head: Tensor, rows: Tensor, targets: Tensor, out: Tensor) -> None:
    """``out[p]`` float64: the product of row ``rows[p]`` of ``normed`` and row ``targets[p]`` of ``head``."""
    device.launch(LABELS, (out.shape[0],), (normed, head, normed.shape[1], rows, targets, out))


def row_stats(device: Device, logits: Tensor, places: Sequence[Tensor | None]) -> None:
    """Write for each row of ``logits`` float32 [rows, vocab] to ``places`` its largest, the logarithm of the sum of
    exponentials relative to that (float64), the first id of the largest (may be None), and whether every logit is
    finite."""
    rows, vocab = logits.shape
    device.launch(ROW_STATS, (rows,), (logits, vocab, *places), shared=_STATS_SHARED)


def attend(
    device: Device,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: tuple[Tensor, Tensor],
    lists: tuple[Tensor, Tensor, Tensor],
    kv_heads: int,
    out: Tensor,
    span: int = EVERY,
) -> None:
    """q [rows, heads, D], k and v [tokens, kv_heads, D] strided alike; ``lists`` are keys, first, count. A row reads
    the last ``span`` keys of its list."""
    rows, heads, width = q.shape
    if device.element == torch.bfloat16 and width % 16 == 0:  # by tensor cores
        group = heads // kv_heads
        most, parts = _TILE_QUERIES // min(group, _TILE_QUERIES), -(-group // _TILE_QUERIES)
        ranges, row = -(-rows // most), 2 * (width + 8)
        spread = min(most, max(1, _FULL_GRID // (ranges * kv_heads * parts)))
        grid, keys = (ranges * spread, kv_heads * parts), 16 if width > 128 else 32
        shared = (_TILE_QUERIES + 4 * keys) * row + 4 * (2 * keys + _TILE_QUERIES + 1)
    else:
        warps, spread = ATTEND.block // 32, 1
        grid, shared = (rows, -(-heads // warps)), warps * width * 4
    sizes = (heads, kv_heads, width**-0.5, rows, span, spread)
    device.launch(ATTEND, grid, (q, q.stride(0), k, v, k.stride(0), *pool, *lists, *sizes, out), shared=shared)


def sample(device: Device, logits: Tensor, settings: Sequence[Tensor], finite: Tensor, tokens: Tensor) -> None:
    """``tokens[r]`` int32: a token of each row of ``logits`` float32 [rows, vocab]. ``settings``: temperature, top_k,
    top_p, min_p and uniform numbers, a value a row; a row whose ``finite`` is 0 gets token 0."""
    rows, vocab = logits.shape
    most = (_SAMPLE_SHARED - _SAMPLE_BYTES) // 4
    part = -(-vocab // SAMPLE.cluster // 4) * 4
    room = part if part <= most else 0
    shared = _SAMPLE_BYTES + 4 * room
    device.launch(SAMPLE, (rows,), (logits, vocab, *settings, finite, room, tokens), shared=shared)
