"""The edits that an audit of 2026-11-22 found to survive."""

from __future__ import annotations

from tests.mutations.edit import edit

STEPPER = "prelude/runtime/stepper.py"
CORE = "prelude/runtime/core.py"
LIFECYCLE = "prelude/runtime/lifecycle.py"
PLANNER = "prelude/scheduling/planner.py"
REQUEST = "prelude/scheduling/request.py"
CPU = "prelude/cpu/executor.py"
_CAME = "        for request in self._inbox.take():\n"
_STATES = "None if self._states is None else self._states.step(batch))\n"
_FORWARD = "        hidden = self._forward(step, rows, " + _STATES
_HOST = """        self._stats.host_seconds += time.perf_counter() - began - self._blocked
"""

EDITS = (
    edit(
        "number_nan",
        "8",
        (
            "prelude/values/validation.py",
            "if isinstance(value, float | np.floating) and not math.isfinite(value):",
            "if False:",
        ),
    ),
    edit(
        "cached_at_plan",
        "F13",
        (
            PLANNER,
            "    request.staged_len = request.cached_len + count\n"
            "    rows.append(PrefillRow(request, request.cached_len, count))",
            "    rows.append(PrefillRow(request, request.cached_len, count))\n"
            "    request.cached_len += count\n"
            "    request.staged_len = request.cached_len",
        ),
    ),
    edit(
        "preempt_drops_output",
        "D9",
        (
            PLANNER,
            "    request.stats.preemptions += 1\n",
            "    request.stats.preemptions += 1\n"
            "    request.num_known -= 1 if request.output else 0\n"
            "    request.output and request.output.pop()\n",
        ),
    ),
    edit("preempt_never_counts", "D9", (PLANNER, "    request.stats.preemptions += 1\n", "")),
    edit(
        "clock_wall",
        "63",
        (CORE, "clock: Callable[[], float] = time.monotonic", "clock: Callable[[], float] = time.time"),
        ("prelude/values/options.py", "time.monotonic() + self.deadline", "time.time() + self.deadline"),
    ),
    edit(
        "oneshot_decode_state",
        "A16 A15",
        (
            LIFECYCLE,
            "self._stats.decode_state_objects += request.execution_class is ExecutionClass.DECODE",
            "self._stats.decode_state_objects += 1",
        ),
        (
            LIFECYCLE,
            _CAME,
            "        self._stats.decode_state_objects += len(self._inbox.items)\n" + _CAME,
        ),
    ),
    edit(
        "oneshot_stream_objects",
        "A11",
        (
            LIFECYCLE,
            _CAME,
            "        self._stats.streaming_objects += len(self._inbox.items)\n" + _CAME,
        ),
        (
            LIFECYCLE,
            "        self._stats.streaming_objects += request.sink.streams",
            "        self._stats.streaming_objects += 1",
        ),
    ),
    edit(
        "host_time_fake",
        "A25",
        (STEPPER, _HOST, _HOST.replace("time.perf_counter() - began - self._blocked", "1e-9")),
    ),
    edit(
        "host_time_tenth",
        "A25",
        (
            STEPPER,
            _HOST,
            _HOST.replace(
                "time.perf_counter() - began - self._blocked", "(time.perf_counter() - began - self._blocked) / 10"
            ),
        ),
    ),
    edit(
        "stream_close_no_cancel",
        "57 H4",
        (
            "prelude/api/text_streams.py",
            "            sink.abandoned = True\n            self._core.cancel(self._request)\n",
            "            sink.abandoned = True\n",
        ),
    ),
    edit("top_p_strict", "H3", ("prelude/readouts/draw.py", 'side="left")) + 1]', 'side="right")) + 1]')),
    edit(
        "eos_ignored",
        "H4 C4",
        (
            "prelude/admission/sampling.py",
            "    return eos.union(given.tolist())",
            "    return frozenset(given.tolist())",
        ),
    ),
    edit(
        "legal_waiting_decode",
        "C13",
        (
            REQUEST,
            "    State.WAITING: (State.PREFILL, State.FINISHED),",
            "    State.WAITING: (State.PREFILL, State.DECODE, State.FINISHED),",
        ),
    ),
    edit(
        "legal_all_live",
        "C13",
        (REQUEST, "if state not in _MOVES[self._state]:", "if self._state is State.FINISHED:"),
    ),
    edit(
        "batch_delay",
        "F19",
        (
            "prelude/runtime/loop.py",
            "                self._wake.wait()\n",
            "                self._wake.wait()\n                time.sleep(0.05)\n",
        ),
    ),
    edit(
        "embed_not_cached",
        "B9",
        (
            REQUEST,
            "            unread = trunk - 1 if read < 0 else min(trunk, read)\n",
            "            unread = trunk - 1 if read < 0 else min(trunk, read)\n"
            '            if type(readout).__name__ in ("PooledRows", "HeadRows"):\n'
            "                unread = 0\n",
        ),
    ),
    edit(
        "leak_temporaries",
        "A12 A17 A18 A23",
        (CPU, _FORWARD, _FORWARD + '        self.__dict__.setdefault("kept", []).append(hidden)\n'),
    ),
    edit(
        "hidden_all_rows",
        "A17 A18",
        (
            CPU,
            _FORWARD,
            "        hidden = self._forward(step, None, "
            + _STATES
            + "        hidden = hidden if rows is None else hidden[rows]\n",
        ),
    ),
    edit(
        "prepare_on_loop",
        "J8 G14 5",
        (
            "prelude/api/engine.py",
            "if sum(map(text_size, given)) > INLINE_CHARS:",
            "if False:",
        ),
    ),
    edit("range_unbounded", "37", ("tokenizer/templates/sandbox.py", "ACTIVE.get().bounds.max_range", "10**12")),
    edit(
        "oneshot_first_always",
        "F15 F17 F18 A6",
        (
            PLANNER,
            "    return (not queues.decode or first <= queues.decode.oldest()) "
            "and all(first <= r.rank for r in prompts)",
            "    return True",
        ),
    ),
    edit(
        "stuck_preempt",
        "53",
        (
            PLANNER,
            "        preempt(preempted[0], queues, pool)\n",
            "        preempted = []\n",
        ),
    ),
    edit(
        "n_touch_off",
        "E7 E9 E8",
        (
            "_native/core/prefix_trie.cpp",
            "    list_of(i).remove(i);\n    promoted += !nodes_[i].protect;\n    nodes_[i].protect = true;\n"
            "    protected_.append(i);",
            "    promoted += !nodes_[i].protect;\n"
            "    if (!nodes_[i].protect) { list_of(i).remove(i); nodes_[i].protect = true; protected_.append(i); }",
        ),
    ),
)
