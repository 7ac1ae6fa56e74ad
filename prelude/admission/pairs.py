"""A pair of texts as one prompt, for cross-encoders: the tokenizer's post-processor joins the two texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from prelude.admission.context import AdmissionContext
from prelude.admission.prepared import TokenTree
from prelude.admission.prompts import TRUNCATIONS, check_room, drop, shorten
from prelude.admission.tokenization import Mask, TokenizationScope
from prelude.errors import InvalidRequest
from prelude.readouts.batch import I32
from prelude.tokenizer.params import longest_first
from prelude.values import validation


def as_pair(prompt: Any) -> tuple[str, str] | None:
    """The prompt if it is a tuple of two that holds a text: ``encode_pair`` refuses another value beside it. A list
    of two is one that ``encode_prompt`` refuses."""
    if type(prompt) is tuple and len(prompt) == 2 and any(isinstance(text, str) for text in prompt):
        return prompt
    return None


def encode_pair(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    pair: tuple[str, str],
    *,
    field: str,
    fields: tuple[str, str],
    truncation: str,
    before: str = "",
) -> tuple[TokenTree, int]:
    """Return tokens, and how many were cut: of the longer text until both have one length, then of both. If the
    tokenizer gives the second text a token type of its own, it is a segment below the first: models without types see
    no difference."""
    validation.one_of(truncation, "truncation", TRUNCATIONS)
    (first, _, cut_first), (second, _, cut_second) = (shorten(text, ctx.max_chars, truncation) for text in pair)
    for name, text in zip(fields, (first, second)):
        validation.text(text, name, ctx.max_chars)
    ids, types, texts = scope.encode_pair(before + first, second)
    if len(ids) == 0:
        raise InvalidRequest("both texts are empty, and the tokenizer adds no token of its own", field=field)
    room = ctx.text_room
    excess = len(ids) - room
    if excess > 0:
        keep = _kept(ctx, texts, excess, truncation, field, room)
        ids, types = ids[keep], types[keep]
    seam = int(np.searchsorted(types, 1))
    if (types[:seam] != 0).any() or (types[seam:] != 1).any():
        raise InvalidRequest("the tokenizer gives a pair token types other than 0 and then 1", field=field)
    cut = max(excess, int(cut_first + cut_second > 0), 0)
    if seam in (0, len(ids)) or not ctx.embedding.token_types:
        return TokenTree.single(ids), cut
    return TokenTree.build([(-1, ids[:seam]), (0, ids[seam:])]), cut


def _kept(ctx: AdmissionContext, texts: I32, excess: int, truncation: str, field: str, room: int) -> Mask:
    """Which tokens of a pair stay, by ``texts``: the text that each is of."""
    check_room(ctx, texts >= 0, excess, truncation, field, room)
    keep = np.ones(len(texts), dtype=np.bool_)
    sides = [texts == 0, texts == 1]
    first, second = (int(np.count_nonzero(side)) for side in sides)
    for side, n, rest in zip(sides, (first, second), longest_first(first, second, first + second - excess)):
        drop(keep, side, n - rest, truncation)
    return keep
