"""How many processors this process may use, how much memory it may still take before weights are copied, and the KV
pool made of that.

The system kills a process that takes too much memory, without an error. So the need is compared with the free memory
of the machine and of every control group above this process, and the refusal states both numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from prelude.errors import InsufficientMemory

MAX_BLOCKS = 1 << 24  # of the pool's allocator


def available_memory(root: str | Path = "/") -> int | None:
    """Bytes that can be allocated without reclaiming memory of other processes; None if the system does not state
    it."""
    base = Path(root)
    found = [value for value in (_machine(base), *_control_groups(base)) if value is not None]
    return max(0, min(found)) if found else None


def require_memory(needed: int, use: str, available: int | None) -> None:
    """Raise :class:`InsufficientMemory` unless ``needed`` bytes fit into ``available``."""
    if available is not None and needed > available:
        raise InsufficientMemory(
            f"{use} needs {needed:,} bytes ({needed / 2**30:.2f} GiB), "
            f"{available:,} bytes ({available / 2**30:.2f} GiB) are available: "
            "free memory, choose a smaller dtype or a smaller model",
            needed=needed,
            available=available,
        )


def give_back_freed() -> None:
    """Returns freed memory of this process to the system. glibc keeps the room of the weights' temporary copies for
    itself: 45 to 135 MB after a model of 1.2 GB. Nothing happens with other libraries of C."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Let glibc keep what steps free, 64 MB at most. It gives the end of its memory back beyond twice the largest
    block that was freed, up to 32 MB, and then each step faults on the pages that the one before it had: one of 256
    tokens of MiniLM-L6 on 736. So it is shown such a block, whose pages are not touched. Nothing happens if this
    process may not have so much."""
    with contextlib.suppress(MemoryError):
        np.empty((32 << 20) - (64 << 10), np.uint8)


def default_running_states(available: int, bytes_per_state: int, *, running: int) -> int:
    """Return for how many sequences a CPU keeps recurrent states: for ``running`` ones, as far as their states
    take no more than a quarter of the ``available`` bytes that the weights leave; for one at least."""
    return max(1, min(running, available // 4 // bytes_per_state))


def default_prefixes(available: int | None, bytes_per_state: int) -> int:
    """Return for how many cached prefixes a CPU keeps recurrent states: as many as take an eighth of the
    ``available`` bytes that the weights leave, 256 at most; 16 if the system does not say."""
    return 16 if available is None else min(256, available // 8 // bytes_per_state)


def default_blocks(
    available: int | None, block_bytes: int, *, block_size: int, longest: int, running: int, fallback: int
) -> int:
    """Return blocks of a CPU's KV pool if the caller does not say how many.

    ``available``: bytes that the weights leave. A quarter of them, and up to a half if one sequence of ``longest``
    tokens needs more than the quarter. Not more than ``running`` sequences of ``longest`` tokens fill, or
    ``fallback`` bytes if that is more. ``available=None`` (the system does not say): ``fallback`` bytes.
    """
    if available is None:
        return min(MAX_BLOCKS, max(1, fallback // block_bytes))
    one = -(-longest // block_size)
    room = max(available // 4, min(available // 2, one * block_bytes)) // block_bytes
    return min(MAX_BLOCKS, max(1, min(room, max(one * running, fallback // block_bytes))))


def _machine(base: Path) -> int | None:
    for line in text_of(base / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def control_groups(base: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The folder of each control group from ours up to the root that ``controller`` may be bounded in; True for
    version 2, whose files have other names."""
    for line in text_of(base / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers != "" and controller not in controllers.split(","):
            continue
        mount = base / "sys/fs/cgroup" / ("" if controllers == "" else controller)
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        # Inside a container the path may be the host's, while the mount is the container's own group.
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth]), controllers == ""


def _control_groups(base: Path) -> list[int]:
    """The free bytes of each control group from ours up to the root; page cache that can be dropped is free."""
    left: list[int] = []
    for group, second in control_groups(base, "memory"):
        limit, usage = (
            ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        most, used = number_in(group / limit), number_in(group / usage)
        if most is not None and used is not None:
            left.append(most - used + _reclaimable(group))
    return left


def _reclaimable(group: Path) -> int:
    names = ("inactive_file", "active_file")
    total = 0
    for line in text_of(group / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key in names and value.strip().isdigit():
            total += int(value)
    return total


def number_in(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def processors(root: str | Path = "/") -> int:
    """Processors that this process may use: its affinity, and the quotas of its control groups, rounded up."""
    count = len(_allowed())
    for group, second in control_groups(Path(root), "cpu"):
        if second:
            quota, _, period = text_of(group / "cpu.max").strip().partition(" ")
        else:
            quota, period = (str(number_in(group / f"cpu.cfs_{name}_us") or "") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


def default_threads(root: str | Path = "/") -> int:
    """``OMP_NUM_THREADS``, whose first number counts, else the cores of the processors that this process may use: two
    threads on one core compute no faster than one."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isdigit() and int(said) > 0:
        return int(said)
    folder = Path(root) / "sys/devices/system/cpu"
    cores = {text_of(folder / f"cpu{n}" / "topology" / "thread_siblings_list") or str(n) for n in _allowed()}
    return min(processors(root), len(cores))


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
