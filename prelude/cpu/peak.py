"""The most memory that this process took while a call ran, as the kernel counts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prelude.models.memory import give_back_freed

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_PEAK = "5"  # sets VmHWM back to the present size (proc_pid_clear_refs(5))


def resident_bytes() -> int | None:
    """Return bytes that this process has in memory now; None if the system does not say."""
    return _status("VmRSS")


def peak_bytes(run: Callable[[], object]) -> int | None:
    """Return bytes that the process grew by at most while ``run`` ran; None if the system does not count.

    Memory that was freed before goes back to the system first, so that ``run`` has to ask for all that it uses. Other
    threads that allocate meanwhile are counted as well.
    """
    give_back_freed()
    before = _status("VmRSS")
    try:
        _RESET.write_text(_PEAK, encoding="utf-8")
    except OSError:
        return None
    run()
    most = _status("VmHWM")
    return None if before is None or most is None else max(0, most - before)


def _status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
