"""The bytes and operations of a OneShot pass's kernels, and the time that they allow on an H200.

    python -m bench gpu_count [--model 06b] [--rows 128] [--share 4]

Arithmetic, not a measurement: nothing of this has run. ``floor`` is the weights' way from memory or the operations,
at NVIDIA's published figures. ``expected`` adds the parts that the floor leaves out:

    reads   bytes that the multiprocessors take in through the L2 cache: weights once; rows of x once for each tile of
            outputs, or for each cluster of tiles that share them; partial sums of a tile's other blocks; sums of
            squares of rows that await their norm's factor, once for each tile
    ring    a block waits for its stages, of which all but one are on their way; where rows are shared the tiles of a
            cluster wait for each other
    blocks  a multiprocessor takes in 64 bytes a clock, so few blocks do not reach the L2 cache's rate
    edge    between two kernels, with dependent launch

    chain   attention only: the parts of a block that wait for each other, a guess

Attention of the last layer is FlashInfer's, and its time the estimate of a reading of its launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prelude.cuda import own_attention, own_matmul
from prelude.cuda.kernels import ROW_STATS
from prelude.cuda.own_attention import TILE
from prelude.cuda.own_matmul import ADD, GATE, HEADS, NORM, SHARES, Job, Variant, variants

from bench.command_line import options_parser
from bench.gpu.models import MODELS
from prelude.models.config import ModelConfig

MEMORY = 4.8e12
"""Bytes a second of an H200, published."""
TENSOR = 989e12
"""Dense bfloat16 operations a second of an H200, published."""
CACHE = 5.5e12
"""Bytes a second from the L2 cache to 132 multiprocessors: public measurements of the H100 give 5.5 to 7."""
ONE = 64 * 1.755e9
"""Bytes a second from the L2 cache to one multiprocessor."""
EDGE = 0.7
"""Microseconds between dependent launches: 1.3 without dependence is published for the H100."""
LATENCY = 478.8 / 1.755e9
"""Seconds until a read of memory is answered, by public measurements of the H100: 478.8 clocks."""
CROSSING = 180 / 1.755e9
"""Seconds until a block of a cluster sees that another one has written to its shared memory: 180 clocks, likewise."""
CHAIN = 1.5
"""Microseconds in which a block of attention reads the lengths, then queries, keys and values, multiplies, and joins
the results of its warps."""
FLASHINFER = 5.0
"""Microseconds of its attention, at 16 of 264 blocks with work: for 128 rows."""
HEAD_ROWS = 1
PUBLISHED = 512 + 3
"""Numbers of 4 bytes: room for the tokens of a step, and a row's statistics."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    launch: str
    weights: float  # bytes
    reads: float  # bytes into multiprocessors, the weights among them
    operations: float
    floor: float  # microseconds
    expected: float  # with the edge
    times: int


def product(name: str, job: Job, times: int, share: int) -> Row:
    """The variant of ``own_matmul`` that the count has as the fastest, of those whose rows at most ``share`` tiles
    read together."""
    offered = (variant for variant in variants(job) if variant.share <= share)
    return min((_product(name, job, variant, times) for variant in offered), key=lambda row: row.expected)


def _product(name: str, job: Job, variant: Variant, times: int) -> Row:
    tiles, tile = variant.tiles(job), 64 * variant.groups
    weights = 2.0 * job.outputs * job.inner
    rows_read = 2.0 * tiles / variant.share * job.rows * job.inner
    sums = 4.0 * tiles * tile * job.rows * (variant.blocks - 1)
    parts = -(-job.inner // 64) if job.mode in (GATE, HEADS) else 0  # at most: of the product in front
    squares = 4.0 * tiles * job.rows * parts
    operations = 2.0 * job.rows * job.outputs * job.inner
    used = min(1.0, tiles * variant.blocks * ONE / CACHE)
    floor = max(weights / MEMORY, operations / TENSOR)
    reads = weights + rows_read + sums + squares
    steps = -(-job.inner // 64 // variant.blocks)
    late = LATENCY + (CROSSING if variant.share > 1 else 0.0)
    expected = max(floor / used, reads / (CACHE * used), steps * late / (own_matmul.stages_of(job, variant) - 1))
    launch = f"{tiles} x {variant.blocks} of {tile}" + (f", shared by {variant.share}" if variant.share > 1 else "")
    return Row(name, launch, weights, reads, operations, floor * 1e6, expected * 1e6 + EDGE, times)


def rows_of(name: str, blocks: int, moved: float, times: int) -> Row:
    """A kernel of a block a row whose bytes lie in the L2 cache."""
    used = min(1.0, blocks * ONE / CACHE)
    return Row(name, f"{blocks}", 0.0, moved, 0.0, 0.0, moved / (CACHE * used) * 1e6 + EDGE, times)


def attention(rows: int, heads: int, head_dim: int, times: int) -> Row:
    """``own_attention`` of a lone prompt: a block for each tile of rows of each query head."""
    tiles = own_attention.tiles(rows, 1)
    keys = sum(min(rows, (tile + 1) * TILE) for tile in range(tiles))
    reads = 2.0 * heads * head_dim * (2 * keys + rows)
    used = min(1.0, tiles * heads * ONE / CACHE)
    longest = 2.0 * 2.0 * rows * head_dim / ONE
    operations = 4.0 * heads * head_dim * rows * rows / 2
    expected = max(reads / (CACHE * used), longest) * 1e6 + CHAIN + EDGE
    return Row("attention", f"{tiles} x {heads}", 0.0, reads, operations, operations / TENSOR * 1e6, expected, times)


def count(config: ModelConfig, rows: int, share: int) -> Iterator[Row]:
    """A lone prompt whose last token is read: the last layer has queries, and all behind attention, for that row."""
    spec, layers = config.spec, len(config.spec.layers)
    heads, inner, hidden = spec.attention, spec.layers[0].mlp.inner, spec.hidden
    queries, width, read = heads.query_width, heads.qkv.outputs, HEAD_ROWS
    yield rows_of("embedding, norm", rows, rows * hidden * (2 + 4 + 4 + 2), 1)
    qkv = Job(HEADS, rows, width, hidden, hidden, width, heads.head_dim)
    yield product("qkv, q/k norm, rotation", qkv, layers - 1, share)
    yield attention(rows, heads.heads, heads.head_dim, layers - 1)
    yield product("out, residual, norm", Job(NORM, rows, hidden, queries, queries, hidden), layers - 1, share)
    yield product("gate_up, gate", Job(GATE, rows, 2 * inner, hidden, hidden, inner), layers - 1, share)
    yield product("down, residual, norm", Job(NORM, rows, hidden, inner, inner, hidden), layers - 1, share)
    yield rows_of("norm of the read row", read, read * hidden * 6.0, 1)
    values = width - queries
    kv = Job(HEADS, rows, values, hidden, hidden, values, heads.head_dim)
    yield product("keys and values of the last layer", kv, 1, share)
    q = Job(HEADS, read, queries, hidden, hidden, queries, heads.head_dim)
    yield product("queries of the read row", q, 1, share)
    scores, moved = 4.0 * read * heads.heads * heads.head_dim * rows, 2.0 * rows * values
    floor = scores / TENSOR * 1e6
    yield Row("attention of the read row", "FlashInfer", 0.0, moved, scores, floor, FLASHINFER + EDGE, 1)
    yield product("out, residual, norm of the read row", Job(NORM, read, hidden, queries, queries, hidden), 1, share)
    yield product("gate_up, gate of the read row", Job(GATE, read, 2 * inner, hidden, hidden, inner), 1, share)
    yield product("down, residual of the read row", Job(ADD, read, hidden, inner, inner, hidden), 1, share)
    yield rows_of("final norm", read, read * hidden * 6.0, 1)
    vocab = config.vocab_size
    head = 2.0 * vocab * hidden
    yield Row("head", "library", head, head, 2.0 * read * vocab * hidden, head / MEMORY * 1e6, 0.0, 1)
    yield rows_of("statistics", read * ROW_STATS.cluster, 2 * 4.0 * vocab, 1)
    yield rows_of("the token, to where the next step finds it", read, 8.0 * read, 1)
    yield rows_of("results to the host", 1, 8.0 * PUBLISHED, 1)


def table(config: ModelConfig, rows: int, share: int = SHARES[-1]) -> list[str]:
    lines = [
        "| kernel | blocks | weights, MB | reads, MB | GFLOP | floor, us | expected, us | times |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = list(count(config, rows, share))
    floor = expected = 0.0
    for row in found:
        one = row.expected or row.floor + EDGE
        lines.append(
            f"| {row.name} | {row.launch} | {row.weights / 1e6:.1f} | {row.reads / 1e6:.1f} | "
            f"{row.operations / 1e9:.2f} | {row.floor:.1f} | {one:.1f} | {row.times} |"
        )
        floor += row.floor * row.times
        expected += one * row.times
    nodes = sum(row.times for row in found)
    return [*lines, f"| the pass, {nodes} nodes | | | | | {floor:.0f} | {expected:.0f} | |"]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--model", choices=MODELS, default="06b")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--share", type=int, choices=SHARES, default=SHARES[-1], help="most tiles that share rows")
    chosen = parser.parse_args()
    print("\n".join(table(MODELS[chosen.model], chosen.rows, chosen.share)))


if __name__ == "__main__":
    main()
