"""The chat template as admission uses it: segments with trust, and the frame around one user turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from prelude.errors import TemplateError, shown
from prelude.records import dataclass
from prelude.tasks import Message

# (messages, add_generation_prompt) -> [(text, trusted)]: the text of messages is untrusted, the template's own text
# trusted.
ChatRenderer: TypeAlias = Callable[[Sequence[Message], bool], list[tuple[str, bool]]]

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token")
_MARK = "\u2e22content\u2e23"


@dataclass(frozen=True, slots=True)
class Frame:
    """The text of the chat template around a user turn: trusted text before and after it, the latter up to the end
    of the generation prompt. ``strips``: whether it strips white space from the user's text."""

    before: str = ""
    after: str = ""
    strips: bool = False


PLAIN = Frame()


def make_frame(chat: ChatRenderer | None) -> Frame:
    """Renders one user turn that holds a mark, and takes the text around the mark. Done once, so that a decision
    costs no rendering; a template that writes the date keeps that of the first decision."""
    if chat is None:
        raise TemplateError(
            "this decision template goes through the chat template, and the model has none; use one with chat=False",
            field="template",
        )
    try:
        segments = chat([{"role": "user", "content": f" {_MARK} "}], True)
    except (ValueError, TypeError) as error:
        raise TemplateError(
            f"the chat template refuses a single user turn: {shown(str(error))}", field="template"
        ) from error
    rendered = "".join(text for text, _ in segments)
    if rendered.count(_MARK) != 1:
        raise TemplateError(
            "the chat template does not show the user's turn exactly once; use chat=False", field="template"
        )
    before, after = rendered.split(_MARK)
    kept = before.endswith(" ") and after.startswith(" ")
    return Frame(before[:-1], after[1:]) if kept else Frame(before, after, strips=True)


def chat_renderer(tokenizer: Any, **options: Any) -> ChatRenderer | None:
    """Return the chat template beside a ``prelude.tokenizer.Tokenizer``; ``None`` if there is none.

    ``options`` are variables for the template. Decisions use ``enable_thinking=False``: templates that know
    it close the block of thoughts before the answer, others do not see it.
    """
    template = tokenizer.chat_template
    if template is None:
        return None
    named = {name: getattr(tokenizer, name) for name in _SPECIAL_TOKENS}
    given = {**{name: token for name, token in named.items() if token is not None}, **options}

    @lru_cache
    def takes_parts(role: str) -> bool:
        return _shows_parts(written, role)

    def in_text(message: Message) -> Message:
        from prelude.tokenizer.chat import ROLES  # of any other role a caller could make a rendering

        content = message.get("content")
        if not isinstance(content, list | tuple) or (message["role"] in ROLES and takes_parts(message["role"])):
            return message
        return {**message, "content": "".join(part["text"] for part in content)}

    def render(messages: Sequence[Message], add_generation_prompt: bool) -> list[tuple[str, bool]]:
        return written(list(map(in_text, messages)), add_generation_prompt)

    def written(messages: Sequence[Message], add_generation_prompt: bool) -> list[tuple[str, bool]]:
        from prelude.tokenizer.chat import render_segments

        return render_segments(messages, template, add_generation_prompt=add_generation_prompt, **given)

    return render


def _shows_parts(chat: ChatRenderer, role: str) -> bool:
    """Return whether a template writes a content in parts of text as it writes the text. Others omit it, or write the
    parts as Python does."""
    others: list[Message] = [] if role == "user" else [{"role": "user", "content": "-"}]
    first = role in ("system", "developer")

    def turn(content: Any) -> list[tuple[str, bool]]:
        message: list[Message] = [{"role": role, "content": content}]
        return chat(message + others if first else others + message, True)

    try:
        return turn([{"type": "text", "text": _MARK}]) == turn(_MARK)
    except (ValueError, TypeError):
        return False
