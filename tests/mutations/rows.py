"""Edits of rows that the other tables leave out: the planner's arithmetic, counters, benchmarks, names."""

from __future__ import annotations

from tests.mutations.audited import PLANNER
from tests.mutations.edit import edit
from tests.mutations.surface import SNAPSHOT

PACK = "prelude/scheduling/pack.py"
PLAN = "prelude/scheduling/plan.py"
QUEUES = "prelude/scheduling/queues.py"
POSTPROCESS = "prelude/scheduling/postprocess.py"
COST = "prelude/scheduling/cost.py"
COSTS = "prelude/simulation/costs.py"
CONFIG = "prelude/values/config.py"
BASE = "prelude/api/base.py"
ORDERS = "prelude/admission/orders.py"
DECIDE = "prelude/admission/decide.py"
BACKENDS = "prelude/execution/backends.py"
DETOKENIZE = "prelude/streaming/detokenize.py"
LOAD = "bench/serving/load.py"

EDITS = (
    edit(
        "blocks_come_a_token_late",
        "A5",
        (PLANNER, "while lease.num_blocks * size < tokens and", "while lease.num_blocks * size < tokens - 1 and"),
    ),
    edit("no_slot_is_taken", "A8", (PLANNER, "        pool.take_running_state(lease)\n", "        pass\n")),
    edit(
        "other_batches_are_a_bad_value",
        "A9",
        ("prelude/cpu/executor.py", 'raise TypeError(f"an executor runs', 'raise ValueError(f"an executor runs'),
    ),
    edit(
        "prompts_stay_the_callers",
        "A10",
        (SNAPSHOT, "            changes[name] = copy_prompt(value)\n", "            changes[name] = value\n"),
    ),
    edit(
        "rows_of_a_mixed_step_read_each_others_output",
        "A14",
        (
            PACK,
            "        (0, len(readouts) - 1, len(readouts)),\n",
            "        (0, len(readouts), len(readouts) - 1),\n",
        ),
    ),
    edit(
        "a_hit_is_charged_in_full",
        "A24 B2",
        (
            PLANNER,
            "    request.cached_len = request.staged_len = cached\n",
            "    request.cached_len = request.staged_len = 0\n",
        ),
    ),
    edit(
        "rows_may_be_more_than_a_steps_requests",
        "A28 F24",
        (CONFIG, "        if self.max_running > self.expert.max_step_requests:\n", "        if False:\n"),
    ),
    edit(
        "a_chunk_writes_a_token_less",
        "C5 H6",
        (
            PACK,
            "table, row.start, table, row.start, row.count)",
            "table, row.start, table, row.start, row.count - 1)",
        ),
    ),
    edit(
        "staged_stays_behind",
        "C1 C7",
        (
            PLANNER,
            "    request.staged_len = request.cached_len + count\n    rows.append",
            "    rows.append",
        ),
    ),
    edit(
        "half_prompts_are_sampled",
        "C12",
        (PLAN, "        return self.start + self.count == self.request.num_known\n", "        return True\n"),
    ),
    edit(
        "a_prompt_draws_a_step_later",
        "F14 H1",
        (
            PLAN,
            "self.start + self.count == self.request.num_known",
            "self.start + self.count > self.request.num_known",
        ),
    ),
    edit(
        "computed_tokens_are_all_known_ones",
        "D10",
        (
            POSTPROCESS,
            "            request.stats.computed_tokens += row.count\n",
            "            request.stats.computed_tokens += row.start + 2 * row.count\n",
        ),
    ),
    edit(
        "places_wait_for_the_last_row",
        "F2",
        (
            PLANNER,
            "len(queues.running) < budgets.running and (policy.refills or not queues.running)",
            "len(queues.running) < budgets.running and not queues.running",
        ),
    ),
    edit(
        "prompts_beside_rows_have_no_bound",
        "F11",
        (
            PLANNER,
            "    left = min(ledger.tokens, budgets.chunk_tokens) if chunked else ledger.tokens\n",
            "    left = ledger.tokens\n",
        ),
    ),
    edit(
        "a_long_prompt_is_one_chunk_or_none",
        "F12",
        (
            PLANNER,
            "    count = min(left, request.num_known - request.cached_len)\n",
            "    count = request.num_known - request.cached_len\n",
        ),
    ),
    edit(
        "decode_requests_are_not_counted_as_waiting",
        "F16",
        (QUEUES, "        return len(self.oneshot) + len(self.decode)\n", "        return len(self.oneshot)\n"),
    ),
    edit(
        "rows_of_a_step_share_nothing",
        "F23",
        ("_native/core/oneshot_group.cpp", "limits.fold && pool.borrow(", "false && pool.borrow("),
    ),
    edit(
        "keys_cost_nothing",
        "G3",
        (
            COST,
            "        self.fit.observe(work.tokens, work.keys, work.lm_rows, seconds)\n",
            "        self.fit.observe(1, 0.0, 0, seconds)\n",
        ),
    ),
    edit(
        "longer_hits_cost_more",
        "G7",
        (
            COST,
            "        return self.fit.predict(work.tokens, work.keys, work.lm_rows)\n",
            "        return self.fit.predict(10_000 - work.tokens, 0.0, work.lm_rows)\n",
        ),
    ),
    edit(
        "what_was_published_is_not_looked_at",
        "G12",
        (PLANNER, "    queues.look_again()\n", ""),
    ),
    edit(
        "shares_of_labels_are_joint_probabilities",
        "G13",
        (DECIDE, 'decision.norm == "token", not decision.mass)', 'decision.norm == "token", decision.mass)'),
    ),
    edit(
        "a_hint_is_in_blocks",
        "G17",
        (
            BASE,
            "        return min(int(blocks) * pool.block_size, tree.trunk_tokens - 1)\n",
            "        return min(int(blocks), tree.trunk_tokens - 1)\n",
        ),
    ),
    edit(
        "names_reach_the_answer_in_another_order",
        "G18",
        (
            DECIDE,
            "    return asked, tuple([str.__str__(name) for name in names])",
            "    return asked, tuple([str.__str__(name) for name in names[::-1]])",
        ),
    ),
    edit(
        "names_and_order_are_part_of_the_question",
        "G19",
        (
            "prelude/admission/questions.py",
            '    for index, question in enumerate(questions):\n        here = f"questions[{index}]"\n'
            "        plain = plain_question(ctx, question, here)\n",
            '    for index, question in enumerate(questions):\n        here = f"questions[{index}]"\n'
            "        plain = plain_question(ctx, question, here)\n"
            '        plain = replace(plain, text=plain.text + " " * index)\n',
        ),
    ),
    edit(
        "sorted_options_stay_as_they_are_given",
        "G20",
        (
            ORDERS,
            "        order = sorted(range(len(plain.labels)), key=plain.labels.__getitem__)\n",
            "        order = list(range(len(plain.labels)))\n",
        ),
    ),
    edit(
        "a_forced_backend_that_cannot_serve_is_taken",
        "H8",
        (BACKENDS, "    if wanted.deterministic:\n", "    if False:\n"),
    ),
    edit(
        "a_character_is_given_before_it_is_whole",
        "I6",
        (
            DETOKENIZE,
            '        text, used = utf_8_decode(data, "replace", False)\n',
            '        text, used = utf_8_decode(data, "replace", True)\n',
        ),
    ),
    edit(
        "control_tokens_have_bytes",
        "I5",
        (
            DETOKENIZE,
            '        found = b"" if token_id in self._special else self._tokenizer.token_bytes(token_id)\n',
            "        found = self._tokenizer.token_bytes(token_id)[:1]\n",
        ),
    ),
    edit(
        "the_reference_backend_is_taken_in_silence",
        "J7",
        ("tokenizer/backends/choice.py", '        _log.info("backend %s: %s", backend, reason)\n', "        pass\n"),
    ),
    edit(
        "cores_are_not_said",
        "L2",
        ("bench/record.py", '"cores": os.cpu_count(), "python"', '"python"'),
    ),
    edit(
        "only_medians_of_later_tokens",
        "L6",
        (LOAD, '        **percentiles("tpot", [s.tpot for s in samples if s.tpot is not None]),\n', ""),
    ),
    edit(
        "answers_may_differ",
        "L11",
        ("bench/serving/compare.py", "    if ours != theirs:\n", "    if False:\n"),
    ),
    edit(
        "gains_are_the_other_way_round",
        "L13",
        (
            "bench/serving/questions.py",
            "three([a / b for a, b in zip(values[0], values[-1])])",
            "three([b / a for a, b in zip(values[0], values[-1])])",
        ),
    ),
    edit(
        "interactive_means_thirty_seconds",
        "M1",
        (LOAD, '{"ttft_p95_ms": 3000.0, "ttft_max_ms": 5000.0}', '{"ttft_p95_ms": 30000.0, "ttft_max_ms": 50000.0}'),
    ),
    edit(
        "bulk_asks_for_an_hour_a_minute",
        "M2",
        (LOAD, 'FLEET = {"requests_per_minute": 5000 / 60,', 'FLEET = {"requests_per_minute": 5000 / 600,'),
        (LOAD, '"tokens_per_second": 10e6 / 86400}', '"tokens_per_second": 10e5 / 86400}'),
    ),
    edit(
        "the_first_token_comes_at_the_end",
        "M4",
        (
            "prelude/runtime/lifecycle.py",
            "(request.first_token - request.arrived) * 1e3 if request.first_token else stats.total_ms",
            "stats.total_ms",
        ),
    ),
    edit(
        "both_phases_wait_for_arithmetic",
        "F21 M5",
        (
            COSTS,
            'if m > a) else "memory"\n',
            'if m > a) else "arithmetic"\n',
        ),
    ),
    edit(
        "a_step_takes_the_shorter_part",
        "F20 Q5",
        (
            COSTS,
            "        return self.step + sum(map(max, self.parts(work)))\n",
            "        return self.step + sum(map(min, self.parts(work)))\n",
        ),
    ),
    edit(
        "long_texts_are_prepared_by_the_caller",
        "N2",
        ("prelude/api/call_steps.py", "INLINE_CHARS = 4096\n", "INLINE_CHARS = 1 << 30\n"),
    ),
    edit(
        "chat_is_as_bulk_is",
        "N11",
        (
            CONFIG,
            '{"max_running": 32, "chunk_tokens": 128, "oneshot_share": 0.1, **limits}',
            '{"max_running": 256, "chunk_tokens": 4096, "oneshot_share": 0.9, **limits}',
        ),
    ),
    edit(
        "kv_of_a_token_forgets_the_values",
        "D6",
        (
            "prelude/models/spec/__init__.py",
            "        return 2 * len(self.attentions) * self.attention.kv_heads",
            "        return len(self.attentions) * self.attention.kv_heads",
        ),
    ),
    edit(
        "weights_are_counted_twice",
        "A20",
        ("prelude/cpu/executor.py", "weight_bytes=self.weights.nbytes,", "weight_bytes=2 * self.weights.nbytes,"),
    ),
    edit(
        "scores_wait_for_texts",
        "Q3",
        (
            PLANNER,
            "    if not waiting or allowance == 0:\n",
            "    if not waiting or allowance == 0 or queues.running:\n",
        ),
    ),
    edit(
        "a_request_waits_for_company",
        "Q14",
        (
            PLANNER,
            "    if not waiting or allowance == 0:\n",
            "    if waiting == 1 and not queues.running:\n"
            '        __import__("time").sleep(0.05)\n'
            "    if not waiting or allowance == 0:\n",
        ),
    ),
)
