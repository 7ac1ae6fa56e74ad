"""Prompt → token ids: text, ids or chat messages, and the truncation of long ones.

=============  ======================================================================================
text           encoded whole, special tokens of the tokenizer's post-processor added, control tokens in it
               recognised: the caller wrote all of it
token ids      taken as they are, nothing added
messages       the model's chat template; control tokens are recognised in the template's own text only
=============  ======================================================================================

``truncation`` names the part that is **cut off**, as ``truncation_side`` does elsewhere: "head" drops the beginning
and keeps the end, "tail" drops the end, "middle" keeps both ends (the first half rounded up). Exactly as many tokens
are dropped as have to be. Only the user's text is cut: text of a template and the tokenizer's own special tokens
stay, and if several messages are cut they count as one text. A token that holds characters of both stays.

A text longer than ``max_prompt_chars`` is first cut to that many characters at the same side, so that a document of
any length can be given. The texts of messages with more characters are cut, as one text, to the characters that the
other fields leave; a message whose text is cut whole stays, with an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext
from prelude.admission.messages import check_messages, shorten_messages, too_many_characters
from prelude.admission.tokenization import Mask, Piece, TokenizationScope, token_ids
from prelude.errors import InvalidRequest, PromptTooLong, TemplateError, shown
from prelude.readouts.batch import I32
from prelude.records import dataclass
from prelude.tasks import Classify, Embed, Rerank
from prelude.values import validation
from prelude.values.model_settings import OF_VECTORS

TRUNCATIONS = ("error", "head", "tail", "middle")


@dataclass(frozen=True, slots=True)
class Encoded:
    """``token_ids`` int32[n]; ``offsets`` int32[n, 2] in code points if they were asked for and exist."""

    token_ids: I32
    truncated: int = 0
    offsets: I32 | None = None


def encode_prompt(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    prompt: Any,
    *,
    field: str,
    truncation: str,
    room: int,
    generation_prompt: bool = False,
    continued: bool = False,
    offsets: bool = False,
    before: str = "",
    whole: bool = False,
) -> Encoded:
    """Return at least one and at most ``room`` ids. An empty prompt is the model's BOS; ``InvalidRequest`` if it has
    none, ``PromptTooLong`` if it does not fit and may not be cut. A prompt that is
    ``continued`` gets no end-of-text token from the tokenizer, and may start from EOS if there is no BOS.
    ``before`` is put before a text, encoded together with it and not cut. ``whole``: it is cut too, and so is the
    text of a template."""
    validation.one_of(truncation, "truncation", TRUNCATIONS)
    spans: I32 | None = None
    pieces: list[Piece] | None = None
    prompt, seam, dropped = shorten(prompt, ctx.max_chars, truncation)
    cut_ids = 0  # of a text that was shortened they are not known
    if isinstance(prompt, str):
        validation.text(prompt, field, ctx.max_chars)
        prompt = before + prompt
        if offsets:
            ids, spans = scope.encode_with_offsets(prompt, special=True, parse_special=True)
            spans += np.int32(dropped) * (spans >= [seam, seam + 1])
        elif continued:
            ids = np.concatenate([scope.encoder.prefix, scope.encode(prompt, parse_special=True)])
        else:
            ids = scope.encode(prompt, special=True, parse_special=True)
    elif is_messages(prompt, field):
        prompt, dropped = shorten_messages(ctx, prompt, field, truncation)
        pieces = render(ctx, prompt, field, generation_prompt)
        ids = scope.encode_pieces(pieces)
    else:
        ids, cut_ids = token_ids(prompt, field, ctx.encoder, ctx.max_chars), dropped
    if len(ids) == 0:
        return Encoded(beginning(ctx, field, eos=continued))
    excess = len(ids) - room
    if excess <= 0:
        return Encoded(ids, cut_ids or min(dropped, 1), spans)
    if pieces is None:
        cuttable = np.ones(len(ids), dtype=np.bool_)
        if isinstance(prompt, str):
            keep_specials(cuttable, ids, scope, suffix=not continued)
            if before and not whole:
                _, spans_of = scope.encode_with_offsets(prompt, special=True, parse_special=True)
                cuttable &= spans_of[:, 0] >= len(before)
    else:
        ids, cuttable = scope.encode_cuttable(pieces)
        cuttable |= whole
    keep = kept(ctx, cuttable, excess, truncation, field, room)
    return Encoded(ids[keep], cut_ids + excess, None if spans is None else spans[keep])


def is_messages(prompt: Any, field: str) -> bool:
    """Return whether this is a list of messages; refuses a value that is neither messages nor a sequence of ids."""
    if isinstance(prompt, np.ndarray) or (type(prompt) is list and prompt and type(prompt[0]) is int):
        return False
    if isinstance(prompt, Mapping):
        raise InvalidRequest("one message alone is not a prompt; give a list of messages", field=field)
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
        raise validation.wrong_type(prompt, field, "text, token ids or a list of messages")
    if len(prompt) > 0 and isinstance(prompt[0], str):
        raise InvalidRequest(
            f"a list of {len(prompt)} strings is not one prompt; give one string, or run_many() a list of tasks, one "
            "for each string",
            field=field,
        )
    return len(prompt) > 0 and isinstance(prompt[0], Mapping)


def require_messages(prompt: Any, reader: str) -> None:
    """``InvalidRequest`` unless ``prompt`` is a list of messages, which ``reader`` needs."""
    if isinstance(prompt, str) or not is_messages(prompt, "prompt"):
        raise InvalidRequest(f"{reader} reads a conversation; give a list of messages", field="prompt")


def prompt_before(ctx: AdmissionContext, task: Embed | Classify | Rerank, *, text: bool = True) -> str:
    """The text that is put before the caller's: ``instruction``, the model's own prompt that ``prompt_name`` names,
    or its default one; "" for none. ``text``: whether the caller gave text, which alone can have a prompt."""
    settings, name, given = ctx.embedding, task.prompt_name, task.instruction
    prompts = {**OF_VECTORS, **settings.prompts} if isinstance(task, Embed) else settings.prompts
    if name is not None and given is not None:
        raise InvalidRequest("the prompt and an instruction have one place; give one", field="prompt_name")
    if given is not None:
        before = validation.text(given, "instruction", ctx.max_chars)
    elif name is None:
        default = settings.default_prompt_name
        return prompts.get(default, "") if default is not None and text else ""
    elif not isinstance(name, str) or (name and name not in prompts):
        known = ", ".join(map(repr, list(prompts)[:16])) or "none"
        raise InvalidRequest(f"{shown(name)} is not a prompt of this model; it has {known}", field="prompt_name")
    else:
        before = prompts.get(name, "")
    if (name or given) and not text:
        field, what = ("prompt_name", "a named prompt") if name else ("instruction", "an instruction")
        raise InvalidRequest(f"{what} is put before text, not before ids or messages", field=field)
    return before


def beginning(ctx: AdmissionContext, field: str, *, eos: bool) -> I32:
    """Return the ids of an empty prompt: BOS, or the smallest EOS if ``eos`` allows it."""
    start = ctx.bos_id
    if start is None and eos and ctx.eos_ids:
        start = min(ctx.eos_ids)
    if start is None:
        raise InvalidRequest(
            "the prompt is empty and this model has no beginning-of-sequence token to start from; give at least "
            "one token",
            field=field,
        )
    return np.array([start], dtype=np.int32)


def render(ctx: AdmissionContext, messages: Sequence[Any], field: str, generation_prompt: bool) -> list[Piece]:
    """Return the chat template's segments."""
    check_messages(ctx, messages, field)
    if ctx.chat is None:
        raise TemplateError("the model directory has no chat template; give text or token ids", field=field)
    try:
        segments = ctx.chat(messages, generation_prompt)
    except (ValueError, TypeError) as error:
        raise TemplateError(f"the chat template refuses these messages: {shown(str(error))}", field=field) from error
    if sum(len(text) for text, trusted in segments if not trusted) > ctx.max_chars:
        raise too_many_characters(ctx, field)
    return [(text, trusted) for text, trusted in segments]


# ------------------------------------------------------------------ truncation


def shorten(value: Any, most: int, truncation: str) -> tuple[Any, int, int]:
    """A text of more than ``most`` characters, or so many ids, cut to ``most`` before any other use of it: (the rest,
    where the cut part was, its length). Others stay, and with ``truncation="error"`` all do."""
    sized = isinstance(value, str | list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    if truncation == "error" or not sized or len(value) <= most or isinstance(value[0], Mapping):
        return value, 0, 0
    dropped = len(value) - most
    seam = {"head": 0, "tail": most, "middle": (most + 1) // 2}[truncation]
    before, after = value[:seam], value[seam + dropped :]
    return (np.concatenate([before, after]) if isinstance(value, np.ndarray) else before + after), seam, dropped


def kept(ctx: AdmissionContext, cuttable: Mask, excess: int, truncation: str, field: str, room: int) -> Mask:
    """Which tokens stay after ``excess`` of the ``cuttable`` ones are dropped. At least one of them stays."""
    check_room(ctx, cuttable, excess, truncation, field, room)
    keep = np.ones(len(cuttable), dtype=np.bool_)
    drop(keep, cuttable, excess, truncation)
    return keep


def check_room(ctx: AdmissionContext, cuttable: Mask, excess: int, truncation: str, field: str, room: int) -> None:
    """Raise ``PromptTooLong`` unless ``excess`` of the ``cuttable`` tokens may be cut, and one of them is left."""
    n, free = len(cuttable), int(np.count_nonzero(cuttable))
    if truncation == "error":
        raise too_long(ctx, n, room, field)
    if free <= excess:
        raise PromptTooLong(
            f"{n - free} tokens belong to the template or may not be cut, which leaves no room for the text: the "
            f"limit is {room}; shorten the fixed part",
            tokens=n,
            limit=room,
            field=field,
        )


def drop(keep: Mask, cuttable: Mask, excess: int, truncation: str) -> None:
    """Leave out ``excess`` of the ``cuttable`` tokens at the side that ``truncation`` names."""
    where = np.flatnonzero(cuttable)
    rest = len(where) - excess
    first = {"head": 0, "tail": rest, "middle": (rest + 1) // 2}[truncation]
    keep[where[first : first + excess]] = False


def too_long(ctx: AdmissionContext, tokens: int, room: int, field: str) -> PromptTooLong:
    return PromptTooLong(
        f"{tokens} tokens; the limit here is {room} (max_length {ctx.max_length}); shorten it or set "
        'truncation="head", "tail" or "middle"',
        tokens=tokens,
        limit=room,
        field=field,
    )


def keep_specials(cuttable: Mask, ids: I32, scope: TokenizationScope, *, suffix: bool) -> None:
    """Mark tokens that the post-processor put around the text as not to be cut: they are not the user's."""
    before, after = scope.encoder.prefix, scope.encoder.suffix
    if np.array_equal(ids[: len(before)], before):
        cuttable[: len(before)] = False
    if suffix and np.array_equal(ids[len(ids) - len(after) :], after):
        cuttable[len(ids) - len(after) :] = False
