"""Lease: proof of held KV resources, given back exactly once, in one place; and the pool that gives it.

What both are, and how promises work, is drawn in ``_native/include/prelude/kv_pool.hpp``.
"""

from prelude._native import core
from prelude._native.core import Lease


class KvPool(core.KvPool):
    """Block accounts of one engine. One writer at a time: the holder of the baton."""


__all__ = ["KvPool", "Lease"]
