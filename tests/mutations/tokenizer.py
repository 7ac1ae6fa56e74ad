"""Edits of the tokenizer's core and of what stands around it, and of rows that had no other edit."""

# ruff: noqa: E501 - the source is quoted as it is

from __future__ import annotations

from tests.mutations.edit import edit

MERGING = "tokenizer/core/bpe/merging.hpp"

EDITS = (
    # ---- Python
    edit(
        "components_are_set_in_silence",
        "J3",
        (
            "tokenizer/components.py",
            '        raise TokenizersMutationError(\n            f"{name} cannot be set after loading',
            '        TokenizersMutationError(\n            f"{name} cannot be set after loading',
        ),
    ),
    edit(
        "loading_has_no_row",
        "J9",
        (
            "bench/tokenizer/loading.py",
            '        table.row("the tokenizer.json", "load, of HF\'s time", times.ratios("json", HF), most=0.45, note=note)\n',
            "",
        ),
    ),
    edit(
        "one_of_two_files_is_named",
        "31",
        ("tokenizer/config.py", "contradicts {tokenizer_file}, and", "contradicts its neighbour, and"),
    ),
    edit(
        "errors_of_the_pattern_engine_come_out",
        "29",
        (
            "tokenizer/backends/splitter.py",
            "        except Exception as error:  # besides",
            "        except ImportError as error:  # besides",
        ),
    ),
    edit(
        "errors_do_not_name_the_field",
        "G21",
        (
            "prelude/systemone/request.py",
            '    check.text(question.get("instructions"), (*loc, "instructions"))',
            '    check.text(question.get("instructions"), loc)',
        ),
    ),
    edit(
        "an_output_stands_where_it_came",
        "G21",
        (
            "prelude/admission/conversation.py",
            '        place.append(_turn("tool", [names[0] or called, *names[1:]], text))\n',
            '        self._places.append([_turn("tool", [names[0] or called, *names[1:]], text)])\n',
        ),
    ),
    edit(
        "a_chat_prompt_gets_a_second_start",
        "27",
        (
            "prelude/admission/prompts.py",
            "        ids = scope.encode_pieces(pieces)\n    else:\n        ids = token_ids(",
            "        ids = np.concatenate([scope.encoder.prefix, scope.encode_pieces(pieces)])\n    else:\n        ids = token_ids(",
        ),
    ),
    edit(
        "requests_are_python_objects",
        "Q8",
        (
            "prelude/scheduling/request.py",
            "class Request(Record):\n",
            "class _Plain(Record):\n    __slots__ = ()\n\n\nclass Request(_Plain):\n",
        ),
    ),
    edit(
        "a_row_in_flight_ends_at_once",
        "50",
        ("prelude/runtime/lifecycle.py", "        if self._steps.has(request):\n", "        if False:\n"),
    ),
    # ---- C++
    edit(
        "a_leaders_promise_outlives_it",
        "52",
        (
            "_native/core/kv_pool.cpp",
            "    forget(lease);\n    r = trie_.break_promise(lease.promise, nullptr);\n",
            "    forget(lease);\n",
        ),
    ),
    edit(
        "of_equal_ways_the_last_is_taken",
        "J1",
        (
            "tokenizer/core/vocab/unigram.hpp",
            "node.from == none || candidate > node.score) node",
            "node.from == none || candidate >= node.score) node",
        ),
    ),
    edit(
        "threads_share_their_buffers",
        "J4 34",
        ("tokenizer/core/tokenizer.hpp", "    static thread_local Scratch s;", "    static Scratch s;"),
    ),
    edit(
        "a_word_to_be_merged_allocates",
        "J5",
        (
            "tokenizer/core/bpe/merge_batch.hpp",
            "    words_.push_back({static_cast<uint32_t>(symbols_), static_cast<uint32_t>(n)});\n",
            "    ScratchVector<Word> more = words_;\n"
            "    more.push_back({static_cast<uint32_t>(symbols_), static_cast<uint32_t>(n)});\n"
            "    words_.swap(more);\n",
        ),
    ),
    edit(
        "windows_of_a_long_word_are_put_side_by_side",
        "23",
        (
            MERGING,
            "    if (at > 0) {\n      for (size_t left",
            "    if (at > chain.size()) {\n      for (size_t left",
        ),
        (MERGING, "overlap = 2;  // tokens", "overlap = 0;  // tokens"),
    ),
    edit(
        "long_runs_of_marks_are_not_ordered",
        "24",
        (
            "tokenizer/core/unicode/unicode.hpp",
            "      if (!ordered)  // equal",
            "      if (!ordered && out.size() - run <= 24)  // equal",
        ),
    ),
    edit(
        "single_words_may_go_on",
        "28",
        (
            "tokenizer/core/split/added.hpp",
            "(word_before(hit.begin) || word_after(hit.end))) continue;",
            "word_before(hit.begin)) continue;",
        ),
    ),
)
