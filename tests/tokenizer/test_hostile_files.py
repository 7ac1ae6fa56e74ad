"""Tokenizer files whose numbers are chosen to do harm: no number of a file is an index, or a size, past its bound.

A test that could end the process runs in a process of its own.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from prelude.tokenizer import Tokenizer, TokenizerError, TokenizerFileError
from prelude.tokenizer.backends import bounds

from tests.patience import PATIENCE
from tests.tokenizer.small_files import VOCAB, WORD, file, left_to_reference
from tests.tokenizer.test_unigram import MAP, map_of

tokenizers = pytest.importorskip("tokenizers")


def apart(code: str, *arguments: str, seconds: float = 2 * PATIENCE) -> str:
    """The output of ``code``, run in a process of its own over ``arguments`` (``sys.argv[1:]``)."""
    command = [sys.executable, "-X", "faulthandler", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# The most that a process has had, in kB. Not ``ru_maxrss``: a child's begins with its parent's.
PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
"""


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


def template(**changes: Any) -> dict[str, Any]:
    return {**post_processors(1)[2], **changes}


@pytest.mark.fault(30)
def test_a_post_processor_may_name_ids_that_the_vocabulary_does_not_have() -> None:
    code = (
        "import json, sys\n"
        "from prelude.tokenizer import Tokenizer\n"
        "for id, file in json.loads(sys.argv[1]):\n"
        "    t = Tokenizer.from_str(file)\n"
        "    found = t.encode('ab')\n"
        "    assert t.encode_batch(['ab'])[0].ids == found.ids == t.encode_array('ab').tolist()\n"
        "    assert t.decode(found.ids) == 'ab' and found.tokens == ['X', 'ab', 'X']\n"
        "    t.enable_padding(pad_id=id, length=4)\n"
        "    print(json.dumps([found.ids, t.encode('ab').ids]))\n"
    )
    ids = (3, 4, 257, 60_000, 1 << 20, (1 << 31) - 1)
    files = [(id, file(post_processor=p)) for id in ids for p in post_processors(id)]
    found = [json.loads(line) for line in apart(code, json.dumps(files)).splitlines()]
    assert found == [[[id, 2, id], [id, 2, id, id]] for id, _ in files]


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


@pytest.mark.fault(30)
@pytest.mark.parametrize("normalized", [False, True])
def test_an_added_token_that_a_text_nearly_has_everywhere_is_looked_for_by_hf(normalized: bool) -> None:
    """A walk from each place of the text takes the length of the token each; HF's automaton reads each byte once."""
    token = {**WORD, "id": 3, "content": "a" * 20_000 + "b", "normalized": normalized}
    text = file(added_tokens=[token])
    ours, theirs = (t.from_str(text) for t in (Tokenizer, tokenizers.Tokenizer))
    assert ours.backend == "reference"
    assert ours.encode("a" * 40_000).ids == [0] * 40_000
    given = "ab" + "a" * 20_001 + "ba"
    assert ours.encode(given).ids == theirs.encode(given).ids == [2, 0, 3, 0]
    kept = file(added_tokens=[{**token, "content": "a" * 511 + "b"}])
    assert Tokenizer.from_str(kept).backend == "native"


@pytest.mark.fault(30)
@pytest.mark.parametrize("others", [[], ["aab"]], ids=["alone", "beside another"])
def test_an_added_token_that_the_normalizer_empties_is_refused(others: list[str]) -> None:
    """HF finds it everywhere: it panics inside "é", and beside another token "a" takes memory without end."""
    tokens = [
        {"id": 100 + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": True, "special": False}
        for i, content in enumerate([" ", *others])
    ]  # fmt: skip
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    with pytest.raises(TokenizerFileError, match="the normalizer leaves nothing of ' '"):
        Tokenizer.from_str(file(normalizer=strip, added_tokens=tokens))
    kept = [{**token, "normalized": False} for token in tokens]
    ours, theirs = (t.from_str(file(normalizer=strip, added_tokens=kept)) for t in (Tokenizer, tokenizers.Tokenizer))
    for text in ("a", "é", "a b "):
        assert ours.encode(text).ids == theirs.encode(text).ids


def python_calls(run: Callable[[], object]) -> int:
    """How many Python functions ``run`` calls."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        run()
    finally:
        sys.setprofile(None)
    return events.count("call")


@pytest.mark.fault(30)
def test_overflowing_parts_that_a_template_multiplies_are_bounded() -> None:
    """Each part is combined with each of the others: a template that names a text four times makes n ** 4 of n."""
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    whole = template(single=[piece] * 4)
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    ours, theirs = (t.from_str(file(post_processor=whole, truncation=cut)) for t in (Tokenizer, tokenizers.Tokenizer))
    found, wanted = ours.encode("a" * 12), theirs.encode("a" * 12)
    assert [e.ids for e in found.overflowing] == [e.ids for e in wanted.overflowing]

    def refused() -> None:
        with pytest.raises(TokenizerError, match="combines each overflowing part with each of the others"):
            ours.encode("a" * 100)

    def cut_to_4(behind: int) -> Tokenizer:
        special = {"SpecialToken": {"id": "X", "type_id": 0}}
        made = Tokenizer.from_str(file(post_processor=template(single=[piece, piece, *[special] * behind])))
        made.enable_truncation(4 + behind)
        return made

    assert python_calls(refused) < 10_000  # before any part is combined
    assert python_calls(lambda: Tokenizer.from_str(file(post_processor=template(single=[piece] * 6)))) < 10_000
    few, many = (python_calls(lambda made=made: made.encode("a" * 100)) for made in (cut_to_4(1), cut_to_4(60)))
    assert many < 1.5 * few  # all tokens behind the parts are put there in one step
    ours.enable_truncation(1)
    with pytest.raises(TokenizerError, match="a smaller stride makes fewer"):
        ours.encode("a" * 2_000_000, add_special_tokens=False)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("processor", "says"),
    [
        (template(single=[{"Sequence": {"id": "A", "type_id": 0}}] * 100_000), "100000 parts"),
        (template(pair=[{"Sequence": {"id": "B", "type_id": 0}}] * 65), "65 parts"),
        (
            template(
                single=[{"SpecialToken": {"id": "X", "type_id": 0}}] * 60,
                special_tokens={"X": {"id": "X", "ids": [1] * 2000, "tokens": ["x"] * 2000}},
            ),
            "more than 1024 ids or tokens",
        ),
        ({"type": "Sequence", "processors": [post_processors(1)[0]] * 65}, "65 parts"),
        (template(special_tokens={"X": {"id": "X", "ids": [1], "tokens": [1]}}), r"tokens\[0\]: 1 is not a string"),
        (template(special_tokens={"X": {"id": "X", "ids": [-1], "tokens": ["X"]}}), r"ids\[0\]: -1 is not an id"),
        (template(special_tokens=[]), "no object"),
        ({"type": "Nonsense"}, "'Nonsense' is not one of"),
        (template(single=[{"SpecialToken": {"id": 1, "type_id": 0}}]), "no string"),
        (template(single=[{"Sequence": {"id": "C", "type_id": 0}}]), "'C' is neither 'A' nor 'B'"),
    ],
)
def test_the_pieces_of_a_post_processor_are_bounded(processor: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerFileError, match=says):
        Tokenizer.from_str(file(post_processor=processor))


@pytest.fixture(scope="module")
def deep_tokens() -> list[str]:
    """Tokens that share no beginning of more than a few bytes: 8.7 million nodes of a trie."""
    rng = random.Random(7)
    return [f"{rng.getrandbits(2040):0512x}" for _ in range(17_000)]


@pytest.mark.fault(30)
@pytest.mark.parametrize("more", [{}, {"alpha": 0.1}], ids=["native", "reference"])
def test_the_nodes_of_a_unigrams_trie_are_bounded(deep_tokens: list[str], more: dict[str, float]) -> None:
    vocab = [["<unk>", 0.0], *([token, -1.0] for token in deep_tokens)]
    with pytest.raises(TokenizerFileError, match="more than 8388608 nodes"):
        Tokenizer.from_str(file(model={"type": "Unigram", "unk_id": 0, "vocab": vocab, **more}))


@pytest.mark.fault(30)
def test_a_word_piece_of_too_many_nodes_is_the_references(deep_tokens: list[str]) -> None:
    """HF makes no trie of these."""
    vocab = {"?": 0} | {token: i + 1 for i, token in enumerate(deep_tokens)}
    model = {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##", "vocab": vocab}
    ours = Tokenizer.from_str(file(model={**model, "max_input_chars_per_word": 600}))
    assert ours.backend == "reference"
    assert ours.encode(deep_tokens[5]).ids == [6]


def test_the_nodes_of_a_trie_are_counted_where_tokens_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[t, 0.0] for t in ("<unk>", "abcd", "abce", "ab", "abcd")]}
    monkeypatch.setattr(bounds, "MOST_NODES", 10)  # 5 of <unk>, 5 of abcd and abce; 19 bytes
    bounds.checked(file(model=model).encode())
    monkeypatch.setattr(bounds, "MOST_NODES", 9)
    with pytest.raises(TokenizerFileError, match="more than 9 nodes"):
        bounds.checked(file(model=model).encode())


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "vocab", [{"a": 0, "b": 1, "ab": 1}, {"a": 0, "b": 0}, {"a": 0, "b": 1, "ab": 1_000_000}, {"a": 7, "b": 60_000}]
)
def test_ids_that_the_core_does_not_take_are_the_references(vocab: dict[str, int]) -> None:
    model = {"type": "BPE", "vocab": vocab, "merges": ["a b"] if "ab" in vocab else []}
    ours, theirs = Tokenizer.from_str(file(model=model)), tokenizers.Tokenizer.from_str(file(model=model))
    assert ours.backend == "reference"
    for text in ("ab", "bba", ""):
        assert ours.encode(text).ids == theirs.encode(text).ids


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "special",
    [
        {"id": "X", "ids": [1, 2], "tokens": ["X"]},
        {"id": "X", "ids": [1], "tokens": ["X", "Y"]},
        {"id": "X", "ids": [], "tokens": []},
        {"id": "Z", "ids": [1], "tokens": ["X"]},
    ],
)
def test_a_template_whose_ids_and_tokens_are_unequal_is_as_in_hf(special: dict[str, Any]) -> None:
    text = file(post_processor=template(special_tokens={"X": special}))
    ours, theirs = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    for pair in (None, "ba"):
        for special_too in (True, False):
            mine, other = (t.encode("ab", pair, add_special_tokens=special_too) for t in (ours, theirs))
            for column in ("ids", "type_ids", "tokens", "offsets", "attention_mask", "special_tokens_mask"):
                assert getattr(mine, column) == getattr(other, column)


@pytest.mark.fault(30)
def test_a_template_that_names_an_undeclared_token_loads_and_is_refused_where_it_is_used() -> None:
    text = file(post_processor=template(special_tokens={}))
    ours, theirs = Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text)
    assert ours.encode("ab", add_special_tokens=False).ids == theirs.encode("ab", add_special_tokens=False).ids == [2]
    assert ours.num_special_tokens_to_add(False) == theirs.num_special_tokens_to_add(False) == 0
    with pytest.raises(TokenizerError, match="'X', which its special_tokens do not have"):
        ours.encode("ab")


# ---- files that would end the process in the reference backend
def charsmap(size: int, rest: bytes) -> str:
    return base64.b64encode(size.to_bytes(4, "little") + rest).decode()


BOMBS = {
    "id": file(model={"type": "WordLevel", "vocab": {"a": 0, "b": (1 << 31) - 1}, "unk_token": "a"}),
    "id of a file for the reference": file(
        model={"type": "WordLevel", "vocab": {"a": 0, "c": 0, "b": 1 << 27}, "unk_token": "a"}  # two have one id
    ),
    "id of 2^40": file(model={"type": "BPE", "vocab": {"a": 0, "b": 1 << 40}, "merges": []}),
    "charsmap": left_to_reference(
        normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap((1 << 32) - 4, b"")}
    ),
    "growth": left_to_reference(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 60,
        }
    ),
    "added": left_to_reference(added_tokens=[{**WORD, "id": 3, "normalized": False, "content": "a" * 5_000_000}]),
    "padding": file(
        padding={
            "strategy": {"Fixed": 1 << 40},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        }
    ),
}


@pytest.mark.fault(30)
def test_a_tiny_file_cannot_ask_for_all_memory(tmp_path: Path) -> None:
    for kind, text in BOMBS.items():
        (tmp_path / kind).write_text(text, encoding="utf-8")
    code = (
        f"{PEAK}"
        "import sys, time\n"
        "from prelude.errors import PreludeError\n"
        "from prelude.tokenizer import Tokenizer\n"
        "import tokenizers\n"
        "before = peak()\n"
        "for path in sys.argv[1:]:\n"
        "    try: Tokenizer.from_file(path, cache=False).encode('aab')\n"
        "    except PreludeError: print(peak() - before)\n"
    )
    peaks = [int(line) for line in apart(code, *(str(tmp_path / kind) for kind in BOMBS)).splitlines()]
    assert len(peaks) == len(BOMBS) and max(peaks) < 100_000  # kB


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "rest", [charsmap(4, b"\xff\xff\xff\xff" + b"abc\0"), charsmap(0, b""), charsmap(8, b"\x01\x04\0\x40" * 4)]
)
def test_a_map_of_characters_that_ends_in_a_panic_of_hf_is_refused_at_load(rest: str) -> None:
    text = left_to_reference(normalizer={"type": "Precompiled", "precompiled_charsmap": rest})
    with pytest.raises(BaseException, match=r"out of range|out of bounds"):
        tokenizers.Tokenizer.from_str(text).encode("é\u0301 b")
    with pytest.raises(TokenizerFileError, match=r"^normalizer\.precompiled_charsmap: a broken map of characters"):
        Tokenizer.from_str(text)


@pytest.mark.fault(30)
@pytest.mark.parametrize("make", [file, left_to_reference])
def test_no_call_fails_by_a_map_of_characters_that_was_loaded(make: Any) -> None:
    raw, rng, loaded = base64.b64decode(map_of(MAP)), random.Random(13), 0
    size = int.from_bytes(raw[:4], "little")
    used = [at for at in range(4, 4 + size, 4) if raw[at : at + 4] != bytes(4)]
    for _ in range(120):
        changed = bytearray(raw)
        for at in rng.sample(used, rng.randint(1, 3)):
            changed[at : at + 4] = rng.choice([rng.randbytes(4), b"\xff" * 4, bytes(4)])
        member = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(changed).decode()}
        try:
            ours = Tokenizer.from_str(make(normalizer=member))
        except TokenizerFileError:
            continue
        loaded += 1
        theirs = tokenizers.Tokenizer.from_str(make(normalizer=member)).normalizer
        for _ in range(20):
            text = "".join(rng.choices([*MAP, "a", "b", "\u0301", "你", "🙂"], k=rng.randint(1, 8)))
            ours.encode(text)
            assert ours.normalizer.normalize_str(text) == theirs.normalize_str(text)
    assert 10 < loaded < 110


PREFIX = '"continuing_subword_prefix":'


@pytest.mark.fault(30)
def test_a_prefix_that_ends_inside_a_character_is_no_end_of_the_process() -> None:
    """HF puts the merged token's bytes, which are not UTF-8, into its error, and that aborts the process. A name that
    stands twice is a precaution: HF reads the JSON that was checked, in which it stands once."""
    files = []
    for highest, merge in product((2, 1_000_000), (["a", "\u2581"], "a \u2581", ["\u2581"])):
        model = {"type": "BPE", "merges": [merge], "vocab": {"a": 0, "\u2581": 1, "x": highest}, "KEY": 0}
        for prefixes in (f'{PREFIX}"##"', f'{PREFIX}"##",{PREFIX}null'):
            files.append(file(model=model).replace('"KEY": 0', prefixes))
    code = (
        "import sys\n"
        "from prelude.tokenizer import Tokenizer, TokenizerFileError\n"
        "for file in sys.argv[1:]:\n"
        "    try: print(Tokenizer.from_str(file).encode('a').ids)\n"
        "    except TokenizerFileError as error: print(error)\n"
    )
    found = apart(code, *files).splitlines()
    assert len(found) == len(files)
    assert all(line.startswith(("model.merges[0]: ", "the file: ")) for line in found)


@pytest.mark.long
def test_many_overflowing_parts_are_as_in_hf(json_of: Any) -> None:
    """What one call may take is bounded in bytes, not in parts."""
    ours, theirs = (t.from_str(json_of("template")) for t in (Tokenizer, tokenizers.Tokenizer))
    for given, most in ((("the fox " * 40, "a dog " * 40), 5), (("the fox " * 7_000, None), 4)):
        for one in (ours, theirs):
            one.enable_truncation(most)
        found, wanted = ours.encode(*given), theirs.encode(*given)
        assert len(found.overflowing) == len(wanted.overflowing) > 6_000
        assert [e.ids for e in found.overflowing] == [e.ids for e in wanted.overflowing]


@pytest.mark.fault(30)
def test_the_int_objects_of_ids_are_as_many_as_there_are_tokens() -> None:
    """One id of a million cost an int object for each id below it, kept until the process ends."""
    code = (
        f"{PEAK}"
        "import sys\n"
        "from prelude.tokenizer import Tokenizer\n"
        "import tokenizers\n"
        "before = peak()\n"
        "t = Tokenizer.from_str(sys.argv[1], cache=False)\n"
        "assert t.encode('ab').ids == [1_000_000]\n"
        "print(peak() - before)\n"
    )
    text = file(model={"type": "BPE", "vocab": {**VOCAB, "ab": 1_000_000}, "merges": ["a b"]})
    assert int(apart(code, text)) < 20_000  # kB


# ---- kept tables
@pytest.mark.fault(30)
def test_kept_tables_hold_nothing_but_the_file() -> None:
    """Cores of one file make the same tables, with any earlier content of the heap. All are of one process, since the
    hash of tokens has a secret of the process, which the tables hold."""
    from prelude.tokenizer._core import CoreTokenizer

    wordpiece = {
        "type": "WordPiece", "unk_token": "missing", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {"a": 0, "##b": 1},
    }  # fmt: skip
    code = (
        "import hashlib, sys\n"
        "from prelude.tokenizer._core import CoreTokenizer\n"
        "for byte in (0, 0x5A, 0xFF):\n"
        "    held = [bytes([byte]) * n for n in range(16, 4000, 8) for _ in range(4)]\n"
        "    del held\n"
        "    core = CoreTokenizer.from_json(sys.argv[1].encode())\n"
        "    print(hashlib.sha256(core.tables(b'k' * 64, b's' * 16)).hexdigest())\n"
    )
    for text in (file(model=wordpiece), file()):
        digests = apart(code, text).split()
        assert len(digests) == 3 and len(set(digests)) == 1
        assert CoreTokenizer.from_json(text.encode()).tables(b"k" * 64, b"s" * 16)


def test_words_that_share_a_hash_are_refused() -> None:
    """Each line of the table of words, however large, would have to hold nine of them."""
    words = "zdrp65xgt|bViHn aaaaaaaabbbbbbb f6m78tho_GjE69R mnlkwaaqa-;jPz. lx5na24zs\x7f/'^nZ d7qgsqg5vc}4X@&"
    words += " rmrmalg8k?3$E=H 87v07z1i5+q&aMa igo1gq1hETTEJ3>"
    for count, said in ((8, None), (9, "words of its tokens share a hash")):
        vocab = {"[UNK]": 0, **{word: at for at, word in enumerate(words.split(" ")[:count], 1)}}
        model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
        file = json.dumps({"version": "1.0", "model": {**model, "max_input_chars_per_word": 100}})
        if said is None:
            assert Tokenizer.from_str(file).encode(words.split(" ")[3]).ids == [4]
        else:
            with pytest.raises(TokenizerFileError, match=said):
                Tokenizer.from_str(file)
