"""Tokenizer files for the tests: small ones made here with HF, and the shared real ones where present.

HF ``tokenizers`` is the oracle: ``pair_of(name)`` gives our tokenizer and HF's for the same file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from prelude.tokenizer import Encoding, Tokenizer
from prelude.tokenizer.backends.reference import ReferenceCore
from prelude.tokenizer.config import FileConfig
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.tokenizer.shared import families, shared, tokenizer_json
from tests.tokenizer.shared import golden_lines as shared_lines

CORPUS = [
    "The quick brown fox jumps over the lazy dog.", "Hello there, how are you today? I'm fine, thank you!",
    "Straße, naïve café, Ünïcödé; 你好世界 こんにちは 안녕하세요", "def f(x):\n    return x ** 2  # squared\n",
    "1234567890 3.14159 2,718,281", "emoji 🙂👍🏽 and ﬁ ligatures, e\u0301 combining",
] * 4  # fmt: skip

TEXTS = [
    "", " ", "Hello", "Hello there, how are you?", "  two  spaces   and\ttabs\n\nlines ",
    "Ünïcödé café e\u0301 你好 🙂👍🏽", "unseen: Ω≈ç√∫ 한국어", "a<mask>b  <mask> c <special>x", "it's 12345 o'clock",
    "\u200b\x00\ufeff",
]  # fmt: skip


SHARED = shared()
REAL = families()
needs_shared = pytest.mark.skipif(SHARED is None, reason="the shared tokenizer files are not here")


def _added(tokenizer: Any) -> None:
    tokenizer.add_special_tokens(["<special>", AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("Ünïcödé", single_word=True), "<tool>", AddedToken("<r>", rstrip=True)])


def _bpe(**options: Any) -> Any:
    return tokenizers.Tokenizer(models.BPE(**options))


def byte_level(post: Any = None, trim: bool = True, prefix_space: bool = False) -> Any:
    made = _bpe()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=["<s>", "</s>", "<pad>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    _added(made)
    made.post_processor = post or processors.ByteLevel(trim_offsets=trim)
    return made


def word_piece(post: Any = None) -> Any:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    )
    _added(made)
    made.post_processor = post or processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def sentence_pieces() -> Any:
    made = _bpe(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, special_tokens=names[:3], show_progress=False)
    )
    state = json.loads(made.to_str())
    vocab = state["model"]["vocab"]
    for name in names[3:]:
        vocab[name] = len(vocab)
    made = tokenizers.Tokenizer.from_str(json.dumps(state))
    _added(made)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return made


def _sequence() -> Any:
    return processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<s> $A:3 </s>:5",
                pair="<s>:7 $B:4 </s> $A:2 <two>",
                special_tokens=[("<s>", 0), ("</s>", 1), {"id": "<two>", "ids": [0, 1], "tokens": ["<s>", "</s>"]}],
            ),
        ]
    )


MAKERS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    "byte-level, prefix space": lambda: byte_level(prefix_space=True),
    "no post-processor": lambda: _without_post(byte_level()),
    "no trimming": lambda: byte_level(trim=False),
    "roberta": lambda: byte_level(processors.RobertaProcessing(("</s>", 1), ("<s>", 0))),
    "roberta, no trimming": lambda: byte_level(
        processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=False, add_prefix_space=False)
    ),
    "bert": lambda: word_piece(processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))),
    "template": word_piece,
    "sequence": lambda: byte_level(_sequence()),
    "sentence pieces": sentence_pieces,
}


def _without_post(made: Any) -> Any:
    state = json.loads(made.to_str())
    state["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(state))


@functools.cache
def made_json(name: str) -> str:
    return MAKERS[name]().to_str()


@functools.cache
def real_json(name: str) -> str:
    return tokenizer_json(name).decode()


def file_text(name: str) -> str:
    return made_json(name) if name in MAKERS else real_json(name)


def reference(text: str) -> Tokenizer:
    """Our tokenizer on the last backend, in place of the file's own backend."""
    made = Tokenizer.__new__(Tokenizer)
    made._assemble(ReferenceCore(text.encode(), "the test"), "reference", FileConfig())
    return made


@functools.cache
def _loaded(name: str, backend: str) -> tuple[Tokenizer, Any]:
    text = file_text(name)
    ours = reference(text) if backend == "reference" else Tokenizer.from_str(text)
    return ours, tokenizers.Tokenizer.from_str(text)


@pytest.fixture(scope="session", params=REAL or [pytest.param("", marks=pytest.mark.skip("no shared files"))])
def real(request: pytest.FixtureRequest) -> tuple[str, Tokenizer, Any]:
    """Loaded once: pytest runs the tests of one file after each other."""
    text = real_json(request.param)
    assert SHARED is not None
    path = SHARED / "tokenizers" / request.param / "tokenizer.json"
    ours = Tokenizer.from_file(path) if path.exists() else Tokenizer.from_str(text)
    return str(request.param), ours, tokenizers.Tokenizer.from_str(text)


@pytest.fixture
def family(real: tuple[str, Tokenizer, Any]) -> tuple[str, Tokenizer, Any]:
    """(name, ours with the files beside it, HF's) of each real file, as they were loaded but for cuts and padding."""
    for tokenizer in real[1:]:
        tokenizer.no_truncation()
        tokenizer.no_padding()
    real[2].encode_special_tokens = False
    return real


@pytest.fixture(params=["first backend", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(MAKERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair_of(backend: str) -> Callable[[str], tuple[Tokenizer, Any]]:
    """Fresh settings over shared tables: (ours, HF's) for a file by name."""

    def give(name: str) -> tuple[Tokenizer, Any]:
        ours, theirs = _loaded(name, backend)
        theirs.no_truncation()
        theirs.no_padding()
        theirs.encode_special_tokens = False
        ours = ours.__copy__()
        ours.no_truncation()
        ours.no_padding()
        return ours, theirs

    return give


COLUMNS = (
    "ids", "tokens", "offsets", "word_ids", "type_ids", "special_tokens_mask", "attention_mask", "sequence_ids",
    "n_sequences",
)  # fmt: skip


def _assert_same(ours: Encoding, theirs: Any, where: object = "") -> None:
    for column in COLUMNS:
        assert getattr(ours, column) == getattr(theirs, column), (column, where)
    assert len(ours) == len(theirs)
    assert len(ours.overflowing) == len(theirs.overflowing), ("overflowing", where)
    for i, (mine, other) in enumerate(zip(ours.overflowing, theirs.overflowing)):
        _assert_same(mine, other, (where, "overflowing", i))


@pytest.fixture
def assert_same() -> Callable[..., None]:
    return _assert_same


@pytest.fixture
def texts() -> list[str]:
    return list(TEXTS)


@pytest.fixture(scope="session")
def json_of() -> Callable[[str], str]:
    return file_text


@pytest.fixture(scope="session")
def golden_lines(shared: Path) -> list[str]:
    return shared_lines()
