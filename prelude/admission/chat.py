"""The chat template as admission uses it: segments with trust, and the frame around one user turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prelude.errors import TemplateError, shown
from prelude.tasks import Message

# (messages, add_generation_prompt) -> [(text, trusted)]: what messages say is untrusted, the template's own text
# trusted.
ChatRenderer: TypeAlias = Callable[[Sequence[Message], bool], list[tuple[str, bool]]]

_MARK = "\u2e22content\u2e23"


@dataclass(frozen=True, slots=True)
class Frame:
    """What the chat template puts around a user turn: trusted text before and after it, the latter up to the end
    of the generation prompt. ``strips`` says whether it strips white space from what the user wrote."""

    before: str = ""
    after: str = ""
    strips: bool = False


PLAIN = Frame()


def make_frame(chat: ChatRenderer | None) -> Frame:
    """Renders one user turn that holds a mark, and takes what stands around the mark."""
    if chat is None:
        raise TemplateError(
            "this decision template goes through the chat template, and the model has none; use one with chat=False",
            field="template",
        )
    try:
        segments = chat([{"role": "user", "content": f" {_MARK} "}], True)
    except (ValueError, TypeError) as error:
        raise TemplateError(f"the chat template refuses a single user turn: {shown(str(error))}") from error
    rendered = "".join(text for text, _ in segments)
    if rendered.count(_MARK) != 1:
        raise TemplateError("the chat template does not show the user's turn exactly once; use chat=False")
    before, after = rendered.split(_MARK)
    kept = before.endswith(" ") and after.startswith(" ")
    return Frame(before[:-1], after[1:]) if kept else Frame(before, after, strips=True)
