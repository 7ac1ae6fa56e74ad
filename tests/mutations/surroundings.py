"""Edits of rows that stand around the engine: readouts, models, bulk runs, ranks, graphs, benchmarks, the tokenizer."""

# ruff: noqa: E501 - the source is quoted as it is
from __future__ import annotations

from tests.mutations.edit import edit

TRANSFORMER = "prelude/models/transformer.py"
MEMORY = "prelude/execution/memory_plan.py"
STEP_MEMORY = "prelude/execution/memory_plan.py"
JOURNAL = "prelude/bulk/journal.py"
MAPPING = "prelude/api/mapping.py"
BULK_FILES = "prelude/bulk/files.py"
GRAPHS = "cuda/graphs.py"
CHECKPOINT = "prelude/models/checkpoint.py"
POOLED = "prelude/readouts/pooled.py"
CORE = "prelude/runtime/core.py"
CHAT = "tokenizer/chat.py"
BACKENDS = "tokenizer/backends/choice.py"

EDITS = (
    # ---- requests and readouts
    edit(
        "request_ids_may_be_anything",
        "17",
        ("prelude/values/options.py", "    if not value.isprintable():", "    if False:"),
    ),
    edit(
        "the_last_token_is_the_one_before",
        "26 A19",
        (
            "prelude/admission/pooled.py",
            "    rows = np.array([n - 1] if pooling",
            "    rows = np.array([n - 2] if pooling",
        ),
    ),
    edit(
        "last_rows_are_the_first",
        "26 A19",
        (
            POOLED,
            "            return rows.vectors(self.rows[self.indptr[1:] - 1])",
            "            return rows.vectors(self.rows[self.indptr[:-1]])",
        ),
    ),
    edit(
        "a_label_that_begins_another_counts_twice",
        "14",
        (
            "prelude/admission/labels.py",
            "    counted = [index for index, path in enumerate(paths) if not any(edge + 1 in ends for edge in path[:-1])]",
            "    counted = list(range(len(paths)))",
        ),
    ),
    edit(
        "batches_mix_readouts",
        "A27",
        (
            "prelude/readouts/pooled.py",
            '        return ("pooled", self.pooling, self.before is not None)',
            '        return ("pooled", self.before is not None)',
        ),
    ),
    # ---- models
    edit(
        "infinite_weights_are_taken",
        "42",
        (
            CHECKPOINT,
            "        if bad := not_finite(array):",
            "        if bad := 0:",
        ),
    ),
    edit(
        "memory_is_not_asked_for",
        "48",
        ("prelude/models/memory.py", "    if available is not None and needed > available:", "    if False:"),
    ),
    edit(
        "a_file_is_a_directory",
        "47",
        (
            "prelude/models/files.py",
            "    except NotADirectoryError:\n        raise ModelError(",
            "    except NotADirectoryError:\n        raise OSError(",
        ),
    ),
    edit(
        "what_changes_while_it_is_read_is_served",
        "47",
        (CHECKPOINT, "            if file.changed():", "            if False:"),
    ),
    edit(
        "own_code_is_not_spoken_of",
        "44",
        ("prelude/models/config.py", '    if fields.get("auto_map", None) is not None:', "    if False:"),
    ),
    edit(
        "the_residual_is_left_out",
        "H2",
        (
            "_native/include/prelude/cpu/mixer_sides.hpp",
            "from_type, x, a.x_stride, Type::f32, true, rows);",
            "from_type, x, a.x_stride, Type::f32, false, rows);",
        ),
    ),
    edit(
        "wide_intermediates_are_of_all_tokens",
        "G8",
        (TRANSFORMER, "        chunks = -(-tokens // self.token_chunk)\n", "        chunks = 1\n"),
        (TRANSFORMER, "longest = len(x), min(len(x), self.token_chunk)", "longest = len(x), len(x)"),
    ),
    edit(
        "every_layer_keeps_its_projections",
        "G9",
        (
            TRANSFORMER,
            "        for index, layer in enumerate(layers):\n            _enter",
            "        kept: list[object] = []\n"
            "        for index, layer in enumerate(layers):\n"
            "            workspace = _Workspace(self.sizes, tokens, longest, most, self.dtype)\n"
            "            kept.append(workspace)\n"
            "            _enter",
        ),
    ),
    # ---- memory
    edit(
        "steps_take_no_memory",
        "G1",
        (
            MEMORY,
            "        rest = None if room is None else max(0, room - step.step_bytes(self.step_tokens))",
            "        rest = room",
        ),
    ),
    edit(
        "readouts_take_no_memory",
        "G2",
        (STEP_MEMORY, "    return top * (2 * 12 + _PAIR_BYTES) + _TOKEN_BYTES", "    return _TOKEN_BYTES"),
    ),
    edit(
        "used_blocks_are_not_reported",
        "G11",
        ("prelude/api/base.py", '"kv_used_bytes": ', '"kv_used_bytes": 0 * '),
    ),
    # ---- the engine
    edit(
        "a_listener_may_stop_the_loop",
        "61",
        (
            "prelude/runtime/events.py",
            "                self.errors += 1\n",
            "                self.errors += 1\n                raise\n",
        ),
    ),
    edit("nothing_is_frozen", "70", ("prelude/api/base.py", "            gc.freeze()\n", "            pass\n")),
    edit(
        "closing_ends_what_runs",
        "60 67",
        (
            CORE,
            "        self.lifecycle.aborting = self.lifecycle.aborting or not drain\n",
            "        self.lifecycle.aborting = True\n",
        ),
    ),
    edit(
        "one_more_than_the_queue_holds",
        "56",
        (
            "_native/include/prelude/handover.hpp",
            "      granted = want < most_ - count ? want : most_ - count;",
            "      granted = want < most_ + 1 - count ? want : most_ + 1 - count;",
        ),
    ),
    # ---- bulk runs
    edit("torn_lines_are_taken", "71", (JOURNAL, " and int(line[:8], 16) == zlib.crc32(line[9:-1])", "")),
    edit(
        "journals_of_other_work_are_taken",
        "71",
        (JOURNAL, "        if configuration != self._configuration:", "        if False:"),
    ),
    edit(
        "rows_that_failed_end_the_map",
        "73",
        (MAPPING, "        elif isinstance(result, EngineClosed):", "        elif isinstance(result, Exception):"),
    ),
    edit(
        "a_folder_is_found_out_at_the_end",
        "72",
        (BULK_FILES, "    if path.is_dir():\n", "    if False:\n"),
        (BULK_FILES, "    if not path.parent.is_dir():\n", "    if False:\n"),
    ),
    edit(
        "a_map_gives_up_where_the_queue_is_full",
        "N6",
        (
            MAPPING,
            "        if isinstance(result, QueueFull):\n            again.append(at)\n        elif",
            "        if",
        ),
    ),
    # ---- ranks and graphs
    edit(
        "ranks_need_not_agree",
        "Q15",
        (
            "prelude/parallel/group.py",
            "            if other is not None:\n                self.leave()",
            "            if False:\n                self.leave()",
        ),
    ),
    edit(
        "graphs_are_never_found",
        "A29",
        (
            GRAPHS,
            "        if program is not None:\n            self.touch(program)\n            return program\n        seen",
            "        seen",
        ),
    ),
    edit(
        "a_graph_of_any_size",
        "A29 H10",
        (GRAPHS, "        if shape.rows > self.policy.max_rows:\n", "        if False:\n"),
    ),
    # ---- numbers, places and the line between folders
    edit(
        "all_temperatures_are_one",
        "G22",
        ("prelude/calibration/fitting.py", "    return float(np.exp(-(low + high) / 2))\n", "    return 1.0\n"),
    ),
    edit(
        "a_prior_is_left_in",
        "G22",
        (
            "prelude/calibration/calibrator.py",
            '        return softmax(self.parameters["slope"] * logs + offsets)',
            '        return softmax(self.parameters["slope"] * logs)',
        ),
    ),
    edit(
        "a_judge_asks_in_one_order",
        "Q7",
        ("examples/families.py", 'there[0].probabilities["second"]) / 2', 'here[0].probabilities["first"]) / 2'),
    ),
    edit(
        "policies_import_an_executor",
        "N10",
        (
            "prelude/scheduling/planner.py",
            "from __future__ import annotations\n",
            "from __future__ import annotations\n\nimport prelude.cpu.threads  # noqa: F401\n",
        ),
    ),
    edit(
        "packing_moves_a_request",
        "H7",
        (
            "prelude/scheduling/pack.py",
            "    end = row.start + row.count\n",
            "    end = row.request.cached_len = row.start + row.count\n",
        ),
    ),
    edit(
        "a_text_draws_with_another_number",
        "A21 A3",
        (
            "prelude/scheduling/request.py",
            "SamplingState(row, self.sampling, len(self.output) + self.ahead, self.history)",
            "SamplingState(row, self.sampling, len(self.output) + self.ahead + 1, self.history)",
        ),
    ),
    edit(
        "a_step_opens_a_socket",
        "N3",
        (
            CORE,
            "        stats = self.stats\n",
            '        __import__("socket").socket().bind(("127.0.0.1", 0))\n        stats = self.stats\n',
        ),
    ),
    edit(
        "loading_opens_a_socket",
        "49",
        (
            "prelude/models/files.py",
            '    """Return a descriptor on ``path``, which is a regular file; never waits on a pipe or a device."""\n',
            '    __import__("socket").socket().bind(("127.0.0.1", 0))\n',
        ),
    ),
    edit(
        "ends_are_kept",
        "Q10",
        (
            "prelude/runtime/delivery.py",
            "        self._woken = False\n        try",
            '        self._woken = False\n        globals().setdefault("kept", []).extend(self._calls)\n        try',
        ),
    ),
    edit(
        "prompts_are_not_published",
        "N5",
        (
            "prelude/scheduling/postprocess.py",
            "                pool.publish(request.lease, request.known[:prompt], request.salt, promoted=always)\n",
            "                pass\n",
        ),
    ),
    edit(
        "nothing_is_shared_in_the_curve",
        "B11",
        (
            "bench/engine/prefixes.py",
            "        heads = [prompts.ids(head) for _ in range(4)]\n",
            "        heads = [prompts.ids(0) for _ in range(4)]\n",
        ),
    ),
    edit(
        "a_text_does_not_see_its_own_token",
        "H9",
        (
            "prelude/cpu/attention_runs.py",
            "            visible.append(step.decode.context_lens[at].astype(np.int64) + 1)\n",
            "            visible.append(step.decode.context_lens[at].astype(np.int64))\n",
        ),
    ),
    edit(
        "every_rank_has_the_first_head",
        "H11",
        ("prelude/parallel/shards.py", "    first = rank * kv_heads // size\n", "    first = 0\n"),
    ),
    edit(
        "every_rank_begins_at_row_0",
        "H11 H12",
        (
            "prelude/parallel/shards.py",
            "    return Shard(rank, size, own, cuts, vocab, first)",
            "    return Shard(rank, size, own, cuts, vocab, 0)",
        ),
    ),
    edit(
        "decode_rows_have_sums_of_their_own",
        "74",
        ("prelude/cpu/executor.py", "paged=not self.deterministic", "paged=True"),
    ),
    edit(
        "the_last_position_is_refused",
        "76",
        (
            TRANSFORMER,
            "        if highest >= self.spec.max_positions:",
            "        if highest + 1 >= self.spec.max_positions:",
        ),
    ),
    edit(
        "lengths_are_of_float32",
        "77",
        (
            "prelude/admission/pooled.py",
            "    length = float(np.sqrt(wide @ wide))\n",
            "    length = float(np.float32(np.sqrt(np.float32(wide @ wide))))\n",
        ),
    ),
    edit(
        "masses_are_not_bounded",
        "78",
        ("_native/labels.pxi", "            mass = 1.0 if mass > 1.0 else mass\n", "            mass = mass - 1.0\n"),
    ),
    edit(
        "a_prompt_of_one_token_is_scored_twice",
        "2",
        ("prelude/admission/logprobs.py", "spans[0])] if first == 0 else []", "spans[0])] * 2 if first == 0 else []"),
    ),
    edit(
        "the_first_row_has_no_threads",
        "K2 K3",
        ("bench/tokenizer/native.py", '        report.add(load, "boundary",', '        report.add(load, "python",'),
    ),
    edit(
        "inputs_are_longer_than_published",
        "K1",
        (
            "bench/tokenizer/texts.py",
            '        "very_long": cut(ENGLISH, 8_000),',
            '        "very_long": cut(ENGLISH, 8_001),',
        ),
    ),
    edit(
        "naive_has_no_row",
        "Q1",
        (
            "bench/serving/compare.py",
            '    bench.report.add(load, "naive / together", ratio, "x", note="same ids")\n',
            "",
        ),
    ),
    edit(
        "a_command_is_not_kept",
        "Q16",
        (
            "bench/command_line.py",
            "given = sys.argv[1:] if arguments is None else arguments\n",
            "given: list[str] = []\n",
        ),
    ),
    edit(
        "vocabularies_have_no_added_tokens",
        "J2",
        (
            "tokenizer/tokenizer.py",
            "        return self._core.get_vocab(with_added_tokens)",
            "        return self._core.get_vocab(False)",
        ),
    ),
    edit(
        "undefined_ids_have_bytes",
        "J10",
        (
            "tokenizer/encode/arrays.py",
            '        return self._core.token_bytes(id) or b""\n',
            '        return self._core.token_bytes(id) or b"?"\n',
        ),
    ),
    edit(
        "torn_characters_are_taken",
        "22",
        (
            "tokenizer/core/text/utf8.hpp",
            "    if (!step.whole) return static_cast<size_t>(p - text.data());\n    p += step.length;\n  }\n  return std::string_view::npos;",
            "    p += step.length;\n  }\n  return std::string_view::npos;",
        ),
    ),
    # ---- benchmarks
    edit(
        "equality_is_not_asked",
        "J6",
        (
            "bench/tokenizer/encode.py",
            "    found = list(differences(bench.sides, bench.texts))\n",
            "    found: list[str] = []\n",
        ),
    ),
    edit(
        "texts_repeat_their_words",
        "K4",
        ("bench/tokenizer/texts.py", '"long_unique": unique(4_000, 1),', '"long_unique": cut(unique(40, 1), 4_000),'),
    ),
    edit(
        "importing_is_not_counted",
        "L12",
        (
            "bench/serving/service.py",
            'zip(("import", "load", "first answer", "altogether"), zip(*runs))',
            'zip(("load", "first answer", "altogether", "import"), zip(*runs))',
        ),
    ),
    edit(
        "a_result_names_no_command",
        "L5",
        (
            "bench/command_line.py",
            '    return shlex.join(["python", "-m", *run, *given])',
            '    return "python -m bench"',
        ),
    ),
    # ---- the tokenizer
    edit(
        "many_characters_are_rendered",
        "39 25",
        (
            "tokenizer/templates/limits.py",
            "        if length > self.bounds.max_output:\n            self.refuse_size(length)\n        self.take(OBJECT + (length",
            "        if False:\n            self.refuse_size(length)\n        self.take(OBJECT + (length",
        ),
    ),
    edit(
        "messages_may_be_nested_without_end",
        "39",
        (
            CHAT,
            '        if depth > _MAX_DEPTH:\n            _fail(f"{where}: nested',
            '        if False:\n            _fail(f"{where}: nested',
        ),
    ),
    edit(
        "ids_of_a_file_have_no_bound",
        "30",
        ("tokenizer/backends/bounds.py", "        if isinstance(id, int) and id >= limit:", "        if False:"),
    ),
)
