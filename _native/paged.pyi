from typing import Any, final

@final
class PagedRows:
    num_slots: int
    def __init__(self, blocks: Any, begins: Any, ends: Any, lengths: Any, block_size: int) -> None: ...
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
        width: int = 0,
    ) -> None: ...
