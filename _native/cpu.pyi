from typing import Any, final

NAME: str
LANES: int
ACTIVATIONS: dict[str, int]

def borrow_threads(entry: int) -> None: ...
def has_threads() -> bool: ...
def thread_ids(threads: int) -> list[int]: ...
def norm_rows(
    x: int,
    x_stride: int,
    gain: int,
    out: int,
    out_stride: int,
    half: bool,
    rows: int,
    width: int,
    eps: float,
    threads: int,
    centred: bool = False,
    bias: int = 0,
) -> None: ...
def rotate_rows(
    values: int,
    in_stride: int,
    out: int,
    out_stride: int,
    half: bool,
    gain: int,
    rows: int,
    heads: int,
    width: int,
    eps: float,
    turns: int,
    positions: int,
    threads: int,
) -> None: ...
def activate_rows(
    values: int, stride: int, half: bool, rows: int, inner: int, kind: int, gated: bool, threads: int
) -> None: ...
def product_rows(
    x: int,
    x_stride: int,
    weight: int,
    out: int,
    out_stride: int,
    rows: int,
    width: int,
    outputs: int,
    half: bool,
    out_half: bool,
    adds: bool,
    threads: int,
) -> None: ...
def write_pool_rows(
    k: int,
    k_stride: int,
    v: int,
    v_stride: int,
    pool_k: int,
    pool_v: int,
    values: int,
    num_tokens: int,
    num_slots: int,
    tokens: int,
    slots: int,
    rows: int,
    half: bool,
    threads: int,
) -> None: ...

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
    ) -> None: ...
    @property
    def pairs(self) -> int: ...
    def run(
        self,
        q: int,
        q_stride: int,
        k: int,
        k_stride: int,
        v: int,
        v_stride: int,
        pool_k: int,
        pool_v: int,
        pool_stride: int,
        out: int,
        out_stride: int,
        queries: int,
        tokens: int,
        slots: int,
        half: bool,
        threads: int,
        relative_keys: int = 0,
        relative_queries: int = 0,
        relative_rows: int = 0,
        relative_span: int = 0,
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
        threads: int = 1,
    ) -> None: ...
