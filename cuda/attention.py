"""The one file that calls FlashInfer (read in 0.7.2.post1). Plans are made outside of graphs, into fixed buffers.

The demands of its wrappers, and how they are met here:

- The first plan of a wrapper in graph mode fixes the most rows it will ever have: the caller plans a full bucket
  first.
- Split-KV costs a merge kernel a layer, and in graph mode it would always be on. It is off unless one block
  a tile would leave the device idle: decode rows with many keys, and few rows behind a long prefix.
- ``plan`` writes a pinned buffer of the wrapper and copies it asynchronously; a second plan before that copy ran
  would change the first. ``_Call`` waits for the copy.
- Index arrays live in the step's staging area, which the wrapper holds as its own buffers.
- A recorded call's integer workspace lies in the staging area too. All that ``plan`` leaves on the device is the
  content of that workspace, the kernels' other arguments being fixed in graph mode. So the bytes that a plan wrote
  into the pinned buffer are kept for each content of the lengths (``levels.py``), and go in with the packed copy of
  every step: known lengths need no call of FlashInfer's. ``_used`` reads from the plan's own vector how many bytes
  these are.
- FA3 serves prompts of 256 tokens and more if it is built (compute capability 9): a shorter one leaves most of its
  128-row tiles empty.
- indptrs are given as pinned host arrays (it reads them on the host), pages as device arrays (a host copy would
  wait).

Log-sum-exps are FlashInfer's, in base 2.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from prelude.cuda import kept_choices
from prelude.cuda.cuda_device import CudaDevice
from prelude.cuda.device import Mark
from prelude.cuda.shapes import FLOAT_WORKSPACE
from torch import Tensor

HEAD_DIMS = (64, 128, 256)
"""Widths of heads that FlashInfer is built for in both prefill and decode."""
_CUDA_CORE_GROUPS = (1, 2, 3)
"""Query heads per KV head up to which decode on CUDA cores streams as fast as tensor cores."""
VERSION = "0.7.2.post1"
"""The release that this file was read against."""

_NO_BYTES: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)


class LevelCall(Protocol):
    """One attention call of a step: planned from host arrays, run once a layer."""

    def plan(self, arrays: dict[str, Tensor]) -> npt.NDArray[np.uint8]:
        """``arrays``: qo, kv, indptr and last as pinned views, pages on the device. Returns the plan's part of
        the workspace; the memory is the call's, until the next plan."""
        ...

    def bind(self, workspace: Tensor) -> None:
        """Where a recorded call's plans lie on the device: as many bytes as its plans have. Before the plan that the
        recording is made with."""
        ...

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None: ...


class Calls(Protocol):
    """The call that a backend makes. With ``buffers``, device arrays of one size, the call can be recorded: they are
    where it reads from. Without, every plan brings arrays of its own. ``ragged`` is causal: a request's last query
    sees all its keys. ``long``: queries are long (``LONG_QUERY``);
    ``split``: keys are split among blocks."""

    @property
    def fa3(self) -> bool:
        """Whether long queries have a kernel of their own."""
        ...

    def ragged(self, buffers: dict[str, Tensor] | None, long: bool = False) -> LevelCall: ...

    def paged(self, buffers: dict[str, Tensor] | None, page_size: int, split: bool = False) -> LevelCall: ...

    def decode(self, buffers: dict[str, Tensor] | None, page_size: int, split: bool = True) -> LevelCall: ...

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None: ...


def missing() -> str | None:
    """Return the parts that FlashInfer lacks here; None if it can be called. Imports nothing."""
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer is not installed (pip install 'prelude-engine[cuda]')"
    return None


def trials(gpu: str) -> Path:
    """Return the file of the trials of this release that passed on ``gpu``, under this torch."""
    return kept_choices.path_of("flashinfer", metadata.version("flashinfer-python"), torch.__version__, gpu)


class FlashInferCalls:
    """Plans and runs for one model's heads in bfloat16."""

    def __init__(self, device: CudaDevice, heads: int, kv_heads: int, head_dim: int) -> None:
        import flashinfer  # type: ignore[import-not-found,import-untyped,unused-ignore]

        self.flashinfer = flashinfer
        self.device = device
        self.sizes = heads, kv_heads, head_dim
        self.tensor_cores = heads // kv_heads not in _CUDA_CORE_GROUPS
        # Decode may split keys; its first use must find zeros there.
        self.workspace = device.zeros((FLOAT_WORKSPACE,), torch.uint8)
        self.types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}

    @property
    def fa3(self) -> bool:
        return self.device.capability[0] == 9

    def ragged(self, buffers: dict[str, Tensor] | None, long: bool = False) -> LevelCall:
        wrapper = self.flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            self.workspace,
            "NHD",
            use_cuda_graph=buffers is not None,
            qo_indptr_buf=buffers["qo"] if buffers else None,
            kv_indptr_buf=buffers["kv"] if buffers else None,
            backend="fa3" if long and self.fa3 else "fa2",
        )

        def plan(arrays: dict[str, Tensor]) -> None:
            wrapper.plan(arrays["qo"], arrays["kv"], *self.sizes, causal=True, disable_split_kv=True, **self.types)

        return _Call(self, wrapper, buffers is not None, plan, paged=False)

    def paged(self, buffers: dict[str, Tensor] | None, page_size: int, split: bool = False) -> LevelCall:
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

        def plan(arrays: dict[str, Tensor]) -> None:
            tables = (arrays["qo"], *_tables(arrays), *self.sizes, page_size)
            wrapper.plan(*tables, causal=False, disable_split_kv=not split, **self.types)

        return _Call(self, wrapper, buffers is not None, plan)

    def decode(self, buffers: dict[str, Tensor] | None, page_size: int, split: bool = True) -> LevelCall:
        """Plan without ``split`` by tensor cores, for any heads: the other kernel always splits in graph mode."""
        wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self.workspace,
            "NHD",
            use_cuda_graph=buffers is not None,
            use_tensor_cores=self.tensor_cores or not split,
            paged_kv_indptr_buffer=buffers["indptr"] if buffers else None,
            paged_kv_indices_buffer=buffers["pages"] if buffers else None,
            paged_kv_last_page_len_buffer=buffers["last"] if buffers else None,
            backend="fa2",
        )

        def plan(arrays: dict[str, Tensor]) -> None:
            wrapper.plan(*_tables(arrays), *self.sizes, page_size, disable_split_kv=not split, **self.types)

        return _Call(self, wrapper, buffers is not None, plan)

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        self.flashinfer.merge_state_in_place(out, lse, other, other_lse)


def _used(plan: Sequence[int]) -> int:
    """Bytes of the integer workspace that a plan in graph mode fills. ``plan`` is FlashInfer's vector of numbers
    (``PrefillPlanInfo``, ``PrefillPlanSM90Info``, ``DecodePlanInfo`` of its ``scheduler.cuh``); the array that is
    allocated last ends the workspace."""
    if len(plan) == 15:  # FA2: the mask of valid blocks, a byte each
        return int(plan[12] + plan[0])
    if len(plan) == 9:  # FA3: the requests, as many as the tiles that stand first
        return int(plan[7] + plan[1] - plan[0])
    if len(plan) == 10:  # decode on CUDA cores: the mask if keys are split, else the size of a part
        return int(plan[6] + plan[0] if plan[9] else plan[7] + 4)
    raise RuntimeError(f"FlashInfer's plan has {len(plan)} numbers; this code was read against {VERSION}")


def _tables(arrays: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return arrays["indptr"], arrays["pages"][: int(arrays["indptr"][-1])], arrays["last"]


class _Call:
    """K and V of ``paged`` calls are [pages, page_size, kv_heads, D]."""

    def __init__(
        self,
        calls: FlashInferCalls,
        wrapper: Any,
        graph: bool,
        plan: Callable[[dict[str, Tensor]], None],
        *,
        paged: bool = True,
    ) -> None:
        self.calls, self.wrapper, self.graph, self.paged = calls, wrapper, graph, paged
        self._plan = plan
        self._copied: Mark | None = None  # the plan before has left the pinned buffer

    def bind(self, workspace: Tensor) -> None:
        self.wrapper.reset_workspace_buffer(self.calls.workspace, workspace)

    def plan(self, arrays: dict[str, Tensor]) -> npt.NDArray[np.uint8]:
        if self._copied is not None:
            self._copied.wait()
        self._plan(arrays)
        self._copied = self.calls.device.mark()
        if not self.graph:
            return _NO_BYTES
        planned: npt.NDArray[np.uint8] = self.wrapper._pin_memory_int_workspace_buffer.numpy()
        return planned[: _used(self.wrapper._plan_info)]

    def run(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        keys = ((k, v),) if self.paged else (k, v)
        self.wrapper.run(q, *keys, out=out, lse=lse, return_lse=lse is not None)
