"""A GPU for each process, made of host memory. Sums over the ranks run on gloo where NCCL would run them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def install() -> None:
    """In a process of its own: loading with ``device="cuda"`` finds a simulated device afterwards."""
    import torch
    import torch.distributed as dist
    from prelude.cuda import cuda_device, driver, recorder

    from prelude.loading import cuda
    from tests.cuda.simulated import SimulatedCalls, SimulatedDevice

    def simulated(element: torch.dtype, *, head_dim: int, deterministic: bool, ordinal: int, ranks: Any) -> Any:
        return SimulatedDevice(element, deterministic=deterministic, memory=1 << 29, ranks=ranks)

    def calls(model: Any, on: Any, setting: str, **_: Any) -> Any:
        heads = model.spec.attention
        if cuda.attention_for(setting, model, on.element, on.deterministic) == "keys":
            return None
        return SimulatedCalls(on, heads.heads, heads.kv_heads, heads.head_dim)

    def group(ranks: Any, backend: str, timeout: Any) -> Any:
        return new_group(ranks, backend="gloo", timeout=timeout)

    new_group: Any = dist.new_group
    recorder.WARM_TOKENS, recorder.WARM_ROWS = 32, 1  # each of these shapes takes this device a second
    driver.require = lambda: None
    torch.cuda.mem_get_info = lambda *_: (1 << 29, 1 << 29)
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda _: None
    torch.cuda.get_device_name = lambda *_: "simulated"
    cuda_device.CudaDevice = simulated  # type: ignore[assignment,misc]
    cuda.attention_calls = calls
    dist.new_group = group
    dist.is_nccl_available = lambda: True


def install_with_another_head() -> None:
    """Rank 1 draws other tokens than rank 0."""
    install()
    import torch.distributed as dist
    from prelude.cuda import weights

    whole = weights.load

    def load(device: Any, *rest: Any) -> Any:
        loaded = whole(device, *rest)
        if dist.get_rank() == 0 or loaded.lm_head is None:
            return loaded
        head = device.empty(loaded.lm_head.shape, loaded.lm_head.dtype)
        head.copy_(-loaded.lm_head)
        return replace(loaded, lm_head=head)

    weights.load = load


def install_with_a_failure(kind: str, method: str) -> None:
    """``method`` of the class ``kind`` fails on rank 1."""
    install()
    import torch.distributed as dist
    from prelude.cuda import executor

    from prelude.errors import InsufficientMemory

    def fail(*_: Any, **options: Any) -> Any:
        raise InsufficientMemory("there is no room", needed=2, available=1)

    if dist.get_rank() == 1:
        setattr(getattr(executor, kind), method, fail)
