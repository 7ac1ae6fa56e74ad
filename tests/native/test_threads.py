"""Two threads that write at once are told; one that lets go of the GIL in a long call is still one writer."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from prelude._native import core

from tests.patience import PATIENCE


def test_a_second_writer_is_told() -> None:
    """Long calls let go of the GIL, so another thread can come in: it gets an error, not a torn trie."""
    pool = core.BlockAllocator(1 << 16, 16)
    trie = core.PrefixTrie(pool)
    tokens = np.arange(1 << 20, dtype=np.int32)
    stop = threading.Event()
    refused = 0

    def write() -> None:
        nonlocal refused
        while not stop.is_set():
            try:
                blocks = trie.allocate(1 << 16)
                trie.insert(tokens, blocks)
                trie.evict(1 << 16)
            except core.ConcurrentUse:
                refused += 1
            except core.OutOfBlocks:  # the insert was refused: its blocks are still ours
                pool.release(blocks)

    writer = threading.Thread(target=write)
    writer.start()
    began = time.monotonic()
    told = 0
    while told == 0 and time.monotonic() - began < PATIENCE:
        try:
            trie.match(tokens[:16])
        except core.ConcurrentUse:
            told += 1
    stop.set()
    writer.join()
    assert told
    trie.audit()


@pytest.mark.feature("E12")
def test_readers_need_no_turn() -> None:
    """would_hit and the counters answer while a writer is inside a long call."""
    pool = core.BlockAllocator(1 << 15, 16)
    trie = core.PrefixTrie(pool)
    tokens = np.arange(1 << 18, dtype=np.int32)
    kept = np.arange(-64, 0, dtype=np.int32)
    trie.lock(trie.insert(kept, trie.allocate(4)).node)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            trie.insert(tokens, trie.allocate(1 << 14))
            trie.evict(1 << 14)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert trie.would_hit(kept) == 4
            assert 4 <= trie.stats()["nodes"] <= 4 + (1 << 14)
            assert 0 <= pool.num_free <= pool.num_blocks
    finally:
        stop.set()
        writer.join()
    trie.audit()
