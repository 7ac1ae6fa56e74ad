"""torch's own OpenMP threads, which some operations of a step still use: how long they wait for work, and forks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPINS = 3000
"""Looks at a barrier before a thread sleeps: 50 to 150 us. The pauses between two operations of a step are shorter.
libgomp's own default is 300,000: for several milliseconds the thread keeps a processor that others could use."""


@contextmanager
def short_spins() -> Iterator[None]:
    """``GOMP_SPINCOUNT`` for the import of torch inside the block: libgomp reads it when it is loaded, and never
    again. Where torch is loaded already, or the environment says how OpenMP waits, nothing is changed. The variable
    is taken out again, so that child processes do not inherit it."""
    if "torch" in sys.modules or "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


@functools.cache
def end_before_forks() -> None:
    """From here on a thread that forks ends its OpenMP threads; torch's next operation makes new ones. libgomp does
    not notice a fork: in the child that thread would wait for threads that are not there, for ever."""
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with contextlib.suppress(OSError, AttributeError):  # macOS and Windows; libgomp before GCC 9
        pause = ctypes.CDLL(str(library)).omp_pause_resource_all
        os.register_at_fork(before=lambda: pause(_SOFT))


_SOFT = 1  # keeps OpenMP's settings
