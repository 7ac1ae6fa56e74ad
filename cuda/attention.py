"""The one file that calls FlashInfer (read in 0.7.2.post1). Plans are made outside of graphs, into fixed buffers.

The demands of its wrappers, and how they are met here:

- The first plan of a wrapper in graph mode fixes the most rows it will ever have: the caller plans a full bucket
  first.
- Split-KV is off in prefill: it costs a merge kernel a layer, and in graph mode it would always be on.
- ``plan`` writes a pinned buffer of the wrapper and copies it asynchronously; a second plan before that copy ran
  would change the first. ``_Guard`` waits for the copy.
- Index arrays live in the step's staging area, which the wrapper holds as its own buffers: the packed copy has filled
  them before the plan runs, and a plan that is still valid needs no call at all.
- indptrs are given as pinned host arrays (it reads them on the host), pages as device arrays (a host copy would
  wait).

Log-sum-exps are FlashInfer's, in base 2.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from prelude.cuda.device import CudaDevice, Mark
from torch import Tensor

HEAD_DIMS = (64, 128, 256)
"""RecordedReadout widths FlashInfer is built for in both prefill and decode."""
_CUDA_CORE_GROUPS = (1, 2, 3)
"""Query heads per KV head up to which decode on CUDA cores streams as fast as tensor cores."""
_FLOAT_WORKSPACE = 256 << 20
_INT_WORKSPACE = 2 << 20
_INT_WORKSPACE_EAGER = 8 << 20


class LevelCall(Protocol):
    """One attention call of a step: planned from host arrays, run once a layer."""

    def plan(self, lengths: bytes, arrays: dict[str, Tensor]) -> None:
        """``arrays``: qo, kv, indptr and last as pinned views, pages on the device, all of them sent already;
        ``lengths`` is all that the plan depends on, so that an equal one may be kept."""
        ...

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None: ...


class Calls(Protocol):
    """The call that a backend makes. With ``buffers``, device arrays of one size, the call can be recorded: they are
    where it reads from. Without, every plan brings arrays of its own."""

    def ragged(self, buffers: dict[str, Tensor] | None, *, causal: bool) -> LevelCall: ...

    def paged(self, buffers: dict[str, Tensor] | None, page_size: int) -> LevelCall: ...

    def decode(self, buffers: dict[str, Tensor] | None, page_size: int) -> LevelCall: ...

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None: ...


def missing() -> str | None:
    """The parts that FlashInfer lacks here; None if it can be called. Imports nothing."""
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer is not installed (pip install 'prelude-engine[cuda]')"
    return None


@dataclass(slots=True)
class _Guard:
    """Lets a plan begin only when the copy of the one before has left its pinned buffer."""

    device: CudaDevice
    copied: Mark | None = None

    def before(self) -> None:
        if self.copied is not None:
            self.copied.wait()

    def after(self) -> None:
        self.copied = self.device.mark()


class FlashInferCalls:
    """Plans and runs for one model's heads in bfloat16."""

    def __init__(self, device: CudaDevice, heads: int, kv_heads: int, head_dim: int, prefill: str = "fa2") -> None:
        import flashinfer  # type: ignore[import-not-found,import-untyped,unused-ignore]

        self.flashinfer = flashinfer
        self.device = device
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.prefill = prefill
        self.tensor_cores = heads // kv_heads not in _CUDA_CORE_GROUPS
        # Decode may split keys; its first use must find zeros there.
        self.workspace = device.zeros((_FLOAT_WORKSPACE,), torch.uint8)
        self.types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}

    def ragged(self, buffers: dict[str, Tensor] | None, *, causal: bool) -> LevelCall:
        wrapper = self.flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            self.workspace,
            "NHD",
            use_cuda_graph=buffers is not None,
            qo_indptr_buf=buffers["qo"] if buffers else None,
            kv_indptr_buf=buffers["kv"] if buffers else None,
            backend=self.prefill,
        )
        return _Ragged(self, wrapper, buffers is not None, causal)

    def paged(self, buffers: dict[str, Tensor] | None, page_size: int) -> LevelCall:
        wrapper = self.flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self.workspace,
            "NHD",
            use_cuda_graph=buffers is not None,
            qo_indptr_buf=buffers["qo"] if buffers else None,
            paged_kv_indptr_buf=buffers["indptr"] if buffers else None,
            paged_kv_indices_buf=buffers["pages"] if buffers else None,
            paged_kv_last_page_len_buf=buffers["last"] if buffers else None,
            backend="fa2",
        )
        return _Paged(self, wrapper, buffers is not None, page_size)

    def decode(self, buffers: dict[str, Tensor] | None, page_size: int) -> LevelCall:
        wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self.workspace,
            "NHD",
            use_cuda_graph=buffers is not None,
            use_tensor_cores=self.tensor_cores,
            paged_kv_indptr_buffer=buffers["indptr"] if buffers else None,
            paged_kv_indices_buffer=buffers["pages"] if buffers else None,
            paged_kv_last_page_len_buffer=buffers["last"] if buffers else None,
        )
        return _Decode(self, wrapper, buffers is not None, page_size)

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        self.flashinfer.merge_state_in_place(out, lse, other, other_lse)


class _Call:
    """The shared part of the three kinds: the cached plan and its guard."""

    def __init__(self, calls: FlashInferCalls, wrapper: Any, graph: bool) -> None:
        self.calls = calls
        self.wrapper = wrapper
        self.graph = graph
        self.guard = _Guard(calls.device)
        self.planned: bytes | None = None
        size = _INT_WORKSPACE if graph else _INT_WORKSPACE_EAGER
        wrapper.reset_workspace_buffer(calls.workspace, calls.device.empty((size,), torch.uint8))

    def plan(self, lengths: bytes, arrays: dict[str, Tensor]) -> None:
        if lengths == self.planned:
            return
        self.guard.before()
        self.planned = None
        self._plan(arrays)
        if self.graph:  # otherwise the wrapper holds on to this step's arrays
            self.planned = lengths
        self.guard.after()

    def _plan(self, arrays: dict[str, Tensor]) -> None:
        raise NotImplementedError


class _Ragged(_Call):
    def __init__(self, calls: FlashInferCalls, wrapper: Any, graph: bool, causal: bool) -> None:
        super().__init__(calls, wrapper, graph)
        self.causal = causal

    def _plan(self, arrays: dict[str, Tensor]) -> None:
        calls = self.calls
        self.wrapper.plan(
            arrays["qo"],
            arrays["kv"],
            calls.heads,
            calls.kv_heads,
            calls.head_dim,
            causal=self.causal,
            disable_split_kv=True,
            **calls.types,
        )

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        self.wrapper.run(q, k, v, out=out, lse=lse, return_lse=lse is not None)


class _OverPages(_Call):
    """K and V are [pages, page_size, kv_heads, D]."""

    def __init__(self, calls: FlashInferCalls, wrapper: Any, graph: bool, page_size: int) -> None:
        super().__init__(calls, wrapper, graph)
        self.page_size = page_size

    def _paged(self, arrays: dict[str, Tensor]) -> tuple[Any, ...]:
        """The arguments of both wrappers, in their order."""
        calls, count = self.calls, int(arrays["indptr"][-1])
        tables = (arrays["indptr"], arrays["pages"][:count], arrays["last"])
        return (*tables, calls.heads, calls.kv_heads, calls.head_dim, self.page_size)


class _Paged(_OverPages):
    def _plan(self, arrays: dict[str, Tensor]) -> None:
        self.wrapper.plan(
            arrays["qo"],
            *self._paged(arrays),
            causal=False,
            disable_split_kv=True,
            **self.calls.types,
        )

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        self.wrapper.run(q, (k, v), out=out, lse=lse, return_lse=lse is not None)


class _Decode(_OverPages):
    def _plan(self, arrays: dict[str, Tensor]) -> None:
        self.wrapper.plan(*self._paged(arrays), **self.calls.types)

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        self.wrapper.run(q, (k, v), out=out)
