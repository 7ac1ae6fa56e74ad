"""Tokenizer files whose numbers are chosen to do harm: no number of a file is an index, or a size, past its bound.

What could end the process runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from prelude.tokenizer import Tokenizer

VOCAB = {"a": 0, "b": 1, "ab": 2}


def file(**members: Any) -> str:
    """A small tokenizer.json with ``members`` in the place of its own."""
    model = {"type": "BPE", "vocab": VOCAB, "merges": ["a b"]}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **members})


def apart(code: str, *arguments: str, seconds: float = 60) -> str:
    """The output of ``code``, run in a process of its own over ``arguments`` (``sys.argv[1:]``)."""
    command = [sys.executable, "-X", "faulthandler", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def post_processors(id: int) -> list[dict[str, Any]]:
    """One of each kind that names ids, with ``id`` before the text and behind it."""
    pieces = [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {
        "type": "TemplateProcessing",
        "single": [*pieces, pieces[0]],
        "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}, pieces[0]],
        "special_tokens": {"X": {"id": "X", "ids": [id], "tokens": ["X"]}},
    }
    bert = {"type": "BertProcessing", "sep": ["X", id], "cls": ["X", id]}
    roberta = {**bert, "type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}
    return [bert, roberta, template, {"type": "Sequence", "processors": [bert]}]


@pytest.mark.fault(30)
@pytest.mark.parametrize("id", [3, 4, 257, 60_000, 1 << 20, (1 << 31) - 1])
def test_a_post_processor_may_name_ids_that_the_vocabulary_does_not_have(id: int) -> None:
    code = (
        "import json, sys\n"
        "from prelude.tokenizer import Tokenizer\n"
        "for file in json.loads(sys.argv[1]):\n"
        "    t = Tokenizer.from_str(file)\n"
        "    found = t.encode('ab')\n"
        "    assert t.encode_batch(['ab'])[0].ids == found.ids == t.encode_array('ab').tolist()\n"
        "    assert t.decode(found.ids) == 'ab' and found.tokens == ['X', 'ab', 'X']\n"
        "    t.enable_padding(pad_id=int(sys.argv[2]), length=4)\n"
        "    print(json.dumps([found.ids, t.encode('ab').ids]))\n"
    )
    files = [file(post_processor=p) for p in post_processors(id)]
    found = [json.loads(line) for line in apart(code, json.dumps(files), str(id)).splitlines()]
    assert found == [[[id, 2, id], [id, 2, id, id]]] * len(files)


@pytest.mark.fault(30)
def test_the_limit_of_ids_counts_holes_added_tokens_and_the_post_processor() -> None:
    word = {"content": "<w>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    assert Tokenizer.from_str(file()).id_limit == 3
    assert Tokenizer.from_str(file(added_tokens=[{**word, "id": 7, "special": True}])).id_limit == 4
    for processor in post_processors(60_000):
        assert Tokenizer.from_str(file(post_processor=processor)).id_limit == 60_001
    holes = {"type": "WordLevel", "vocab": {"a": 0, "b": 900}, "unk_token": "a"}
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["a", -2.0]]}
    for model, limit in ((holes, 901), (unigram, 3)):
        assert Tokenizer.from_str(file(model=model)).id_limit == limit
