"""Edits of the surface that a caller or a file meets first: tasks, settings, templates, traces, forks."""

from __future__ import annotations

from tests.mutations.audited import REQUEST
from tests.mutations.edit import edit
from tests.mutations.requests import CHECKS

SNAPSHOT = "prelude/admission/snapshot.py"
STRICT_JSON = "prelude/values/strict_json.py"
CHAT = "tokenizer/chat.py"

EDITS = (
    edit(
        "forks_are_not_noticed",
        "62",
        ("prelude/runtime/forks.py", "        forkable.forked = True\n", "        forkable.forked = False\n"),
    ),
    edit(
        "dimensions_have_no_bound",
        "16",
        (
            "prelude/admission/pooled.py",
            'validation.integer(task.dimensions, "dimensions", 1, hidden)',
            'validation.integer(task.dimensions, "dimensions", 0, hidden + 1)',
        ),
    ),
    edit(
        "params_are_not_copied", "20", (SNAPSHOT, "        if copied_params is not params:\n", "        if False:\n")
    ),
    edit(
        "prompts_are_not_copied",
        "20",
        (SNAPSHOT, "            changes[name] = copy_prompt(value)\n", "            changes[name] = value\n"),
    ),
    edit("lone_surrogates_pass", "21", (CHECKS, "    if not value.isascii():\n", "    if False:\n")),
    edit(
        "typos_name_no_neighbour",
        "19",
        ("prelude/tasks/__init__.py", "    near = get_close_matches(name, known, n=1)\n", "    near = []\n"),
    ),
    edit(
        "reserved_names_pass",
        "38",
        (CHAT, '        if name in RESERVED or name.startswith("_"):\n', '        if name.startswith("_"):\n'),
    ),
    edit(
        "undefined_has_attributes",
        "36",
        (
            "tokenizer/templates/sandbox.py",
            '        if isinstance(obj, Undefined) and name.startswith("_"):\n',
            "        if False:\n",
        ),
    ),
    edit(
        "namespaces_have_private_attributes",
        "36",
        (
            "tokenizer/templates/sandbox.py",
            '    if name.startswith("_"):\n        return environment.unsafe_undefined',
            "    if False:\n        return environment.unsafe_undefined",
        ),
    ),
    edit(
        "spans_are_not_kept",
        "N1",
        ("prelude/scheduling/timeline.py", "        self.add(name, start, end)\n", "        pass\n"),
    ),
    edit(
        "a_whole_hit_computes_nothing",
        "B5",
        (REQUEST, "unread = trunk - 1 if read < 0 else min(trunk, read)", "unread = trunk if read < 0 else trunk"),
    ),
    edit(
        "the_idle_loop_spins",
        "F4",
        ("prelude/runtime/loop.py", "                self._wake.wait()\n", "                self._wake.wait(1e-6)\n"),
    ),
    edit(
        "health_is_always_well",
        "N8",
        (
            "prelude/api/base.py",
            "            reason is None,\n            core",
            "            True,\n            core",
        ),
    ),
    edit(
        "keys_may_come_twice",
        "43",
        (
            STRICT_JSON,
            "        return json.loads(text, object_pairs_hook=_once, **numbers)\n    except",
            "        return json.loads(text, **numbers)\n    except",
        ),
    ),
    edit(
        "modules_of_any_kind",
        "46",
        ("prelude/models/sentence_transformers.py", '        elif kind != "Transformer":\n', "        elif False:\n"),
    ),
)
