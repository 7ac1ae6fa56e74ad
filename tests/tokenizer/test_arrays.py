"""The additions to HF's interface: arrays, byte offsets, text that must stay text, marked tokens."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prelude.tokenizer import Tokenizer, TokenizerConfigWarning

Pair = Callable[[str], tuple[Tokenizer, Any]]
laws = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.feature("J2")
@pytest.mark.parametrize("special", [True, False])
def test_arrays_equal_the_ids_of_encode(name: str, pair_of: Pair, texts: list[str], special: bool) -> None:
    ours, _ = pair_of(name)
    encodings = [ours.encode(t, add_special_tokens=special) for t in texts]
    for text, encoding in zip(texts, encodings):
        ids = ours.encode_array(text, special)
        assert ids.dtype == np.int32 and ids.tolist() == encoding.ids
        assert ours.encode_array(text.encode(), special).tolist() == encoding.ids
        ids, offsets = ours.encode_with_offsets(text, special)
        assert offsets.dtype == np.int32 and offsets.shape == (len(ids), 2)
        assert ids.tolist() == encoding.ids
        assert list(map(tuple, offsets.tolist())) == encoding.offsets


def test_settings_do_not_touch_arrays(pair_of: Pair) -> None:
    ours, _ = pair_of("template")
    before = ours.encode_array("Hello there you").tolist()
    ours.enable_truncation(4)
    ours.enable_padding(length=50)
    assert ours.encode_array("Hello there you").tolist() == before


@pytest.mark.parametrize("flavour", ["byte-level", "template", "sentence pieces"])
@laws
@given(text=st.text(max_size=40))
def test_byte_offsets_are_the_character_offsets_in_utf8(pair_of: Pair, flavour: str, text: str) -> None:
    core: Any = pair_of(flavour)[0]._core
    positions = np.cumsum([0, *(len(c.encode()) for c in text)])
    _, chars, _ = core.encode_full(text)
    _, in_bytes, _ = core.encode_full(text, offsets="byte")
    assert in_bytes.tolist() == positions[chars].tolist()


# ---- text that must stay text
ATTACKS = [
    "<special>", "a<mask>b <special><special> c", "<s></s><pad>", "[CLS] [SEP] [MASK] [PAD]",
    "<tool>call</tool> <r> x", "Ünïcödé", "<<special>>spe<special>cial>", "<spe\u200bcial>",
]  # fmt: skip


@pytest.mark.fault(25)
@pytest.mark.parametrize("text", ATTACKS)
def test_control_tokens_in_text_stay_text(name: str, pair_of: Pair, text: str) -> None:
    ours, theirs = pair_of(name)
    control = {i for i, t in ours.get_added_tokens_decoder().items() if t.special and t.content != "[UNK]"}
    ids = ours.encode_array(text, False, parse_special=False)
    assert not control & set(ids.tolist())
    usual = theirs.encode(text, add_special_tokens=False).ids
    if not control & set(usual):
        assert ids.tolist() == usual, "added tokens that are no control tokens are ordinary text"
    elif name == "byte-level":
        assert ours.decode(ids, skip_special_tokens=False).strip() == text
    with_offsets, offsets = ours.encode_with_offsets(text, False, parse_special=False)
    assert with_offsets.tolist() == ids.tolist() and len(offsets) == len(ids)
    added = set(ours.encode_array(text, True, parse_special=False).tolist()) & control
    assert added <= set(ours.encode_array("", True).tolist()), "the post-processor's own tokens still come"


@pytest.mark.fault(25)
def test_a_model_that_spells_a_control_token_is_caught(json_of: Any) -> None:
    """The merges of some vocabularies build "<s>" out of its characters; that must not come through."""
    state = json.loads(json_of("sentence pieces"))
    vocab = state["model"]["vocab"]
    for piece in ("<", "s", ">", "s>", "<s>"):
        vocab.setdefault(piece, max(vocab.values()) + 1)
    state["model"]["merges"] = [["s", ">"], ["<", "s>"]]
    ours = Tokenizer.from_str(json.dumps(state))
    bos = ours.token_to_id("<s>")
    assert bos in ours.encode_array("a<s>b", False).tolist()
    ids, offsets = ours.encode_with_offsets("a<s>b", False, parse_special=False)
    assert bos not in ids.tolist()
    assert ours.decode(ids) == "a<s>b"
    assert [tuple(o) for o in offsets.tolist()[-4:]] == [(1, 2), (2, 3), (3, 4), (4, 5)]


def test_ordinary_text_is_the_same_either_way(name: str, pair_of: Pair) -> None:
    ours, _ = pair_of(name)
    for text in ("Hello there, how are you?", "  two  spaces\n\n", "你好 🙂 naïve", ""):
        assert ours.encode_array(text, parse_special=False).tolist() == ours.encode_array(text).tolist()


# ---- files beside the tokenizer.json
def beside(tmp_path: Path, text: str, **config: Any) -> Path:
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path / "tokenizer.json"


@pytest.mark.feature("J2")
def test_marked_tokens_come_from_the_configuration(json_of: Any, tmp_path: Path) -> None:
    path = beside(
        tmp_path,
        json_of("template"),
        bos_token=None,
        eos_token="[SEP]",
        pad_token={"content": "[PAD]", "lstrip": False},
        chat_template="{{ messages }}",
    )
    tokenizer = Tokenizer.from_file(path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (None, 3, 0)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (None, "[SEP]", "[PAD]")
    assert tokenizer.chat_template == "{{ messages }}"
    bare = Tokenizer.from_str(json_of("template"))
    assert bare.bos_token_id is bare.eos_token_id is bare.pad_token_id is bare.chat_template is None


def test_the_template_file_counts_over_the_configuration(json_of: Any, tmp_path: Path) -> None:
    path = beside(tmp_path, json_of("template"), chat_template=[{"name": "default", "template": "named"}])
    assert Tokenizer.from_file(path).chat_template == "named"
    (tmp_path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert Tokenizer.from_file(path).chat_template == "from the file"


@pytest.mark.fault(31)
def test_contradictions_are_warned_about(json_of: Any, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "add_bos_token": False, "bos_token": "[CLS]", "add_eos_token": True, "eos_token": "<special>",
        "pad_token": "<nowhere>", "unk_token": {"content": "<no>"}, "sep_token": "[SEP]", "image_token": "<image>",
        "added_tokens_decoder": {"17": {"content": "[CLS]"}, "2": {"content": "[CLS]"}, "5": "x", "6": {}},
    }  # fmt: skip
    says = [
        "'<image>' of image_token is not in the vocabulary",
        "add_bos_token is false, but the post_processor begins a sequence with bos_token '[CLS]'",
        "add_eos_token is true, but the post_processor never ends a sequence with eos_token '<special>'",
        "pad_token '<nowhere>' is not in the vocabulary", "unk_token '<no>' is not in the vocabulary",
        "added_tokens_decoder has '[CLS]' as id 17, the vocabulary as 2",
    ]  # fmt: skip
    for more in (0, 2, 3):  # eight are named
        config["added_tokens_decoder"] |= {str(900 + i): {"content": f"<{i}>"} for i in range(more)}
        names = [f"added_tokens_decoder has '<{i}>' as id {900 + i}, the vocabulary as None" for i in range(more)]
        path = beside(tmp_path, json_of("template"), **config)
        with pytest.warns(TokenizerConfigWarning) as caught:
            Tokenizer.from_file(path)
        assert [str(one.message) for one in caught] == [
            f"{path.parent / 'tokenizer_config.json'} contradicts {path}, and tokenizer.json is followed: "
            + "; ".join([*says, *names][:8])
        ]
        assert caught[0].filename == __file__


def test_agreement_and_unreadable_configurations_are_silent(json_of: Any, tmp_path: Path) -> None:
    agreed = {"add_bos_token": True, "bos_token": "[CLS]", "add_eos_token": True, "eos_token": "[SEP]"}
    path = beside(tmp_path, json_of("template"), **agreed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tokenizer.from_file(path)
        for junk in ("", "[1]", '{"bos_token": 7, "add_bos_token": "x"}', "\ud800".encode("utf-8", "surrogatepass")):
            data = junk if isinstance(junk, bytes) else junk.encode()
            (tmp_path / "tokenizer_config.json").write_bytes(data)
            assert Tokenizer.from_file(path).bos_token_id is None
