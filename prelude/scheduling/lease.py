"""Lease: proof of held KV resources; and the pool that gives it.

``Request.give_back`` is the only function that gives a lease back, once.
These functions call it, each at another turn of a request's life:

    postprocess.finish                  the request ends
    postprocess._postprocess_oneshot    OneShot requests end with their step
    planner.preempt                     a running request gives way, and is computed again later
    planner._defer                      a prompt waits for another request that computes its prefix
    planner._start                      a prompt finds no room in this step
    recovery._withdraw                  a planned OneShot row waits again, since its step failed
    in_flight.give_back_ended           the last step that has a row of an ended request is complete

``_native/include/prelude/kv_pool.hpp`` has the drawing of both and of promises.
"""

from prelude._native.core import KvPool, Lease

__all__ = ["KvPool", "Lease"]
