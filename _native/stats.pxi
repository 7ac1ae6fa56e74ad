# The statistics of a request. Part of core.pyx.

import dataclasses as _dataclasses

# The statistics of a request: names, types and defaults. The class below has them as fields of C.
_STATS = (
    ("execution_class", str, ""), ("prompt_tokens", int, 0), ("cached_tokens", int, 0), ("computed_tokens", int, 0),
    ("deferred_ticks", int, 0), ("chunks", int, 0), ("preemptions", int, 0), ("queue_ms", float, 0.0),
    ("forward_ms", float, 0.0), ("tokenize_ms", float, 0.0), ("detok_ms", float, 0.0), ("finish_reason", object, None),
    ("truncated_tokens", int, 0), ("estimated_jct", float, 0.0), ("batch_size_seen", int, 0), ("replays", int, 0),
    ("ttft_ms", float, 0.0), ("total_ms", float, 0.0), ("request_id", object, None), ("timeline", object, None),
)


@cython.no_gc  # numbers, strings and a tuple of marks
@cython.freelist(256)
cdef class RequestStats:
    """The statistics of one request. Times are wall milliseconds.

    ``computed_tokens`` are tokens that went through the layers for this request, ``cached_tokens`` were read from
    the prefix cache; a state shared by N questions is counted once. ``ttft_ms`` and ``total_ms`` count from when the
    request was handed to the engine, after tokenising. ``timeline`` is there where it was asked for.
    ``estimated_jct`` is the cost model's expectation when the request was planned: seconds of computing its prompt
    alone; 0 before a step was measured. ``deferred_ticks`` counts steps spent waiting for another to compute
    the prefix.
    """

    cdef public object execution_class, finish_reason, request_id, timeline
    cdef public int64_t prompt_tokens, cached_tokens, computed_tokens, deferred_ticks, chunks, preemptions
    cdef public int64_t truncated_tokens, batch_size_seen, replays
    cdef public double queue_ms, forward_ms, tokenize_ms, detok_ms, estimated_jct, ttft_ms, total_ms

    __dataclass_fields__ = _dataclasses.make_dataclass("RequestStats", _STATS).__dataclass_fields__

    def __cinit__(self, *args, **fields):
        self.execution_class = ""

    def __init__(self, *args, **fields):
        names = [name for name, _, _ in _STATS]
        if len(args) > len(names):
            raise TypeError(f"{len(args)} values for {len(names)} fields")
        for name, value in zip(names, args):
            setattr(self, name, value)
        for name, value in fields.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return "RequestStats(" + ", ".join(f"{name}={getattr(self, name)!r}" for name, _, _ in _STATS) + ")"

    def __eq__(self, other) -> bool:
        if not isinstance(other, RequestStats):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _, _ in _STATS)

    def __reduce__(self):
        return RequestStats, tuple([getattr(self, name) for name, _, _ in _STATS])
