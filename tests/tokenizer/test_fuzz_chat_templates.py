"""How ``python -m tests.fuzz_chat_templates``, which .ci/run has, judges a template."""

from __future__ import annotations

import pytest

from tests import fuzz_chat_templates as fuzz


@pytest.mark.parametrize(
    ("text", "leaks"), [("a Ω", True), (r"\xD0\x96", True), (r"\U03A9", True), ("xd000000<A>", False), ("<s>", False)]
)
def test_the_users_text_is_told_from_the_templates(text: str, leaks: bool) -> None:
    """``'xd' ~ '<a>'.zfill(9)`` once did."""
    assert bool(fuzz._FROM_USER.search(text)) == leaks


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"megabytes": 1, "seconds": 0.1, "theirs": "equal"}, None),
        ({"megabytes": 300, "seconds": 0.1}, "memory"),
        ({"megabytes": 1, "seconds": 9.0}, "time"),
        ({"megabytes": 1, "seconds": 0.1, "error": "ValueError"}, "error"),
        ({"megabytes": 1, "seconds": 0.1, "error": "killed"}, "error"),
        ({"megabytes": 1, "seconds": 0.1, "error": "ChatTemplateError", "message": "MemoryError: "}, "memory"),
        ({"megabytes": 1, "seconds": 0.1, "leak": "Ω"}, "trust"),
        ({"megabytes": 1, "seconds": 0.1, "theirs": "differs"}, "text"),
        (
            {
                "megabytes": 1, "seconds": 0.1, "error": "ChatTemplateError", "message": "TypeError: x",
                "theirs": "text",
            },
            "refused",
        ),
    ],
)  # fmt: skip
def test_the_failures_of_a_template(found: dict[str, object], kind: str | None) -> None:
    assert fuzz.fault(found) == kind
