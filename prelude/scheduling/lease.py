"""Lease: proof of held KV resources, given back exactly once, in one place; and the pool that gives it.

What both are, and how promises work, is drawn in ``_native/include/prelude/kv_pool.hpp``.
"""

from prelude._native.core import KvPool, Lease

__all__ = ["KvPool", "Lease"]
