"""Queues + one trie walk a request + Ledger -> Plan.

Order of a step: running rows first (one token each, growing block by block, the youngest preempted when the
pool is full); then, the class of the oldest request first, prompt chunks of Decode requests and one group of OneShot
requests, each class in its policy's order. OneShot rows can neither preempt nor be preempted: they take the rest,
or wait holding nothing.

A Decode row that finishes its prompt in a step decodes from the next one on.

The rows of a step that ran out of memory run again in smaller steps, alone with each other (``limit``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain

import numpy as np

from prelude._native.core import KvPool, Lease, OneShotGroup, StepLimits
from prelude.readouts.batch import I32
from prelude.records import dataclass, field
from prelude.scheduling.cost import Pacer
from prelude.scheduling.plan import LOGITS_BYTES, Fold, Ledger, OneShotRow, Plan, PrefillRow
from prelude.scheduling.queues import Queues
from prelude.scheduling.request import Request, State


@dataclass(frozen=True, slots=True)
class Budgets:
    """The step limits planning works with, resolved from EngineConfig and the executor's limits."""

    step_tokens: int
    step_requests: int
    running: int
    chunk_tokens: int
    logits_bytes: int
    vocab_size: int
    logits_chunk_rows: int
    fold: bool = True  # rows of one step share computed prefixes
    defer_steps: int = 8  # how long a request waits at most for another that computes its prefix
    defer_tokens: int = 64  # a shorter one is computed again rather than waited for
    group_tokens: int = 1 << 31  # most tokens of the OneShot requests after the first one of a step
    overlap: bool = False  # the next step is planned before this one is postprocessed
    limits: StepLimits = field(init=False, repr=False, compare=False)  # those of the fields that native code reads

    def __post_init__(self) -> None:
        limits = StepLimits(
            step_tokens=self.step_tokens,
            step_requests=self.step_requests,
            logits_bytes=self.logits_bytes,
            logits_row_bytes=self.vocab_size * LOGITS_BYTES,
            logits_chunk_rows=self.logits_chunk_rows,
            group_tokens=self.group_tokens,
            defer_tokens=self.defer_tokens,
            defer_steps=self.defer_steps,
            fold=self.fold,
        )
        object.__setattr__(self, "limits", limits)

    def ledger(self, limit: int | None) -> Ledger:
        """Make the ledger of a step, of ``limit`` rows at most."""
        rows = self.step_requests if limit is None else min(limit, self.step_requests)
        return Ledger(self.step_tokens, rows, self.logits_bytes)


def preempt(request: Request, queues: Queues, pool: KvPool) -> None:
    """Recompute later: blocks and state entry go back, cached blocks stay in the trie, sampled tokens are kept."""
    request.give_back(pool)
    request.stats.preemptions += 1
    request.move(State.WAITING)
    queues.requeue(request)


def _has_prompt_left(request: Request) -> bool:
    """Whether tokens of its prompt are in no step so far; a step with half a prompt is postprocessed before the
    next."""
    return request.state is State.PREFILL and request.staged_len < request.num_known


def _defer(request: Request, deferred: list[Request]) -> None:
    """Note that another is computing the next tokens of its prompt."""
    request.deferred += 1
    request.stats.deferred_ticks += 1
    deferred.append(request)


def _grow_to(pool: KvPool, lease: Lease, tokens: int) -> bool:
    return pool.grow(lease, -(-tokens // pool.block_size) - lease.num_blocks)


@dataclass(slots=True, eq=False)
class _Step:
    """The step that is being planned. ``retry``: only rows of failed steps. ``in_flight``: another step is not
    postprocessed."""

    queues: Queues
    pool: KvPool
    budgets: Budgets
    ledger: Ledger
    retry: bool
    in_flight: bool
    chunks: list[PrefillRow] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    deferred: list[Request] = field(default_factory=list)

    def oneshot_first(self) -> bool:
        """Whether the oldest OneShot request goes before every prompt of a Decode request: by priority, then arrival.
        Within its class another may go first; between classes age decides, so neither starves the other."""
        queues = self.queues
        if not queues.oneshot:
            return False
        prompts = [r for r in queues.running if _has_prompt_left(r)]
        first = queues.oneshot.oldest()
        return (not queues.decode or first <= queues.decode.oldest()) and all(first <= r.rank for r in prompts)

    # -------------------------------------------------------------- decode rows

    def plan_decode(self) -> list[Request] | None:
        """Running rows, oldest first. A row that cannot grow preempts the last running request, itself at worst;
        beside a step in flight no row is preempted and there is no plan. Rows that are being drawn a token go on from
        it, as if it did not end them; those that end with it by their budget do not."""
        planned: list[Request] = []
        running, pool = self.queues.running, self.pool
        size = pool.block_size
        for request in list(running):
            if (request.state is not State.DECODE and not request.ahead) or (self.retry and not request.failures):
                continue
            if request.ends_ahead:
                continue
            lease = request.held
            tokens = request.num_known + request.ahead
            while lease.num_blocks * size < tokens and not _grow_to(pool, lease, tokens):
                if self.in_flight:
                    return None
                victim = running[-1]
                preempt(victim, self.queues, pool)
                self.preempted.append(victim)
                if victim is request:
                    break
            else:
                if self.ledger.take(1):
                    planned.append(request)
        for request in planned:
            request.staged_len = request.num_known + request.ahead
        return planned

    # -------------------------------------------------------------- prompts of Decode requests

    def plan_prefill(self, beside_rows: bool) -> None:
        """Chunks of prompts under way, oldest first, then of those that wait, in their policy's order. Beside running
        rows a step prefills ``chunk_tokens`` at most, so that the rows' next token is never far away."""
        queues, most_running = self.queues, self.budgets.running
        policy = queues.decode.policy
        chunked = beside_rows and not policy.whole_prompts
        left = min(self.ledger.tokens, self.budgets.chunk_tokens) if chunked else self.ledger.tokens
        under_way = [r for r in queues.running if _has_prompt_left(r) and (r.failures or not self.retry)]
        waiting: Iterator[Request] = iter(())
        if queues.decode and len(queues.running) < most_running and (policy.refills or not queues.running):
            waiting = queues.decode.in_order(queues.served)
        most = self.budgets.chunk_tokens if policy.takes_turns else left
        for request in _in_turn(under_way, waiting) if policy.takes_turns else chain(under_way, waiting):
            if left <= 0:
                break
            if request.state is State.PREFILL:
                left -= self._chunk(request, min(left, most))
            elif len(queues.running) < most_running and (request.failures or not self.retry):
                before = len(self.deferred)
                count = self._start(request, min(left, most))
                if not count and len(self.deferred) == before:
                    if not policy.takes_turns:
                        break
                    continue
                left -= count
            request.turn = queues.arrivals

    def _start(self, request: Request, left: int) -> int:
        """The first chunk of a prompt that waits; how many tokens it has. 0: it found no room, or is deferred."""
        queues, pool = self.queues, self.pool
        if pool.num_running_states and not pool.free_running_states:
            return 0
        known = request.known[: request.num_known]
        lease = pool.attach(known, request.salt, request.reusable, growable=True)
        request.hold(lease)
        if self.budgets.limits.must_wait(pool, lease, known, request.salt, request.deferred, self.retry):
            request.give_back(pool)
            _defer(request, self.deferred)
            return 0
        if queues.decode.policy.takes_turns and not self._room_beside_first(request, lease, left):
            request.give_back(pool)
            return 0
        if lease.on_host and not self._bring_back(request, lease, known, left):
            request.give_back(pool)
            return 0
        if pool.num_running_states:
            pool.take_running_state(lease)
        cached = lease.num_shared * pool.block_size
        request.cached_len = request.staged_len = cached
        count = self._chunk(request, left)
        if not count:
            request.give_back(pool)
            return 0
        if not request.output:
            request.stats.cached_tokens = cached
        request.move(State.PREFILL)
        queues.start(request)
        return count

    def _chunk(self, request: Request, left: int) -> int:
        """Up to ``left`` tokens of a prompt; how many they are. 0: no room."""
        pool = self.pool
        count = min(left, request.num_known - request.cached_len)
        if count <= 0 or not self.ledger.fits(count):
            return 0
        if not _grow_to(pool, request.held, request.cached_len + count):
            return 0
        self.ledger.take(count)
        request.staged_len = request.cached_len + count
        self.chunks.append(PrefillRow(request, request.cached_len, count))
        if request.cache != "never" and not self.retry:
            prompt = min(request.staged_len, request.prompt_tokens)
            pool.promise(request.held, request.known[:prompt], request.salt)
            if pool.keeps_states:  # an equal request later reads the last token of the prompt
                always, last = request.cache == "always", request.prompt_tokens - 1
                pool.keep_states(request.held, request.cached_len, prompt, last, evict_used=always)
        return count

    def _room_beside_first(self, request: Request, lease: Lease, count: int) -> bool:
        """Whether the oldest running row can still grow to its end of the prompt when another prompt starts, whose
        blocks in the pool's cache are locked by now. If turns put that one first, prompts would else start and be
        preempted for each other for ever."""
        pool = self.pool
        if not self.queues.running:
            return True
        first = self.queues.running[0]
        lacking = -(-first.num_known // pool.block_size) - first.held.num_blocks
        return pool.num_free + pool.num_cached >= lacking + self._taken(request, lease, count)

    def _taken(self, request: Request, lease: Lease, count: int) -> int:
        """Blocks that a prompt takes when it starts with ``count`` tokens: those that come back from host memory, and
        those of its tokens."""
        size = self.pool.block_size
        known = min(request.num_known, (lease.num_shared + lease.on_host) * size + count)
        return -(-known // size) - lease.num_shared

    def _bring_back(self, request: Request, lease: Lease, known: I32, left: int) -> bool:
        """Bring the prompt's blocks back from host memory if it then starts for sure. False, and nothing is copied,
        if it would find no room: it may be asked again each step."""
        pool = self.pool
        count = min(left, request.num_known - (lease.num_shared + lease.on_host) * pool.block_size)
        room = pool.num_free + pool.num_cached
        if not self.ledger.fits(count) or room < self._taken(request, lease, count):
            return False
        pool.bring_back(lease, known, request.salt, request.reusable)
        return True

    # -------------------------------------------------------------- OneShot rows

    def plan_group(self, allowance: int | None) -> tuple[list[OneShotRow], list[Fold]]:
        """One group: the requests that may share a batch with the first one, in order, until one of them does not
        fit. Each is matched first, and charged for the tokens that the cache does not have. ``allowance`` bounds the
        group beside running rows; the first request may be longer than it. Those behind the first bring
        ``budgets.group_tokens`` at most: a short request is not made to wait for the long one that would fill up its
        step.

        Rows get blocks for the prefixes that they publish. If there is no room, blocks that were hit before are
        evicted for the part that a request that waits has in common with the prompt, the coldest first."""
        queues, budgets, ledger, retry = self.queues, self.budgets, self.ledger, self.retry
        queue = queues.oneshot
        waiting = len(queue)
        if not waiting or allowance == 0:
            return [], []
        requests: Iterable[Request]
        most = min(ledger.tokens, budgets.group_tokens)
        logits_rows = ledger.logits_bytes // (budgets.vocab_size * LOGITS_BYTES)
        if allowance is None and not retry and queue.fits(most, ledger.rows, logits_rows):
            requests = list(queue)  # all of them fit, in any order
        else:
            requests = _one_group(queues, retry)
        left = ledger.tokens, ledger.rows, ledger.logits_bytes
        limit = -1 if allowance is None else allowance
        seen = budgets.overlap or waiting > 1
        # A promise costs time: only if another request may find it before it is kept.
        found = budgets.overlap or bool(queues.decode)
        group = OneShotGroup(self.pool, budgets.limits, requests, *left, limit, retry, seen, found)
        ledger.tokens, ledger.rows, ledger.logits_bytes = group.left
        for request in group.deferred:
            _defer(request, self.deferred)
        for request, lease, skip in group.rows:
            request.hold(lease)
            request.stats.cached_tokens = skip
            request.move(State.PREFILL)
            queue.serve(request)
        while group.lacking >= 0:  # the planned requests wait no more: a peer is one that does
            request, _, skip = group.rows[group.lacking]
            queues.not_kept += not group.evict(_common(request, skip, queues))
        rows = [OneShotRow(request, skip, publish) for (request, _, skip), publish in zip(group.rows, group.publish)]
        return rows, [Fold(*fold) for fold in group.folds]


def _in_turn(under_way: list[Request], waiting: Iterator[Request]) -> Iterator[Request]:
    """Put a prompt that had a chunk behind all that arrived before that chunk."""
    under_way.sort(key=lambda r: r.turn)
    return merge(under_way, waiting, key=lambda r: (r.turn, 1) if r.state is State.PREFILL else (r.order, 0))


def _one_group(queues: Queues, retry: bool) -> Iterable[Request]:
    """Yield the requests that may share a batch, the first one first."""
    queue = queues.oneshot
    if retry:
        suspects = [request for request in queue if request.failures]
        return (request for request in suspects if request.key == suspects[0].key)
    return queue.in_order(queues.served, one_group=True)


def _common(request: Request, skip: int, queues: Queues) -> int:
    """Return how many tokens a peer that waits has in common with the request; 0 without one."""
    peer = queues.oneshot.peer(request, skip) or queues.decode.peer(request, skip)
    if peer is None:
        return 0
    n = min(request.num_known, peer.num_known)
    differ = np.flatnonzero(request.known[:n] != peer.known[:n])
    return int(differ[0]) if len(differ) else n


# ------------------------------------------------------------------ the whole step


def plan_step(
    queues: Queues,
    pool: KvPool,
    budgets: Budgets,
    pacer: Pacer | None = None,
    limit: int | None = None,
    *,
    in_flight: bool = False,
) -> Plan:
    """``limit``: only rows of failed steps, so many at most. ``in_flight``: another step is not postprocessed; rows
    that it draws a token for go on from there, and no row is preempted beside it."""
    retry = limit is not None
    step = _Step(queues, pool, budgets, budgets.ledger(limit), retry, in_flight)
    running: list[Request] = []
    if in_flight:  # else no promise is left
        pool.begin_plan()
    if queues.running:
        planned = step.plan_decode()
        if planned is None:
            return Plan(postprocess_first=True)
        running = planned
    allowance = pacer.allowance(len(running)) if running and pacer is not None and not retry else None
    prompts = bool(queues.running or queues.decode)  # of Decode requests, that may get a chunk
    oneshot_first = prompts and step.oneshot_first()
    if prompts and not oneshot_first:
        step.plan_prefill(bool(running))
    rows, folds = step.plan_group(allowance)
    if oneshot_first:
        step.plan_prefill(bool(running))
    chunks, preempted = step.chunks, step.preempted
    if len(queues.running) > 1 and not (rows or chunks or running or preempted or retry or in_flight):
        # Prompts that wait for each other's blocks: the last one gives way, so the first one moves on.
        preempted = [queues.running[-1]]
        preempt(preempted[0], queues, pool)
    queues.served += budgets.step_tokens - step.ledger.tokens
    return Plan(tuple(rows), tuple(folds), tuple(chunks), tuple(running), tuple(preempted), tuple(step.deferred))
