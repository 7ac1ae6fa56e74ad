"""Chat templates: messages to text, and to text whose parts are known to be the template's or the user's.

A segment of ``render_segments`` is trusted if the template wrote it; text of messages, tools, documents or other
arguments is not, however the template cut it up. Tokenised with ``Tokenizer.encode_segments``, untrusted text never
becomes a control token, nor completes one. Trusted from outside are only the special tokens given by name
(``bos_token``...), and the role of a message if it is one of ``ROLES``: some templates build a control token around
it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from .errors import EXTRA, ChatTemplateError
from .templates.limits import ACTIVE, OBJECT, PIECE, Bounds, Rendering, checked_bits
from .templates.marks import Marked, MarkedFloat, MarkedInt, joined, segments

ROLES = frozenset(
    (
        *("system", "developer", "user", "assistant", "model", "tool", "tool_call", "tool_calls", "tool_response"),
        *("tool_results", "function", "ipython", "observation", "environment", "context", "documents", "critic"),
        *("chatbot", "human", "bot"),
    )
)
SPECIAL_TOKENS = frozenset(
    (
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
        *("image_token", "audio_token", "video_token"),
    )
)
RESERVED = frozenset(
    (
        *("messages", "conversation", "conversations", "chat", "chat_template", "tokenize", "return_tensors"),
        *("return_dict", "padding", "truncation", "max_length", "tokenizer_kwargs", "return_assistant_tokens_mask"),
        *("continue_final_message", "add_generation_prompt", "tools", "documents", "processor_kwargs", "bounds"),
        *("self", "context", "environment", "caller", "loop", "varargs", "kwargs"),  # names of jinja2's
        *("range", "dict", "namespace", "raise_exception", "strftime_now", "cycler", "joiner", "lipsum"),
    )
)
_REASONING = ("reasoning_content", "thinking", "reasoning")
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_MAX_DEPTH = 64
_MAX_KEY_BITS = 60


def apply_chat_template(messages: Sequence[Any], chat_template: str | None = None, **options: Any) -> str:
    """Return the text of a conversation; ``options`` as for ``render_segments``."""
    return str.__str__(_rendered(False, messages, chat_template, **options))


def render_segments(
    messages: Sequence[Any], chat_template: str | None = None, **options: Any
) -> list[tuple[str, bool]]:
    """Return the text of a conversation in (text, trusted) pieces; adjacent ones differ in trust, none is empty.

    Options are ``add_generation_prompt`` and ``continue_final_message`` (bool), ``tools`` and ``documents`` (lists of
    dicts), ``bounds``, and variables of the template. Raises ``ChatTemplateError`` if it cannot be rendered."""
    return segments(_rendered(True, messages, chat_template, **options))


def _rendered(
    marked: bool,
    messages: Sequence[Any],
    chat_template: str | None,
    /,
    *,
    add_generation_prompt: bool = False,
    tools: Sequence[Any] | None = None,
    documents: Sequence[Any] | None = None,
    continue_final_message: bool = False,
    bounds: Bounds | None = None,
    **kwargs: Any,
) -> str:
    compiled = _sandbox().compiled
    for name in kwargs:
        if name in RESERVED or name.startswith("_"):
            _fail(f"{name!r} is reserved and cannot be given to a chat template")
    if not isinstance(continue_final_message, bool):
        _fail(f"continue_final_message takes True or False, not {continue_final_message!r:.80}")
    if continue_final_message and add_generation_prompt:
        _fail("continue_final_message and add_generation_prompt exclude each other")
    rendering = Rendering(bounds or Bounds())
    source = _source(chat_template, rendering.bounds)
    plain = _Plain(marked, rendering)
    given = _dicts(plain, messages, "messages", "a message is a dict with a role and content")
    chat = [_message(message, f"messages[{i}]") for i, message in enumerate(given)]
    final = _tag_final(chat) if continue_final_message else None
    variables = {
        **{k: plain.value(v, k, trusted=k in SPECIAL_TOKENS) for k, v in kwargs.items()},
        "messages": chat,
        "tools": None if tools is None else _dicts(plain, tools, "tools", "a tool is its JSON schema, a dict"),
        "documents": None if documents is None else _dicts(plain, documents, "documents", "a document is a dict"),
        "add_generation_prompt": bool(add_generation_prompt),
    }
    token = ACTIVE.set(rendering)
    try:
        template = _checked("the chat template cannot be compiled: ", compiled, source, rendering.bounds.max_nodes)
        text: str = _checked("" if chat else "without messages: ", _written, template, variables)
    finally:
        ACTIVE.reset(token)
    return text if final is None else _untagged(text, final)


def _checked(prefix: str, run: Callable[..., Any], *args: Any) -> Any:
    """``run(*args)``, with ``ChatTemplateError`` for its errors but ``MemoryError``: messages are not refused if
    this process has no memory. The error is made outside of the handler: the traceback of the first would keep the
    template's values alive."""
    failure: str | None = None
    try:
        return run(*args)
    except ChatTemplateError as error:
        failure = str(error)
    except MemoryError:
        pass
    except RecursionError:
        failure = "the chat template is nested or recurses too deeply"
    except Exception as error:
        failure = prefix + _described(error)
    if failure is None:
        raise MemoryError("no memory is left for rendering a chat template")
    raise ChatTemplateError(failure)


def _written(template: Any, variables: dict[str, Any]) -> str:
    from .templates.values import concatenated

    return concatenated(template.root_render_func(template.new_context(variables)))


@functools.cache
def _sandbox() -> Any:
    try:
        import jinja2
    except ImportError:
        raise ChatTemplateError(
            f"chat templates need the package `jinja2`, which is not installed: {EXTRA}"
        ) from None
    if tuple(int(n) for n in re.findall(r"\d+", jinja2.__version__)[:3]) < (3, 1, 6):
        _fail(f"jinja2 {jinja2.__version__} has known ways out of its sandbox; chat templates need 3.1.6 or newer")
    from .templates import sandbox

    return sandbox


def _source(source: str | None, limits: Bounds) -> str:
    if source is None:
        _fail("no chat template: pass chat_template=..., or one that the tokenizer's directory has (chat_template)")
    if not isinstance(source, str):
        _fail(f"chat_template is a string, not {type(source).__name__}")
    if len(source) > limits.max_template:
        _fail(
            f"the chat template has {len(source)} characters; the limit is {limits.max_template} "
            "(Bounds.max_template)"
        )
    return source


def _described(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {str(error)[:500]}{where}"


# ---- values that templates see


class _Plain:
    """Arguments rebuilt from plain JSON types; strings are marked when ``marked``.

    A sandbox takes no objects with methods: a value that is not data becomes the name of its type. New values
    are charged to the rendering, as the template's own values are.
    """

    def __init__(self, marked: bool, rendering: Rendering) -> None:
        self._marked = marked
        self._take = rendering.take

    def value(self, value: Any, where: str, depth: int = 0, trusted: bool = False) -> Any:
        if isinstance(value, str):
            if not self._marked or trusted:
                self._take(OBJECT)
                return str.__str__(value)
            self._take(PIECE + (len(value) if value.isascii() else 4 * len(value)))
            return Marked(str.__str__(value))
        if depth > _MAX_DEPTH:
            _fail(f"{where}: nested deeper than {_MAX_DEPTH}")
        self._take(OBJECT)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            value = checked_bits(value)
            return MarkedInt(value) if self._marked else int.__int__(value)
        if isinstance(value, float):
            return MarkedFloat(value) if self._marked else float.__float__(value)
        if isinstance(value, np.generic):
            return self.value(value.item(), where, depth + 1)
        if isinstance(value, Mapping):
            self._take(3 * OBJECT + 2 * OBJECT * len(value))
            return {self._key(k, where, depth + 1): self.value(v, where, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            made = [self.value(v, where, depth + 1) for v in value]
            return made if isinstance(value, list) else tuple(made)
        return self._described(value, where, depth)

    def _key(self, key: Any, where: str, depth: int) -> Any:
        if not isinstance(key, str):
            if not (key is None or isinstance(key, (int, float, np.generic))):
                _fail(f"{where}: a key of a dict is a string, a number or None, not {type(key).__name__}")
            if isinstance(key, int) and abs(key) >> _MAX_KEY_BITS:
                _fail(f"{where}: a key of a dict is below 2**{_MAX_KEY_BITS}, not of {key.bit_length()} bits")
        return self.value(key, where, depth)

    def _described(self, value: Any, where: str, depth: int) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return self.value(fields, where, depth + 1)
        dump = getattr(value, "model_dump", None)
        if callable(dump):
            return self.value(dump(), where, depth + 1)
        return self.value(f"<{type(value).__name__}>", where, depth)


def _dicts(plain: _Plain, values: Sequence[Any], name: str, kind: str) -> list[dict[str, Any]]:
    if not isinstance(values, (list, tuple)):
        _fail(f"{name}: a list, not {type(values).__name__}")
    made = [plain.value(one, f"{name}[{i}]") for i, one in enumerate(values)]
    for i, one in enumerate(made):
        if not isinstance(one, dict):
            _fail(f"{name}[{i}]: {kind}, not {type(values[i]).__name__}")
    return made


def _message(made: dict[str, Any], where: str) -> dict[str, Any]:
    made = {key: item for key, item in made.items() if item is not None}  # templates write them as "None"
    role = made.get("role")
    if not isinstance(role, str):
        _fail(f"{where}.role: {'missing' if role is None else f'a string, not {type(role).__name__}'}")
    if role in ROLES:
        made["role"] = str.__str__(role)
    reasoning = next((made[k] for k in _REASONING if made.get(k) is not None), None)
    if reasoning is not None:
        made = {"thinking": reasoning, **made, "reasoning_content": reasoning}
    return made


# ---- continuing the last message


def _tag_final(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message, so that the template's text after it can be cut off."""
    content = chat[-1].get("content") if chat else None
    if isinstance(content, list):
        part = next((p for p in reversed(content) if isinstance(p, dict) and isinstance(p.get("text"), str)), None)
        holder, key = part, "text"
    else:
        holder, key = (chat[-1] if isinstance(content, str) else None), "content"
    if holder is None:
        _fail("continue_final_message is set, but the last message has no text to continue")
    final: str = holder[key]
    holder[key] = joined([final, _TAG])
    return str.__str__(final)


def _untagged(text: str, final: str) -> str:
    at = text.rfind(_TAG.strip())
    if at < 0 or final.strip() not in text:
        _fail("continue_final_message is set, but the template does not show the last message as it is")
    cut = text[:at]
    return cut if text[at:].startswith(_TAG) else cut[: len(str.rstrip(cut))]


def _fail(message: str) -> NoReturn:
    raise ChatTemplateError(message)
