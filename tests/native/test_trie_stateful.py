"""Trie and allocator against dictionaries: every operation, every outcome, the audit after each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prelude._native import core

Key = tuple[int, ...]  # the salt, then the tokens of the prefix


class Entry:
    def __init__(self, block: int, tick: int, protected: bool, promised: bool = False) -> None:
        self.block, self.tick, self.protected, self.promised = block, tick, protected, promised
        self.locks = 0


class Oracle:
    """The contract of the trie, with a scan for every operation."""

    def __init__(self, num_blocks: int, size: int) -> None:
        self.size = size
        self.free = set(range(num_blocks))
        self.held: dict[int, int] = {}  # block → references of callers
        self.nodes: dict[Key, Entry] = {}
        self.tick = 0

    def path(self, key: Key) -> list[Key]:
        """The keys of the prefixes of ``key``, shortest first, itself included."""
        return [key[: 1 + i] for i in range(self.size, len(key), self.size)]

    def key(self, tokens: list[int], salt: int, blocks: int) -> Key:
        return (salt, *tokens[: blocks * self.size])

    def below(self, key: Key) -> list[Key]:
        return [k for k in self.nodes if len(k) >= len(key) and k[: len(key)] == key]

    def covered(self, key: Key) -> bool:
        return any(self.nodes[k].locks for k in self.below(key))

    def walk(self, tokens: list[int], salt: int, limit: int) -> tuple[int, int]:
        ready = promised = 0
        for blocks in range(1, min(limit, len(tokens) // self.size) + 1):
            entry = self.nodes.get(self.key(tokens, salt, blocks))
            if entry is None:
                break
            if entry.promised:
                promised += 1
            else:
                ready += 1
        return ready, promised

    def touch(self, key: Key, hit: bool) -> None:
        self.tick += 1
        for k in self.path(key):
            if not self.covered(k):
                self.nodes[k].tick = self.tick
            self.nodes[k].protected |= hit

    def coldest(self, spare_protected: bool = False) -> Key | None:
        leaves = [k for k in self.nodes if len(self.below(k)) == 1 and not self.covered(k)]
        if spare_protected:
            leaves = [k for k in leaves if not self.nodes[k].protected]
        return min(leaves, key=lambda k: (self.nodes[k].protected, self.nodes[k].tick), default=None)

    def evict(self, n: int) -> int:
        for freed in range(n):
            key = self.coldest()
            if key is None:
                return freed
            self.free.add(self.nodes.pop(key).block)
        return n

    def evictable(self, spare_protected: bool) -> int:
        return sum(not self.covered(k) and not (spare_protected and self.nodes[k].protected) for k in self.nodes)


SALTS = st.integers(0, 1)
TOKENS = st.lists(st.integers(0, 1), max_size=9)


class TrieMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([1, 2, 5, 12]), size=st.integers(1, 3), hash_bits=st.sampled_from([0, 1, 32])
    )
    def make(self, num_blocks: int, size: int, hash_bits: int) -> None:
        self.pool = core.BlockAllocator(num_blocks, size)
        self.trie = core.PrefixTrie(self.pool, seed=7, hash_bits=hash_bits)
        self.oracle = Oracle(num_blocks, size)
        self.ids: dict[Key, int] = {}  # every node id ever seen, by key
        self.stale: set[int] = set()
        self.locked: list[Key] = []
        self.promises: list[tuple[Key, int]] = []

    # --- blocks -----------------------------------------------------------------------------------------------

    @rule(n=st.integers(0, 6), evicting=st.booleans(), spare=st.booleans())
    def allocate(self, n: int, evicting: bool, spare: bool) -> None:
        o = self.oracle
        available = len(o.free) + (o.evictable(spare) if evicting else 0)
        if n > available:
            with pytest.raises(core.OutOfBlocks) as error:
                self.trie.allocate(n, spare_protected=spare) if evicting else self.pool.allocate(n)
            assert (error.value.needed, error.value.available) == (n, available)
            return
        o.evict(max(0, n - len(o.free)))
        got = (self.trie.allocate(n, spare_protected=spare) if evicting else self.pool.allocate(n)).tolist()
        assert len(set(got)) == n and set(got) <= o.free
        o.free -= set(got)
        o.held.update(dict.fromkeys(got, 1))

    @rule(data=st.data(), take=st.booleans())
    def references(self, data: st.DataObject, take: bool) -> None:
        o = self.oracle
        ids = data.draw(st.lists(st.integers(-1, self.pool.num_blocks), max_size=4))
        left = dict(o.held)
        bad = False
        for b in ids:
            if left.get(b, 0) < 1:
                bad = True
                break
            left[b] += 1 if take else -1
        operation = self.pool.retain if take else self.pool.release
        if bad:
            with pytest.raises(core.BlockError):
                operation(np.array(ids, np.int32))
            return
        operation(np.array(ids, np.int32))
        o.free |= {b for b, n in left.items() if n == 0}
        o.held = {b: n for b, n in left.items() if n}

    # --- prefixes ---------------------------------------------------------------------------------------------

    @rule(tokens=TOKENS, salt=SALTS, limit=st.integers(-1, 4), touch=st.booleans())
    def match(self, tokens: list[int], salt: int, limit: int, touch: bool) -> None:
        o = self.oracle
        ready, promised = o.walk(tokens, salt, limit if limit >= 0 else 99)
        assert self.trie.would_hit(np.array(tokens, np.int32), salt) == o.walk(tokens, salt, 99)[0]
        got = self.trie.match(np.array(tokens, np.int32), salt, limit, touch)
        assert (got.num_blocks, got.num_tokens, got.promised) == (ready, ready * o.size, promised)
        key = o.key(tokens, salt, ready)
        assert got.blocks.tolist() == [o.nodes[k].block for k in o.path(key)]
        assert got.node == (self.ids[key] if ready else -1)
        if touch and ready:
            o.touch(key, hit=True)

    @rule(data=st.data(), tokens=TOKENS, salt=SALTS, first=st.integers(0, 3), promoted=st.booleans())
    def insert(self, data: st.DataObject, tokens: list[int], salt: int, first: int, promoted: bool) -> None:
        o = self.oracle
        blocks = self.some_held(data)
        end = first + len(blocks)
        if end * o.size > len(tokens):
            with pytest.raises(ValueError):
                self.trie.insert(np.array(tokens, np.int32), np.array(blocks, np.int32), salt, first)
            return
        got = self.call_with(blocks, lambda b: self.trie.insert(np.array(tokens, np.int32), b, salt, first, promoted))
        if got is None:
            return
        ready, promised = o.walk(tokens, salt, end)
        there = max(0, ready - first)
        extends = ready >= first and promised == 0 and there < len(blocks)
        key = o.key(tokens, salt, ready)
        if ready and (there or (promoted and extends)):
            o.touch(key, hit=True)
        if extends:
            self.add(tokens, salt, ready, blocks[there:], promoted, False)
            key = o.key(tokens, salt, end)
            o.touch(key, hit=promoted)
        assert got.duplicates.tolist() == blocks[:there]
        assert got.num_taken == (len(blocks) - there if extends else 0)
        self.learn()
        assert got.node == (self.ids[key] if len(key) > 1 else -1)

    @rule(data=st.data(), tokens=TOKENS, salt=SALTS, first=st.integers(0, 3))
    def promise(self, data: st.DataObject, tokens: list[int], salt: int, first: int) -> None:
        o = self.oracle
        blocks = self.some_held(data)
        end = first + len(blocks)
        if end * o.size > len(tokens):
            return
        node = self.call_with(blocks, lambda b: self.trie.promise(np.array(tokens, np.int32), b, salt, first))
        if node is None:
            return
        if not blocks or o.walk(tokens, salt, end) != (first, 0):
            assert node == -1
            return
        self.add(tokens, salt, first, blocks, False, True)
        key = o.key(tokens, salt, end)
        o.nodes[key].locks = 1
        self.learn()
        assert node == self.ids[key]
        self.promises.append((key, node))
        with pytest.raises(core.NodeError):
            self.trie.lock(node)
        with pytest.raises(core.NodeError):
            self.trie.unlock(node)

    @precondition(lambda self: self.promises)
    @rule(data=st.data(), blocks=st.integers(-1, 4), fulfil=st.booleans())
    def postprocess(self, data: st.DataObject, blocks: int, fulfil: bool) -> None:
        o = self.oracle
        key, node = at = data.draw(st.sampled_from(self.promises))
        promised = [k for k in o.path(key) if o.nodes[k].promised]
        if not fulfil:
            assert self.trie.break_promise(node) == len(promised)
            self.promises.remove(at)
            before = set(o.path(key)) - set(promised)
            was = {k for k in before if o.covered(k)}
            for k in promised:
                o.free.add(o.nodes.pop(k).block)
            self.uncovered(was)
            return
        self.trie.fulfil(node, blocks)
        for k in promised:
            if blocks < 0 or (len(k) - 1) // o.size <= blocks:
                o.nodes[k].promised = False
        if not o.nodes[key].promised:
            self.promises.remove(at)
            self.locked.append(key)
            with pytest.raises(core.NodeError):
                self.trie.fulfil(node)
            with pytest.raises(core.NodeError):
                self.trie.break_promise(node)

    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        ready = sorted(k for k, e in self.oracle.nodes.items() if not e.promised)
        key = data.draw(st.sampled_from([*ready, ()]))
        self.trie.lock(self.ids[key] if key else -1)
        if key:
            self.oracle.nodes[key].locks += 1
            self.locked.append(key)

    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        o = self.oracle
        free = sorted(k for k, e in o.nodes.items() if not e.locks)
        for k in free[:1]:
            with pytest.raises(core.NodeError):
                self.trie.unlock(self.ids[k])
        key = data.draw(st.sampled_from([*self.locked, ()]))
        self.trie.unlock(self.ids[key] if key else -1)
        if key:
            self.locked.remove(key)
            was = {k for k in o.path(key) if o.covered(k)}
            o.nodes[key].locks -= 1
            self.uncovered(was)

    @rule(n=st.integers(0, 4))
    def evict(self, n: int) -> None:
        assert self.trie.evict(n) == self.oracle.evict(n)

    @rule()
    def clear(self) -> None:
        assert self.trie.clear() == self.oracle.evict(99)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def use_stale(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.stale)))
        for operation in (
            self.trie.lock,
            self.trie.unlock,
            self.trie.fulfil,
            self.trie.break_promise,
            self.trie.blocks,
        ):
            with pytest.raises(core.StaleNode):
                operation(node)

    # --- helpers ----------------------------------------------------------------------------------------------

    def some_held(self, data: st.DataObject) -> list[int]:
        held = sorted(self.oracle.held)
        return data.draw(st.lists(st.sampled_from(held), max_size=4)) if held else []

    def call_with(self, blocks: list[int], call: Any) -> Any:
        """The call's result; None when the blocks are not each held once, which it has to refuse."""
        if len(set(blocks)) < len(blocks) or any(self.oracle.held[b] != 1 for b in blocks):
            with pytest.raises(core.BlockError):
                call(np.array(blocks, np.int32))
            return None
        return call(np.array(blocks, np.int32))

    def add(self, tokens: list[int], salt: int, at: int, blocks: list[int], protected: bool, promised: bool) -> None:
        o = self.oracle
        o.tick += 1
        for b in blocks:
            at += 1
            o.nodes[o.key(tokens, salt, at)] = Entry(b, o.tick, protected, promised)
            del o.held[b]

    def uncovered(self, was: set[Key]) -> None:
        self.oracle.tick += 1
        for k in was:
            if not self.oracle.covered(k):
                self.oracle.nodes[k].tick = self.oracle.tick

    def learn(self) -> None:
        for node in self.trie.dump():
            key = self.key_of(node)
            self.stale.discard(node["node"])
            self.ids[key] = node["node"]

    def key_of(self, node: Any) -> Key:
        by_id = {n["node"]: n for n in self.trie.dump()}
        tokens: list[int] = []
        at = node
        while at is not None:
            tokens = at["tokens"].tolist() + tokens
            at = by_id.get(at["parent"])
        return (node["salt"], *tokens)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "trie"):
            return
        o, pool = self.oracle, self.pool
        self.trie.audit()
        self.pool.audit()
        gone = {k: i for k, i in self.ids.items() if k not in o.nodes}
        self.stale |= set(gone.values())
        for k in gone:
            del self.ids[k]
        cached = sum(not o.covered(k) for k in o.nodes)
        assert (pool.num_free, pool.num_cached) == (len(o.free), cached)
        assert pool.num_used == len(o.held) + len(o.nodes) - cached
        assert pool.num_free + pool.num_used + pool.num_cached == pool.num_blocks
        for b in range(pool.num_blocks):
            assert pool.references(b) == o.held.get(b, 0)
        dump = self.trie.dump()
        assert {self.key_of(n): n["block"] for n in dump} == {k: e.block for k, e in o.nodes.items()}
        for n in dump:
            key, entry = self.key_of(n), o.nodes[self.key_of(n)]
            assert n["references"] == sum(o.nodes[k].locks for k in o.below(key))
            assert (n["protected"], n["state"] == "promised") == (entry.protected, entry.promised)
            assert (n["rank"] >= 0) == (not o.covered(key))
        assert self.trie.num_nodes == len(o.nodes)


@pytest.mark.feature("E2")
@pytest.mark.feature("E9")
@pytest.mark.feature("D7")
@pytest.mark.feature("B1")
@pytest.mark.fault(66)
class TestTrie(TrieMachine.TestCase):  # type: ignore[valid-type,misc]
    settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
