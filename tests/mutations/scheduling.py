"""Edits of planning, policies, queues and postprocessing."""

# ruff: noqa: E501 - the source is quoted as it is
from __future__ import annotations

from tests.mutations.audited import CORE, LIFECYCLE, PLANNER, STEPPER
from tests.mutations.edit import edit

POSTPROCESS_PY = "prelude/scheduling/postprocess.py"
LEDGER = "prelude/scheduling/plan.py"
PACING = "prelude/scheduling/pacing.py"
ORDERS = "prelude/scheduling/policies.py"
LAYERS = "prelude/scheduling/policies.py"
QUEUES = "prelude/scheduling/queues.py"
ACCOUNTS = "prelude/scheduling/accounts.py"
GROUP = "_native/core/oneshot_group.cpp"
RECOVERY = "prelude/scheduling/postprocess.py"
CLASSES = "prelude/admission/prepared.py"
ENTRY = "prelude/runtime/entry.py"
FAILURES = "prelude/runtime/failures.py"

EDITS = (
    edit(
        "two_tokens_are_oneshot",
        "A2",
        (CLASSES, "prepared.max_new_tokens > 1 else", "prepared.max_new_tokens > 2 else"),
    ),
    edit(
        "one_token_is_decode",
        "A1 A2",
        (CLASSES, "prepared.max_new_tokens > 1 else", "prepared.max_new_tokens > 0 else"),
    ),
    edit(
        "chunks_have_no_bound_beside_rows",
        "F6 F7 F10",
        (
            PLANNER,
            "left = min(ledger.tokens, budgets.chunk_tokens) if chunked else ledger.tokens",
            "left = ledger.tokens",
        ),
    ),
    edit(
        "rows_have_no_bound",
        "A13 F3",
        (
            PLANNER,
            "        elif len(queues.running) < budgets.running and (request.failures or not retry):",
            "        elif request.failures or not retry:",
        ),
        (
            PLANNER,
            "if queues.decode and len(queues.running) < budgets.running and (policy.refills or not queues.running):",
            "if queues.decode and (policy.refills or not queues.running):",
        ),
    ),
    edit(
        "static_batches_refill",
        "F1",
        (
            PLANNER,
            "len(queues.running) < budgets.running and (policy.refills or not queues.running):",
            "len(queues.running) < budgets.running:",
        ),
    ),
    edit(
        "prefill_first_chunks",
        "F5",
        (PLANNER, "chunked = beside_rows and not policy.whole_prompts", "chunked = beside_rows"),
    ),
    edit(
        "turns_go_by_arrival",
        "F9",
        (
            PLANNER,
            "key=lambda r: (r.turn, 1) if r.state is State.PREFILL else (r.order, 0))",
            "key=lambda r: (0, r.turn) if r.state is State.PREFILL else (1, r.order))",
        ),
    ),
    edit(
        "a_turn_takes_all",
        "F9 Q2",
        (PLANNER, "most = budgets.chunk_tokens if policy.takes_turns else left", "most = left"),
    ),
    edit(
        "rows_wait_for_decisions",
        "F18 69",
        (
            PLANNER,
            "    allowance = None if pacer is None or retry else pacer.allowance(len(running))\n",
            "    allowance = None\n",
        ),
    ),
    edit(
        "the_oldest_row_is_preempted",
        "D9 53",
        (PLANNER, "            victim = queues.running[-1]\n", "            victim = queues.running[0]\n"),
    ),
    edit(
        "a_preempted_row_keeps_its_blocks",
        "D8 D9",
        (
            PLANNER,
            "    request.give_back(pool)\n    request.cached_len = request.staged_len = 0\n    request.stats.preemptions",
            "    request.cached_len = request.staged_len = 0\n    request.stats.preemptions",
        ),
    ),
    edit("peers_wait_without_end", "B7", (GROUP, " && deferred < limits.defer_steps", "")),
    edit(
        "chats_never_wait_for_a_leader",
        "B6 B8",
        (
            PLANNER,
            "if budgets.limits.must_wait(pool, lease, known, request.salt, request.deferred, retry):",
            "if False:",
        ),
    ),
    edit(
        "short_prefixes_are_waited_for",
        "B7",
        (GROUP, "return int64_t{lease.ahead} * pool.block_size() >= limits.defer_tokens &&", "return"),
    ),
    edit(
        "deferrals_are_not_counted",
        "B6",
        (PLANNER, "    request.stats.deferred_ticks += 1\n", ""),
    ),
    edit(
        "chunks_promise_nothing",
        "B6",
        (PLANNER, '    if request.cache != "never" and not retry:\n        prompt', "    if False:\n        prompt"),
    ),
    edit(
        "cached_tokens_are_not_reported",
        "B4",
        (PLANNER, "        request.stats.cached_tokens = cached\n", "        pass\n"),
    ),
    edit(
        "the_cache_is_not_read_by_chats",
        "B3 E10",
        (
            PLANNER,
            "lease = pool.attach(known, request.salt, request.reusable, growable=True)",
            "lease = pool.attach(known, request.salt, 0, growable=True)",
        ),
    ),
    edit(
        "blocks_of_a_text_at_once",
        "N7 C10",
        (
            PLANNER,
            "    cached = lease.num_shared",
            "    pool.grow(lease, -(-request.max_device_len // pool.block_size) - lease.num_blocks)\n    cached = lease.num_shared",
        ),
    ),
    edit(
        "suspects_run_in_company",
        "58",
        (
            PLANNER,
            "if (request.state is not State.DECODE and not request.ahead) or (retry and not request.failures):",
            "if request.state is not State.DECODE and not request.ahead:",
        ),
    ),
    edit(
        "a_need_is_half_taken",
        "A7 F10",
        (LEDGER, "        self.tokens -= tokens\n", "        self.tokens -= tokens // 2\n"),
    ),
    edit("rows_of_a_step_are_not_counted", "A13", (LEDGER, "        self.rows -= 1\n", "")),
    edit(
        "decisions_leave_no_debt",
        "69 F18",
        (PACING, "        self._credit -= longer * oneshot_tokens / tokens\n", ""),
    ),
    edit(
        "decisions_earn_nothing",
        "69 F18",
        (PACING, "        self._earn(alone)\n        self._credit", "        self._credit"),
        (PACING, "            self._earn(alone)\n            return\n", "            return\n"),
    ),
    edit(
        "shortest_is_longest",
        "G5",
        (ORDERS, "        return (work,) if", "        work = -work\n        return (work,) if"),
    ),
    edit(
        "no_ageing",
        "G6",
        (ORDERS, "self.half_life * np.log2(work) + waiting.arrived,", "self.half_life * np.log2(work),"),
    ),
    edit(
        "no_estimates",
        "G4 G5",
        (
            ORDERS,
            "    curvature: float = 0.0\n\n    estimates: ClassVar[bool] = True\n\n    def __post_init__(self) -> None:\n        life",
            "    curvature: float = 0.0\n\n    estimates: ClassVar[bool] = False\n\n    def __post_init__(self) -> None:\n        life",
        ),
    ),
    edit(
        "never_matched_again",
        "G4",
        (
            QUEUES,
            "        if self.estimates is not None:\n            for request, cached",
            "        if False:\n            for request, cached",
        ),
    ),
    edit(
        "deadlines_do_not_order",
        "A26 F22",
        (ORDERS, "        return (waiting.expires,)", "        return (waiting.order,)"),
    ),
    edit("low_priority_first", "F22", (LAYERS, "return (-waiting.priority, *", "return (waiting.priority, *")),
    edit("tenants_are_not_told_apart", "F22", (LAYERS, "return (_turns(waiting, inner), *inner)", "return inner")),
    edit(
        "a_tenant_that_was_away_is_ahead",
        "F22",
        (ACCOUNTS, "            account.served = max(account.served, self.now.get(account.priority, 0))\n", ""),
    ),
    edit("served_tokens_are_not_counted", "F22", (ACCOUNTS, "        account.served += tokens\n", "")),
    edit(
        "running_rows_in_no_order",
        "53",
        (
            QUEUES,
            "        while at and self.running[at - 1].rank > request.rank:\n            at -= 1\n",
            "        at = 0\n",
        ),
    ),
    edit(
        "the_last_token_is_left_out",
        "C4",
        (
            POSTPROCESS_PY,
            "len(request.output) + 1 >= request.max_new_tokens",
            "len(request.output) + 1 >= request.max_new_tokens - 1",
        ),
    ),
    edit(
        "a_stop_token_is_kept",
        "C4 H4",
        (POSTPROCESS_PY, 'return sampling.include_stop, "stop"', 'return True, "stop"'),
    ),
    edit("computed_chunks_are_not_counted", "C8", (POSTPROCESS_PY, "            request.stats.chunks += 1\n", "")),
    edit("cached_len_stays", "C3 C2", (POSTPROCESS_PY, "request.cached_len = row.start + row.count\n", "pass\n")),
    edit(
        "a_finished_prompt_is_not_kept",
        "E10",
        (
            POSTPROCESS_PY,
            '            if request.cache != "never" and request.lease is not None:\n',
            "            if False:\n",
        ),
    ),
    edit(
        "never_is_kept_too",
        "G10 E12",
        (
            POSTPROCESS_PY,
            '            if request.cache != "never" and request.lease is not None:\n',
            "            if request.lease is not None:\n",
        ),
    ),
    edit(
        "a_finished_request_keeps_its_lease",
        "C9 D2 N4",
        (
            POSTPROCESS_PY,
            "    if not request.in_flight:\n        request.give_back(pool)\n",
            "",
        ),
    ),
    edit("nan_rows_go_on", "58", (POSTPROCESS_PY, "if row in bad or drawn", "if drawn")),
    edit(
        "tokens_outside_the_vocabulary_go_on",
        "58",
        (POSTPROCESS_PY, "if 0 <= token < self.vocab_size:", "if True:"),
    ),
    edit("failed_rows_are_not_halved", "59", (FAILURES, "max(1, len(again) // 2)", "max(1, len(again))")),
    edit(
        "memory_errors_fail_at_once",
        "59",
        (RECOVERY, "blameless = out_of_memory(error) or is_interrupt(error)", "blameless = is_interrupt(error)"),
    ),
    edit(
        "failures_are_not_rolled_back",
        "F13 58",
        (
            RECOVERY,
            "    request.staged_len = request.cached_len\n    if lease is not None and (lease.promise",
            "    request.cached_len = request.staged_len\n    if lease is not None and (lease.promise",
        ),
    ),
    edit(
        "rows_fail_at_their_first_failure",
        "58",
        (RECOVERY, "or request.failures > 1 or", "or request.failures > 0 or"),
    ),
    edit(
        "too_many_blocks_are_admitted",
        "54",
        (ENTRY, "            if blocks > self._pool.num_blocks:", "            if False:"),
    ),
    edit(
        "too_many_tokens_are_admitted",
        "4",
        (ENTRY, "if request.execution_class is ExecutionClass.ONESHOT and tree.num_tokens > most:", "if False:"),
    ),
    edit(
        "cancelling_is_forgotten",
        "51 N4",
        (
            LIFECYCLE,
            "        self._cancels.append(request)\n        return True",
            "        return True",
        ),
    ),
    edit(
        "deadlines_in_the_queue_pass",
        "18",
        (
            LIFECYCLE,
            "            heapq.heappush(self.expiring, (request.expires, request.id, request))\n",
            "            pass\n",
        ),
    ),
    edit(
        "ends_are_told_twice",
        "58",
        (
            LIFECYCLE,
            "        if self.live.pop(request.id, None) is None:\n            return\n",
            "        self.live.pop(request.id, None)\n",
        ),
    ),
    edit(
        "hangs_are_not_told",
        "58",
        (LIFECYCLE, '            self.ended(request, None, failure_of(error, "the engine hangs"))\n', ""),
    ),
    edit(
        "preemptions_of_the_engine_are_not_counted",
        "D9",
        (STEPPER, "        self._stats.preemptions += len(plan.preempted)\n", ""),
    ),
    edit(
        "a_failed_engine_is_healthy",
        "58",
        (FAILURES, "return not self.broken and self.in_a_row", "return self.in_a_row"),
    ),
    edit(
        "steps_never_overlap",
        "H13",
        (
            STEPPER,
            "if steps and (len(steps) > 1 or not submitted or not self._overlap):",
            "if steps:",
        ),
    ),
    edit(
        "always_overlaps",
        "H14",
        (
            CORE,
            "        self.steps = StepsInFlight(pool, overlap)\n",
            "        self.steps = StepsInFlight(pool, True)\n",
        ),
    ),
)
