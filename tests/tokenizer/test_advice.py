"""Errors of a tokenizer file name a place in it, the whole file among them."""

from __future__ import annotations

import pytest
from prelude.tokenizer import Tokenizer, TokenizerFileError


@pytest.mark.parametrize("content", ["{}", "[]", '{"model": {}}', '{"model": null}', '{"version": "1.0"}', "3"])
def test_an_error_of_the_whole_file_says_so(content: str) -> None:
    with pytest.raises(TokenizerFileError) as raised:
        Tokenizer.from_str(content)
    place, _, message = str(raised.value).partition(": ")
    assert place.strip() and message.strip()
