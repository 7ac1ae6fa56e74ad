"""Conversations that come again with a turn more, against HF."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import Tokenizer

from tests.tokenizer.shared import families, tokenizer_json

OF = {
    "llama-3.2": ("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
    "mistral-nemo": ("[INST]{}", "[/INST]"),
    "phi-3": ("<|{}|>\n", "<|end|>\n"),
}
CHATML = ("<|im_start|>{}\n", "<|im_end|>\n")
PIECES = (
    "The answer is 42. ", "你好, 世界! ", "e\u0301 naïve  ", "def f(x):\n    return x\n", "   ", "<|im_start|", "🙂 ",
)  # fmt: skip


def conversation(family: str, seed: int) -> Iterator[str]:
    """The text of each turn after the other, some of them sent twice, some edited near their end."""
    rng = random.Random(seed)
    begin, end = OF.get(family, CHATML)
    text = begin.format("system") + "".join(rng.choices(PIECES, k=150)) + end
    for turn in range(12):
        text += (
            begin.format("user") + "".join(rng.choices(PIECES, k=rng.randrange(60))) + end + begin.format("assistant")
        )
        yield from [text] * rng.randrange(1, 4)
        cut = len(text) - rng.randrange(60)
        yield text[:cut] + rng.choice(("<|im_end|>x", "<|end|>  ", "\u0301", " ", "")) + text[cut:]
        text += "".join(rng.choices(PIECES, k=rng.randrange(40))) + end
        if turn == 6:
            text = text[: len(text) // 2]


@pytest.mark.long
@pytest.mark.parametrize("family", families())
def test_a_turn_more_equals_hf(family: str) -> None:
    raw = tokenizer_json(family)
    ours, theirs = Tokenizer.from_buffer(raw), tokenizers.Tokenizer.from_buffer(raw)
    for tokenizer in (ours, theirs):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    specials = {
        id
        for id, token in theirs.get_added_tokens_decoder().items()
        if token.special and "unk" not in token.content.lower()
    }
    for text in conversation(family, 1):
        expected: Any = theirs.encode(text)
        encoding = ours.encode(text)
        assert encoding.ids == expected.ids
        assert encoding.offsets == expected.offsets
        assert ours.encode_array(text).tolist() == expected.ids
        ids, offsets = ours.encode_with_offsets(text)
        assert ids.tolist() == expected.ids and list(map(tuple, offsets.tolist())) == expected.offsets
        assert [one.ids for one in ours.encode_batch([text, text + "x"])] == [
            expected.ids,
            theirs.encode(text + "x").ids,
        ]
        # Control tokens that are plain text are other ids.
        assert specials.isdisjoint(ours.encode_array(text, False, parse_special=False).tolist())
