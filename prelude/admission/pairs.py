"""A pair of texts as one prompt, for cross-encoders: the tokenizer's post-processor joins the two texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from prelude.admission import validation
from prelude.admission.context import AdmissionContext
from prelude.admission.prepared import TokenTree
from prelude.admission.prompts import TRUNCATIONS, kept, shorten
from prelude.admission.tokenization import TokenizationScope
from prelude.errors import InvalidRequest


def as_pair(prompt: Any) -> tuple[str, str] | None:
    """The prompt where it is a tuple of two texts. A list of two is one that ``encode_prompt`` refuses."""
    if type(prompt) is tuple and len(prompt) == 2 and all(isinstance(text, str) for text in prompt):
        return prompt
    return None


def encode_pair(
    ctx: AdmissionContext, scope: TokenizationScope, pair: tuple[str, str], *, field: str, truncation: str, room: int
) -> tuple[TokenTree, int]:
    """The tokens, and how many were cut off the second text; the first one stays whole. Where the tokenizer gives the
    second text a token type of its own, it is a segment below the first: models without types see no difference."""
    validation.one_of(truncation, "truncation", TRUNCATIONS)
    first = validation.text(pair[0], f"{field}[0]", ctx.max_chars)
    second, _, dropped = shorten(pair[1], ctx.max_chars, truncation)
    validation.text(second, f"{field}[1]", ctx.max_chars)
    ids, types, texts = scope.encode_pair(first, second)
    if len(ids) == 0:
        raise InvalidRequest("both texts are empty, and the tokenizer adds no token of its own", field=field)
    excess = len(ids) - room
    if excess > 0:
        keep = kept(ctx, texts == 1, excess, truncation, field, room)
        ids, types = ids[keep], types[keep]
    seam = int(np.searchsorted(types, 1))
    if (types[:seam] != 0).any() or (types[seam:] != 1).any():
        raise InvalidRequest("the tokenizer gives a pair token types other than 0 and then 1", field=field)
    cut = max(excess, int(dropped > 0), 0)
    if seam in (0, len(ids)):
        return TokenTree.single(ids), cut
    return TokenTree.build([(-1, ids[:seam]), (0, ids[seam:])]), cut
