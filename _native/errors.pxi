# The errors of the module, and the error of each status. Part of core.pyx.

class NativeError(Exception):
    """Base of the errors that this module raises on purpose. The call that raised has changed nothing."""


class OutOfBlocks(NativeError):
    """Fewer blocks are free, or can be freed, than were asked for."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} blocks needed, {available} available")
        self.needed = needed
        self.available = available


class BlockError(NativeError, ValueError):
    """A block id that the caller may not use like this; ``block`` is the id."""

    def __init__(self, message: str, block: int) -> None:
        super().__init__(f"block {block}: {message}")
        self.block = block


class ForeignBlock(BlockError):
    """The id is outside the pool."""


class DoubleFree(BlockError):
    """The block is free, or was freed and handed out again since the caller saw it."""


class NodeError(NativeError, ValueError):
    """A node id that cannot be used like this; ``node`` is the id."""

    def __init__(self, message: str, node: int) -> None:
        super().__init__(f"node {node}: {message}")
        self.node = node


class StaleNode(NodeError):
    """The id names no node, or one that was evicted."""


class ConcurrentUse(NativeError, RuntimeError):
    """Two threads wrote to one pool at the same time."""


class AuditError(NativeError):
    """An invariant does not hold; ``counts`` has every number the audit counted."""

    def __init__(self, message: str, counts: dict[str, int]) -> None:
        super().__init__(f"{message}; " + ", ".join(f"{k}={v}" for k, v in counts.items()))
        self.counts = counts


cdef object _error(Result r, int64_t needed):
    cdef Status s = r.status
    if s == Status.out_of_blocks:
        return OutOfBlocks(needed, r.detail)
    if s == Status.foreign_block:
        return ForeignBlock("not in this pool", r.detail)
    if s == Status.double_free:
        return DoubleFree("is free already", r.detail)
    if s == Status.stale_block:
        return DoubleFree("was freed and handed out again since", r.detail)
    if s == Status.block_in_trie:
        return BlockError("belongs to the trie; lock its node instead", r.detail)
    if s == Status.block_shared:
        return BlockError("has more than one reference; the trie takes blocks held once", r.detail)
    if s == Status.too_few_tokens:
        return ValueError(f"the blocks given hold {r.detail} tokens, more than there are")
    if s == Status.stale_node:
        return StaleNode("does not exist (any more)", r.detail)
    if s == Status.not_locked:
        return NodeError("is not locked", r.detail)
    if s == Status.node_promised:
        return NodeError("is promised; fulfil or break the promise first", r.detail)
    if s == Status.not_promised:
        return NodeError("is not promised", r.detail)
    return NativeError(f"a counter of {r.detail} is full")


cdef int _check(Result r, int64_t needed=0) except -1:
    if r.status != Status.ok:
        raise _error(r, needed)
    return 0
