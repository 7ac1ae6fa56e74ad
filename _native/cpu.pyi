from collections.abc import Callable, Sequence
from typing import Any, final

NAME: str
LANES: int
ACTIVATIONS: dict[str, int]

def threads() -> int: ...
def set_threads(count: int) -> None: ...
def give_threads(count: int) -> int: ...
def thread_ids(threads: int) -> list[int]: ...

@final
class ThreadPlaces:
    def __init__(self, ids: Sequence[int]) -> None: ...
    def keep_off(self) -> None: ...
    def give_back(self) -> None: ...

PACKINGS: dict[str, int]
PACKED_KERNELS: dict[str, str]
PACKED_GROUP: int
BLOCK_KINDS: dict[str, int]
INT8_BLOCK: int
Q8_BYTES: int
MOST_INT8_WEIGHT: float

def packed_words(outputs: int, inputs: int, packing: int) -> int: ...
def pack_rows(
    weight: int,
    stride: int,
    half: bool,
    outputs: int,
    inputs: int,
    packing: int,
    words: int,
    first: int = 0,
) -> None: ...
def exp_sums(values: int, stride: int, rows: int, width: int, most: int, totals: int) -> None: ...
def widen_values(values: int, count: int, out: int) -> None: ...
def narrow_values(values: int, count: int, out: int) -> None: ...
def not_finite(values: int, count: int, size: int, exponent: int) -> int: ...
def large_pages(memory: int, count: int) -> None: ...
def pack_q8_rows(rows: int, outputs: int, inputs: int, words: int) -> None: ...
def dequantize_rows(kind: int, blocks: int, rows: int, inputs: int, out: int) -> None: ...
def quantize_rows(weight: int, rows: int, inputs: int, out: int) -> None: ...
def unpack_rows(words: int, outputs: int, inputs: int, packing: int, chosen: int, count: int, out: int) -> None: ...
def int8_pairs(
    words: int,
    outputs: int,
    inputs: int,
    x: int,
    x_stride: int,
    chosen: int,
    count: int,
    room: int,
    out: int,
) -> None: ...
def int8_row_words(inputs: int) -> int: ...

@final
class Attention:
    def __init__(
        self,
        heads: int,
        kv_heads: int,
        width: int,
        scale: float,
        query_starts: Any,
        visible: Any,
        run_starts: Any,
        run_from: Any,
        run_length: Any,
        run_pool: Any,
        hidden: Any = None,
        cap: float = 0.0,
        places: Any = None,
        relative_panels: int = 0,
        section_starts: Any = None,
    ) -> None: ...
    @property
    def pairs(self) -> int: ...
    def run(
        self,
        q: Any,
        k: Any,
        v: Any,
        pool_k: Any,
        pool_v: Any,
        out: Any,
        relative: tuple[Any, Any, Any, int] | None = None,
        section: int = -1,
    ) -> None: ...

@final
class PagedRows:
    num_slots: int
    def __init__(
        self, blocks: Any, begins: Any, ends: Any, lengths: Any, block_size: int, offsets: Any = None
    ) -> None: ...
    def __len__(self) -> int: ...
    def attend(
        self,
        q: int,
        q_stride: int,
        k: int,
        v: int,
        out: int,
        *,
        slots: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bfloat16: bool,
        scale: float,
        cap: float = 0.0,
    ) -> None: ...

MOST_TAPS: int

def state_floats(shape: tuple[int, int, int, int]) -> int: ...

@final
class Sequences:
    entries: int
    def __init__(self, starts: Any, parents: Any, load: Any, store: Any, entries: int, kernel: int) -> None: ...
    def convolve(
        self,
        x: int,
        x_stride: int,
        out: int,
        out_stride: int,
        factor: int,
        weight: int,
        bias: int,
        windows: int,
        state_stride: int,
        channels: int,
        rows: int,
        entries: int,
        half: bool,
    ) -> None: ...
    def delta(
        self,
        x: int,
        x_stride: int,
        gates: int,
        made: int,
        made_stride: int,
        weight: int,
        rate: int,
        offset: int,
        windows: int,
        states: int,
        state_stride: int,
        shape: tuple[int, int, int, int],
        rows: int,
        entries: int,
        half: bool,
    ) -> None: ...

def gate_rows(
    x: int,
    x_stride: int,
    x_half: bool,
    by: int,
    by_stride: int,
    out: int,
    out_stride: int,
    half: bool,
    gain: int,
    rows: int,
    heads: int,
    width: int,
    eps: float,
    silu: bool,
) -> None: ...

# ------------------------------------------------------------------ the kernels on tensors, which are torch's

def know_tensors(
    float32: object,
    bfloat16: object,
    int64: object,
    complex64: object,
    empty: Callable[..., Any],
) -> None: ...
def is_half(x: Any) -> bool: ...
def norm_tensor(x: Any, eps: float, gain: Any, dtype: Any, out: Any = None) -> Any: ...
def layer_norm_tensor(x: Any, eps: float, gain: Any, bias: Any, dtype: Any, out: Any = None) -> Any: ...
def rotate_tensor(heads: Any, gain: Any, eps: float, table: Any, positions: Any) -> None: ...

@final
class PackedProduct:
    def __init__(self, words: Any, bias: Any, outputs: int, inputs: int, packing: int) -> None: ...
    def __call__(self, x: Any, out: Any, adds: bool = False) -> None: ...

_Norm = tuple[str, float, Any, Any]

@final
class BeforeMixer:
    def __init__(
        self,
        projection: PackedProduct,
        norm: _Norm | None = None,
        rotation: tuple[int, int, int, float, Any] | None = None,
    ) -> None: ...
    def __call__(
        self, x: Any, out: Any, chunk: int, normed: Any = None, table: Any = None, positions: Any = None
    ) -> None: ...

@final
class BehindMixer:
    def __init__(
        self,
        out: PackedProduct,
        up: PackedProduct,
        down: PackedProduct,
        activation: str,
        gated: bool,
        norm_first: bool,
        mixer_norm: _Norm | None,
        mlp_norm: _Norm | None,
        mixer_after: _Norm | None,
        mlp_after: _Norm | None,
    ) -> None: ...
    def __call__(self, x: Any, mixed: Any, chunk: int, normed: Any, up: Any, sums: Any = None) -> None: ...

def activate_tensor(x: Any, inner: int, kind: str, gated: bool) -> Any: ...
def write_pool_tensors(k: Any, v: Any, pool_k: Any, pool_v: Any, slots: Any, tokens: Any) -> None: ...
