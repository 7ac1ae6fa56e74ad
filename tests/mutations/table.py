"""All edits of the tables."""

from __future__ import annotations

from tests.mutations import audited, files, native, requests, rows, scheduling, surface, surroundings, tokenizer
from tests.mutations.edit import Edit

EDITS: tuple[Edit, ...] = (
    *audited.EDITS,
    *scheduling.EDITS,
    *requests.EDITS,
    *files.EDITS,
    *surface.EDITS,
    *rows.EDITS,
    *native.EDITS,
    *surroundings.EDITS,
    *tokenizer.EDITS,
)
