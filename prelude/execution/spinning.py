"""How long torch's OpenMP threads wait in a loop before they sleep: said before torch is imported, or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
