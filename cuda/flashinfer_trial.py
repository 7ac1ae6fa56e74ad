"""Tries FlashInfer on this GPU before an engine uses it: a ragged, a paged and a decode call, each planned, recorded,
and replayed with a plan of other lengths whose bytes were kept, are compared with float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from prelude.cuda import kept_choices
from prelude.cuda.attention import Calls
from prelude.cuda.device import Device
from prelude.cuda.driver import is_final
from torch import Tensor

_PAGE, _PAGES = 16, 8
_TOLERANCE = 2e-2
"""Tolerance as a part of the largest value, as in ``matmul_search.py``."""
_PASSED = {"passed": True}
Lists = dict[str, list[int]]

# Kinds of calls with their arrays: those that each is recorded with, and those that it is replayed with.
_CASES: tuple[tuple[str, Lists, Lists], ...] = (
    ("ragged", {"qo": [0, 1, 64], "kv": [0, 1, 64]}, {"qo": [0, 37, 50], "kv": [0, 37, 50]}),
    (
        "paged",
        {"qo": [0, 1, 64], "indptr": [0, 1, 2], "last": [1, 1], "pages": [0, 0, 0, 0]},
        {"qo": [0, 23, 50], "indptr": [0, 1, 4], "last": [16, 5], "pages": [6, 3, 7, 1]},
    ),
    (
        "decode",
        {"indptr": [0, 1, 2], "last": [1, 1], "pages": [0, 0, 0, 0]},
        {"indptr": [0, 1, 4], "last": [3, 16], "pages": [2, 5, 4, 7]},
    ),
)


def failure(device: Device, calls: Calls, heads: tuple[int, int, int], trials: Path) -> str | None:
    """Why FlashInfer cannot serve ``heads`` (query heads, KV heads, values of each) here; None if it can, which
    the next process knows by the file ``trials``. An error of the driver is raised: it is final."""
    name = "x".join(map(str, heads))
    if name in kept_choices.read(trials, [_PASSED].__contains__):
        return None
    for kind, recorded, replayed in _CASES:
        try:
            right = _is_right(device, calls, heads, kind, recorded, replayed)
        except Exception as error:
            if is_final(error):
                raise
            device.mark().wait()  # before the memory of the copies that were asked for goes with the traceback
            return f"its {kind} call failed: {type(error).__name__}: {error}"
        if not right:
            return f"its {kind} call gives other numbers than float32"
    kept_choices.add(trials, [_PASSED].__contains__, {name: _PASSED})
    return None


def _is_right(
    device: Device, calls: Calls, heads: tuple[int, int, int], kind: str, recorded: Lists, replayed: Lists
) -> bool:
    queries, kv_heads, width = heads
    host = {n: device.pinned((len(v),), torch.int32) for n, v in recorded.items()}
    buffers = {n: device.zeros((len(v),), torch.int32) for n, v in recorded.items()}

    def planned(lists: Lists) -> np.ndarray:
        for name, values in lists.items():
            host[name].copy_(torch.tensor(values, dtype=torch.int32))
            device.copy(host[name], buffers[name])
        return call.plan({**host, **{n: b for n, b in buffers.items() if n == "pages"}})

    def some(*shape: int) -> Tensor:
        return device.empty(shape, torch.bfloat16).normal_()

    rows = recorded["qo"][-1] if "qo" in recorded else 2
    q, out = some(rows, queries, width), device.zeros((rows, queries, width), torch.bfloat16)
    of_keys = (rows, kv_heads, width) if kind == "ragged" else (_PAGES, _PAGE, kv_heads, width)
    k, v = some(*of_keys), some(*of_keys)
    if kind == "ragged":
        call = calls.ragged(buffers)
    else:
        call = calls.paged(buffers, _PAGE) if kind == "paged" else calls.decode(buffers, _PAGE, False)
    workspace = device.zeros((len(planned(recorded)),), torch.uint8)
    call.bind(workspace)
    planned(recorded)

    def work() -> None:
        call.run(q, k, v, out, None)

    device.warm(work, search=False)
    graph = device.capture(work)
    plan = planned(replayed)
    kept = device.pinned((len(workspace),), torch.uint8)
    if len(plan) != len(kept):
        raise RuntimeError(f"a plan has {len(plan)} bytes; the recorded one had {len(kept)}")
    kept.copy_(torch.from_numpy(plan.copy()))
    device.copy(kept, workspace)
    graph.launch()
    device.mark().wait()
    graph.close()
    return all(same(out[part], exact) for part, exact in _wanted(kind, replayed, q, k, v))


def _wanted(kind: str, lists: Lists, q: Tensor, k: Tensor, v: Tensor) -> list[tuple[slice, Tensor]]:
    """Return each request's rows and their outputs in float32."""
    found = []
    edges = lists.get("qo", [0, 1, 2])
    for r, part in enumerate(map(slice, edges, edges[1:])):
        if kind == "ragged":
            keys, values = k[part], v[part]
        else:
            pages = lists["pages"][lists["indptr"][r] : lists["indptr"][r + 1]]
            count = (len(pages) - 1) * _PAGE + lists["last"][r]
            keys, values = (x[pages].flatten(0, 1)[:count] for x in (k, v))
        found.append((part, in_float32(q[part], keys, values, causal=kind == "ragged")))
    return found


def in_float32(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Return the attention of ``q`` [n, heads, D] to ``k``, ``v`` [m, KV heads, D], by torch."""
    k, v = (x.float().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * q.shape[2] ** -0.5
    if causal:
        later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Return whether the largest difference is at most ``_TOLERANCE`` of the largest value; a NaN is not."""
    difference = (ours.float() - theirs.float()).abs().max()
    return bool(difference <= _TOLERANCE * theirs.float().abs().max())
