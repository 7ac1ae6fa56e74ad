"""The share of a GPU that becomes KV blocks: the rest beside weights and workspace, less the peak of a full step.

total or max_memory ─ others ─ weights ─ workspace ─ peak of a probe step ─ reserve (graphs, their workspaces)
    = available
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from prelude.errors import InsufficientMemory

_LEAST_RESERVE = 256 << 20
_RESERVE_SHARE = 64


def reserve(total: int) -> int:
    """Return bytes left alone: recorded graphs and their attention workspaces come later, and libraries take some."""
    return max(_LEAST_RESERVE, total // _RESERVE_SHARE)


def blocks_for(free: int, total: int, block_bytes: int, *, blocks: int | None, nbytes: int | None) -> int:
    """KV blocks of ``block_bytes`` each if ``free`` bytes are left behind a step of full size. One more is the
    scratch block, which ``limits()`` does not state: ``nbytes`` includes it, ``blocks`` does not. Never more
    than they ask for.

    Raises :class:`InsufficientMemory` if the requested blocks do not fit, or none does.
    """
    available = max(0, free - reserve(total))
    fitting = available // block_bytes - 1
    wanted = blocks
    if blocks is None and nbytes is not None:
        wanted = nbytes // block_bytes - 1
        if wanted < 1:
            raise InsufficientMemory(
                f"kv_bytes={nbytes:,} does not hold a KV block and the scratch block, {2 * block_bytes:,} bytes: "
                "raise it",
                needed=2 * block_bytes,
                available=nbytes,
            )
    needed = ((wanted or 1) + 1) * block_bytes
    if fitting < (wanted or 1):
        raise InsufficientMemory(
            f"{wanted or 1:,} KV blocks need {needed:,} bytes of GPU memory; {available:,} of {total:,} are left "
            "behind the weights, the workspace and a full step: lower kv_bytes or kv_blocks, max_step_tokens or "
            "logits_bytes",
            needed=needed,
            available=available,
        )
    return fitting if wanted is None else wanted


def room(max_memory: int | float | None, before: int, free: int) -> int:
    """Bytes of the ``free`` ones that an engine may still take. ``max_memory``: see ``EngineConfig``; a share is of
    the bytes that were free ``before`` the engine took any."""
    if max_memory is None:
        return free
    most = int(max_memory * before) if isinstance(max_memory, float) else max_memory
    return max(0, min(free, most - (before - free)))


@contextmanager
def fits(memory: Callable[[], tuple[int, int]], use: str, *, behind: int = 0) -> Iterator[None]:
    """Turns an allocator's errors inside into :class:`InsufficientMemory`. The size of ``use`` is not known
    if it did not end: ``needed`` is the least possible size, all that was free and the ``behind`` bytes which are
    wanted after it."""
    free, total = memory()
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        needed = free + max(behind, 1)
        raise InsufficientMemory(
            f"{use} needs more than the {free:,} of {total:,} bytes of GPU memory that are left, and {behind:,} "
            f"behind it, {needed:,} or more in all: lower max_step_tokens or logits_bytes, or free GPU memory",
            needed=needed,
            available=free,
        ) from error
