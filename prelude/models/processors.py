"""How many threads the kernels use if nothing says so: one for each core that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from prelude.models.memory import control_groups, number_in, text_of


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
