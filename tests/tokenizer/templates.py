"""A template and a conversation that several tests render."""

from __future__ import annotations

from typing import Any

from prelude.tokenizer.chat import apply_chat_template

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello!"}]


def render(template: str, messages: Any = HELLO, **kwargs: Any) -> str:
    return apply_chat_template(messages, template, **kwargs)
