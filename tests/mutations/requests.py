"""Edits of admission, sampling, reading and streaming."""

# ruff: noqa: E501 - the source is quoted as it is
from __future__ import annotations

from tests.mutations.edit import edit

CHECKS = "prelude/values/validation.py"
PROMPTS = "prelude/admission/prompts.py"
QUESTIONS = "prelude/admission/questions.py"
ASKED = "prelude/admission/plain_question.py"
SETTINGS = "prelude/admission/sampling.py"
DRAWING = "prelude/readouts/sampling.py"
SAMPLING = "prelude/readouts/draw.py"
BASE = "prelude/readouts/base.py"
READOUTS = "prelude/cpu/hidden_rows.py"
DETOKENIZE = "prelude/streaming/detokenize.py"
TEXT = "prelude/streaming/text.py"

EDITS = (
    edit("integers_have_no_bounds", "6 7 9", (CHECKS, "    if not least <= value <= most:", "    if False:")),
    edit(
        "a_bool_is_an_integer",
        "7",
        (
            CHECKS,
            "    if isinstance(value, bool) or not isinstance(value, int | np.integer):",
            "    if not isinstance(value, int | np.integer):",
        ),
    ),
    edit("numbers_have_no_bounds", "8", (CHECKS, "    if not low <= value <= high:", "    if False:")),
    edit("characters_have_no_bound", "5", (CHECKS, "    if len(value) > most:", "    if False:")),
    edit(
        "an_empty_prompt_has_no_beginning",
        "1",
        (PROMPTS, "    if start is None:\n        raise", "    if False:\n        raise"),
    ),
    edit("truncation_keeps_the_wrong_end", "3", (PROMPTS, '"head": 0, "tail": rest', '"head": rest, "tail": 0')),
    edit("truncation_is_allowed_always", "3", (PROMPTS, '    if truncation == "error":', "    if False:")),
    edit(
        "truncation_is_one_token_short",
        "3",
        (PROMPTS, "    excess = len(ids) - room\n", "    excess = len(ids) - room - 1\n"),
    ),
    edit("one_message_is_a_prompt", "15", (PROMPTS, "    if isinstance(prompt, Mapping):", "    if False:")),
    edit(
        "bytes_are_a_prompt",
        "15",
        (
            PROMPTS,
            "if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):",
            "if not isinstance(prompt, Sequence):",
        ),
    ),
    edit("a_template_may_be_missing", "35", (PROMPTS, "    if ctx.chat is None:", "    if False:")),
    edit(
        "labels_may_come_twice",
        "10",
        (ASKED, "            if seen.setdefault(label, index) != index:", "            if False:"),
    ),
    edit("labels_have_no_bound", "10", (ASKED, "    if not 1 <= len(labels) <= most:", "    if False:")),
    edit("a_question_may_tokenise_to_nothing", "10", (QUESTIONS, "    if not all(map(len, rows)):", "    if False:")),
    edit(
        "bias_ids_have_no_bound",
        "11",
        (
            SETTINGS,
            '        raise RequestTooLarge(f"{len(bias)} entries;',
            '        pass\n    if False:\n        raise RequestTooLarge(f"{len(bias)} entries;',
        ),
    ),
    edit("every_token_may_be_banned", "11", (SETTINGS, "    if left == 0:", "    if False:")),
    edit("stop_strings_have_no_number", "12", (SETTINGS, "    if len(stop) > MAX_STOPS:", "    if False:")),
    edit(
        "stop_strings_are_ignored",
        "12 H4",
        (SETTINGS, "    return Stops(words) if words else None", "    return None"),
    ),
    edit(
        "min_tokens_is_ignored",
        "H4",
        (
            DRAWING,
            "one.banned_early if state.step < sampling.min_tokens else one.banned",
            "one.banned",
        ),
    ),
    edit(
        "settings_of_one_row_are_another_rows",
        "13",
        (
            DRAWING,
            "    return _indptr(lengths), _joined(parts)",
            "    return _indptr([max(lengths)] + [0] * (len(parts) - 1)), _joined(parts)",
        ),
    ),
    edit(
        "the_prompt_is_not_penalised",
        "C11 H3",
        (DRAWING, "return cls(prompt if edits.repetition != 1.0 else _NO_IDS,", "return cls(_NO_IDS,"),
    ),
    edit(
        "drawn_tokens_are_counted_once",
        "H3",
        (DRAWING, "        self._counts[at] += 1\n", "        self._counts[at] = 1\n"),
    ),
    edit("temperature_is_ignored", "H3", (SAMPLING, "float(logits.max())) / temperature", "float(logits.max()))")),
    edit(
        "greedy_takes_the_last_of_equal",
        "H3",
        (
            "prelude/readouts/sample.py",
            "        return int(logits.argmax()) if edits",
            "        return int(len(logits) - 1 - logits[::-1].argmax()) if edits",
        ),
    ),
    edit(
        "masked_greedy_takes_the_last_of_equal",
        "H3",
        (
            SAMPLING,
            "    return best_of(logits, allowed)",
            "    return int(allowed[logits[allowed] == logits[allowed].max()].max())",
        ),
    ),
    edit("top_k_is_ignored", "H3", (SAMPLING, "    if 0 < top_k < len(weights):", "    if False:")),
    edit("min_p_is_ignored", "H3", (SAMPLING, "    if min_p > 0.0:", "    if False:")),
    edit(
        "seeds_are_ignored",
        "H3 H5",
        (
            SAMPLING,
            "        z = _mix(np.asarray(seeds, np.uint64))",
            "        z = _mix(np.zeros_like(np.asarray(seeds, np.uint64)))",
        ),
    ),
    edit(
        "steps_draw_alike",
        "H3",
        (SAMPLING, "(np.asarray(steps).astype(np.uint64) + np.uint64(1)) * _GOLDEN", "np.uint64(1) * _GOLDEN"),
    ),
    edit(
        "banned_tokens_are_drawn",
        "11 H3",
        (SAMPLING, "    if len(banned):\n", "    if False:\n"),
    ),
    edit(
        "repetition_only_divides",
        "H3",
        (SAMPLING, "np.where(values > 0, values / repetition, values * repetition)", "values / repetition"),
    ),
    edit(
        "logprobs_may_be_above_zero",
        "75",
        (READOUTS, "np.minimum(relative - rest[rows], 0.0)", "relative - rest[rows] + 1e-3"),
    ),
    edit("ranks_begin_at_zero", "A4 B10", (READOUTS, "        ranks[i] = 1 + np", "        ranks[i] = np")),
    edit(
        "nan_rows_pass",
        "58 75",
        (
            BASE,
            "    return np.flatnonzero(~finite).astype(np.int32)",
            "    return np.flatnonzero(~finite)[:0].astype(np.int32)",
        ),
    ),
    edit(
        "equal_logits_in_any_order",
        "75 A4",
        (
            READOUTS,
            "    order = np.lexsort((ids, -values), axis=1)\n",
            "    order = np.lexsort((-ids, -values), axis=1)\n",
        ),
    ),
    edit(
        "half_characters_are_sent",
        "I2",
        (
            DETOKENIZE,
            '        text, used = utf_8_decode(data, "replace", False)\n        self._held = data[used:]\n        return text\n\n    def finish',
            '        text, used = utf_8_decode(data, "replace", True)\n        self._held = data[used:]\n        return text\n\n    def finish',
        ),
    ),
    edit(
        "half_characters_are_lost_at_the_end",
        "I3 33",
        (
            DETOKENIZE,
            '        text, _ = utf_8_decode(self._held, "replace", True)\n        self._held = b""',
            '        text = ""\n        self._held = b""',
        ),
    ),
    edit(
        "control_tokens_have_text",
        "I2",
        (DETOKENIZE, 'found = b"" if token_id in self._special else self', "found = self"),
    ),
    edit(
        "the_first_space_is_kept",
        "I2 32",
        (
            DETOKENIZE,
            "        self._strip = table.strip\n        self._run",
            "        self._strip = 0\n        self._run",
        ),
    ),
    edit(
        "stops_are_found_in_one_token_alone",
        "H4",
        (
            TEXT,
            "        self._held = text[len(text) - length :]\n        return text[: len(text) - length]",
            '        self._held = ""\n        return text',
        ),
    ),
    edit(
        "a_stop_is_part_of_the_text",
        "H4 12",
        (TEXT, "            return text if self._include else text[: len(text) - length]", "            return text"),
    ),
    edit(
        "what_was_held_is_lost",
        "H4",
        (TEXT, "            if not self.stopped:\n                text += self._held\n", "            pass\n"),
    ),
    edit(
        "words_are_cut",
        "I4",
        (TEXT, "        at = _last_boundary(text)\n", "        at = len(text)\n"),
    ),
    edit("decode_states_stay", "I1", (TEXT, "        self._texts.live -= 1\n", "        pass\n")),
)
