from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]
_F32 = npt.NDArray[np.float32]
_F64 = npt.NDArray[np.float64]

NAME: str
LANES: int
ACTIVATIONS: dict[str, int]

def threads() -> int: ...
def set_threads(count: int) -> None: ...
def give_threads(count: int) -> int: ...
def in_step(begins: bool) -> None: ...
def thread_ids(threads: int) -> list[int]: ...

@final
class ThreadPlaces:
    def __init__(self, ids: Sequence[int]) -> None: ...
    def keep_off(self) -> None: ...
    def give_back(self) -> None: ...

PACKINGS: dict[str, int]
PACKED_KERNELS: dict[str, str]
QUICK_PAIRS: bool
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
def address(x: _Array) -> int: ...
def widen_values(values: int, count: int, out: int) -> None: ...
def narrow_values(values: int, count: int, out: int) -> None: ...
def not_finite(values: int, count: int, size: int, exponent: int) -> int: ...
def large_pages(memory: int, count: int) -> None: ...
def pack_blocks(rows: int, outputs: int, inputs: int, packing: int, words: int) -> None: ...
def dequantize_rows(kind: int, blocks: int, rows: int, inputs: int, out: int) -> None: ...
def quantize_rows(weight: int, rows: int, inputs: int, out: int) -> None: ...

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
        self, q: _Array, pool_k: _Array, pool_v: _Array, out: _Array, *, scale: float, cap: float = 0.0
    ) -> None: ...

MOST_TAPS: int

def state_floats(shape: tuple[int, int, int, int]) -> int: ...

@final
class Sequences:
    entries: int
    def __init__(self, starts: Any, parents: Any, load: Any, store: Any, entries: int, kernel: int) -> None: ...
    def convolve(
        self,
        x: _Array,
        out: _Array,
        factor: _Array,
        weight: _F32,
        bias: _F32 | None,
        states: _F32,
        first: int,
    ) -> None: ...
    def delta(
        self,
        x: _Array,
        gates: _Array,
        made: _F32,
        weight: _F32,
        rate: _F32,
        offset: _F32,
        states: _F32,
        first: int,
        shape: tuple[int, int, int, int],
    ) -> None: ...

def gate(
    x: _Array, by: _Array, out: _Array, gain: _F32 | None = None, eps: float = 0.0, silu: bool = False
) -> None: ...
def rms_norm(x: _F32, eps: float, gain: _F32 | None, out: _Array | None = None) -> _Array: ...
def layer_norm(x: _F32, eps: float, gain: _F32 | None, bias: _F32 | None, out: _Array | None = None) -> _Array: ...
def rotate(heads: _Array, gain: _F32 | None, eps: float, table: _Array, positions: _Array) -> None: ...
def activate(x: _Array, inner: int, kind: str, gated: bool) -> _Array: ...
def write_pool(
    k: _Array, v: _Array, pool_k: _Array, pool_v: _Array, slots: _Array, tokens: _Array | None
) -> None: ...
def add_rows(x: _F32, totals: _F64) -> None: ...
def exp_sums(values: _F32) -> tuple[_F32, _F64]: ...

@final
class PackedProduct:
    def __init__(
        self,
        words: _Array,
        bias: _F32 | None,
        outputs: int,
        inputs: int,
        packing: int,
        behind: PackedProduct | None = None,
    ) -> None: ...
    def __call__(self, x: _Array, out: _Array, adds: bool = False) -> None: ...
    def gather(self, outputs: _Array) -> _F32: ...
    def integer_pairs(self, x: _F32, outputs: _Array) -> _F64: ...

_Norm = tuple[str, float, _F32 | None, _F32 | None]

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
