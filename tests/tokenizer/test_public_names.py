"""Each public name of HF's package is here, or stands in a list with the reason why it is not."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import pkgutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prelude.tokenizer as ours
import pytest
import tokenizers as theirs
from prelude.tokenizer import Tokenizer, TokenizerError, TokenizerFileError, TokenizersMutationError
from prelude.tokenizer._building import attribute_names

from tests.tokenizer.small_files import file

Pair = Callable[[str], tuple[Tokenizer, Any]]

TYPING = "a name of the standard library that HF imports for itself"
EXTENSION = "HF's compiled module under the Python one of the same names"
VISUALIZER = "draws an encoding: HF's own class takes a tokenizer of ours"
LEFT_OUT = {
    "tokenizers": EXTENSION, "Enum": TYPING, "List": TYPING, "Tuple": TYPING, "Union": TYPING,
    "decoders.decoders": EXTENSION, "models.models": EXTENSION, "normalizers.normalizers": EXTENSION,
    "pre_tokenizers.pre_tokenizers": EXTENSION, "processors.processors": EXTENSION, "trainers.trainers": EXTENSION,
    "tools": VISUALIZER, "implementations.base_tokenizer": "one module has all implementations",
    "implementations.bert_wordpiece": "one module has all implementations",
    "implementations.byte_level_bpe": "one module has all implementations",
    "implementations.char_level_bpe": "one module has all implementations",
    "implementations.sentencepiece_bpe": "one module has all implementations",
    "implementations.sentencepiece_unigram": "one module has all implementations",
    "normalizers.Replace.pattern": "HF's raises on every read",
    "pre_tokenizers.Split.pattern": "HF's raises on every read",
    "SentencePieceUnigramTokenizer.from_spm": "reads a SentencePiece model through protobuf",
    "implementations.SentencePieceUnigramTokenizer.from_spm": "reads a SentencePiece model through protobuf",
}  # fmt: skip


def _names(module: types.ModuleType, within: str = "") -> Iterator[tuple[str, Any]]:
    for name in sorted(n for n in dir(module) if not n.startswith("_")):
        yield f"{within}{name}", getattr(module, name)


def _public() -> dict[str, Any]:
    """All names of HF's package but its extension module's, dotted, and the attributes of its classes."""
    found = dict(_names(theirs))
    for info in pkgutil.iter_modules(theirs.__path__):
        if info.name not in ("tokenizers", "tools"):
            module = importlib.import_module(f"tokenizers.{info.name}")
            found[info.name] = module
            found.update(_names(module, f"{info.name}."))
    found["tools"] = importlib.import_module("tokenizers.tools")
    for dotted, value in list(found.items()):
        if inspect.isclass(value) and value.__module__.startswith("tokenizers"):
            for name in dir(value):
                if not name.startswith("_"):
                    found[f"{dotted}.{name}"] = getattr(value, name)
    return found


def _here(dotted: str) -> bool:
    owner: Any = ours
    *path, last = dotted.split(".")
    for name in path:
        owner = getattr(owner, name)
    if not hasattr(owner, last) and inspect.isclass(owner):
        return _of_instances(owner, last)
    return hasattr(owner, last)


def _of_instances(owner: type, name: str) -> bool:
    """Whether instances have the attribute: those of components follow the file's members."""
    if issubclass(owner, ours.implementations.BaseTokenizer):
        return hasattr(Tokenizer, name)
    if issubclass(owner, ours.models.Model):
        return name in owner._types
    if issubclass(owner, ours.components.Component):
        return name in attribute_names(owner._kind, owner.__name__)
    return False


def test_each_public_name_is_here_or_has_its_reason() -> None:
    public = _public()
    assert len(public) > 500
    absent = {
        name
        for name in public
        if not name.startswith("trainers.") or name.count(".") == 1
        if not any(name == left or name.startswith(f"{left}.") for left in LEFT_OUT)
        if not _here(name)
    }
    assert not absent
    for name in LEFT_OUT:
        assert name in public, f"{name} is no name of HF's: its reason can go"
        assert not _here(name), f"{name} is here: its reason can go"


def test_types_and_enums_are_those_of_hf() -> None:
    for name in ("Offsets", "InputSequence", "EncodeInput", "TextEncodeInput", "PreTokenizedEncodeInput"):
        mine, other = (str(getattr(m, name)) for m in (ours, theirs))
        assert _flat(mine) == _flat(other)
    for name in ("OffsetReferential", "OffsetType", "SplitDelimiterBehavior"):
        mine, other = ({m.name: m.value for m in getattr(module, name)} for module in (ours, theirs))
        assert mine == other


def _flat(text: str) -> set[str]:
    for typing, plain in (("typing.List", "list"), ("typing.Tuple", "tuple"), ("<class 'str'>", "str")):
        text = text.replace(typing, plain)
    if text.startswith("typing.Union["):
        text = text[len("typing.Union[") : -1]
    depth, parts, last = 0, [], ""
    for character in text.replace("typing.Union[list[str], tuple[str]]", "list[str] | tuple[str]"):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth == 0 and character in ",|":
            parts.append(last.strip())
            last = ""
        else:
            last += character
    return {*parts, last.strip()}


def test_modules_can_be_imported_by_name() -> None:
    for name in ("trainers", "models", "implementations", "normalizers", "pre_tokenizers", "decoders", "processors"):
        assert importlib.import_module(f"prelude.tokenizer.{name}") is getattr(ours, name)
    assert ours.NormalizedString is theirs.NormalizedString
    assert ours.PreTokenizedString is theirs.PreTokenizedString
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchName'"):
        ours.NoSuchName  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.feature("J3")
@pytest.mark.parametrize("name", ["BpeTrainer", "ParityBpeTrainer", "UnigramTrainer", "WordLevelTrainer", "Trainer"])
def test_training_is_refused(name: str) -> None:
    with pytest.raises(TokenizersMutationError, match=f"{name}: training is left out: train with `tokenizers`"):
        getattr(ours.trainers, name)(vocab_size=10)


# ---- HF's strings, and components written in Python
class Shout:
    def normalize(self, normalized: Any) -> None:
        normalized.uppercase()


class Halves:
    def pre_tokenize(self, pretok: Any) -> None:
        pretok.split(lambda _, text: [text[:3], text[3:]])


class Joined:
    def decode_chain(self, tokens: list[str]) -> list[str]:
        return ["+".join(tokens)]


def test_components_written_in_python() -> None:
    for module in (theirs, ours):
        normalizer = module.normalizers.Normalizer.custom(Shout())
        splitter = module.pre_tokenizers.PreTokenizer.custom(Halves())
        decoder = module.decoders.Decoder.custom(Joined())
        assert isinstance(normalizer, module.normalizers.Normalizer) and not hasattr(normalizer, "lowercase")
        assert isinstance(splitter, module.pre_tokenizers.PreTokenizer)
        assert normalizer.normalize_str("abc") == "ABC"
        assert splitter.pre_tokenize_str("abcdé") == [("abc", (0, 3)), ("dé", (3, 5))]
        assert decoder.decode(["a", "b"]) == "a+b"
        text, pieces = module.NormalizedString("abc"), module.PreTokenizedString("abcdé")
        normalizer.normalize(text)
        splitter.pre_tokenize(pieces)
        assert str(text) == "ABC" and [p[0] for p in pieces.get_splits()] == ["abc", "dé"]
        with pytest.raises(Exception, match=r"pickle|written in Python"):
            pickle.dumps(normalizer)
    with pytest.raises(TokenizersMutationError, match="cannot be a part"):
        ours.normalizers.Sequence([ours.normalizers.Normalizer.custom(Shout())])


def test_components_take_the_strings_of_hf(pair_of: Pair) -> None:
    tokenizer, other = pair_of("template")
    for one in (tokenizer, other):
        text, pieces = theirs.NormalizedString("Hé Llo"), theirs.PreTokenizedString("hello, there")
        one.normalizer.normalize(text)
        one.pre_tokenizer.pre_tokenize(pieces)
        assert str(text) == "he llo"
        assert [p[0] for p in pieces.get_splits()] == ["hello", ",", "there"]
    made = ours.normalizers.Prepend("_")
    for prepended in ("_", "-"):
        made.prepend = prepended
        text = theirs.NormalizedString("a")
        made.normalize(text)
        assert str(text) == f"{prepended}a"


# ---- models
PIECES = {"a": 0, "é": 1, "aé": 2, "##a": 3, "[UNK]": 4, "<unk>": 5, "b": 6}
MODELS: list[Callable[[Any], Any]] = [
    lambda m: m.BPE(), lambda m: m.BPE(PIECES, [("a", "é")]),
    lambda m: m.BPE(PIECES, [("a", "é")], unk_token="<unk>", fuse_unk=True, ignore_merges=True),
    lambda m: m.WordPiece(), lambda m: m.WordPiece(PIECES, max_input_chars_per_word=4),
    lambda m: m.WordPiece(PIECES, unk_token="<unk>", continuing_subword_prefix="##"), lambda m: m.WordLevel(),
    lambda m: m.WordLevel(PIECES, "[UNK]"), lambda m: m.Unigram(),
    lambda m: m.Unigram([("a", -1.0), ("é", -2.5), ("aé", -2), ("<unk>", -9.25)], 3, False),
    lambda m: m.BPE(dropout=0.0),
    lambda m: m.BPE(PIECES, [("a", "é")], byte_fallback=True), lambda m: m.BPE(dropout=1.0),
    lambda m: m.Unigram([("a", -1.0)], byte_fallback=True), lambda m: m.Unigram(byte_fallback=None),
]  # fmt: skip


@pytest.mark.parametrize("make", MODELS)
def test_models_made_by_themselves(make: Callable[[Any], Any], tmp_path: Path) -> None:
    mine, other = make(ours.models), make(theirs.models)
    assert (repr(mine), str(mine)) == (repr(other), str(other))
    assert not any(hasattr(model, name) for model in (mine, other) for name in ("vocab", "merges", "type"))
    assert isinstance(mine, getattr(ours.models, type(other).__name__)) and isinstance(mine, ours.models.Model)
    assert json.loads(mine.__getstate__()) == json.loads(other.__getstate__())
    again = pickle.loads(pickle.dumps(mine))
    assert type(again) is type(mine) and repr(again) == repr(mine)
    for text in ("", "aéa", "aa", "aé b", "aé?", "é" * 5, "zz"):
        assert _outcome(lambda m, text=text: [t.as_tuple() for t in m.tokenize(text)], mine, other), text
    for token in ("a", "aé", "[UNK]", "none"):
        assert mine.token_to_id(token) == other.token_to_id(token)
    for id in range(8):
        assert mine.id_to_token(id) == other.id_to_token(id)
    for prefix in (None, "p"):
        written = []
        for name, model in (("mine", mine), ("theirs", other)):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            paths = [Path(path) for path in model.save(str(folder), prefix)]
            written.append({path.name: path.read_bytes() for path in paths})
        assert written[0] == written[1]
    with pytest.raises(TokenizersMutationError, match="training is left out"):
        mine.get_trainer()


def _outcome(call: Callable[[Any], Any], mine: Any, other: Any) -> bool:
    """Whether both give the same, or both refuse."""
    results = []
    for model in (mine, other):
        try:
            results.append(call(model))
        except Exception:
            results.append("refused")
    return bool(results[0] == results[1])


def test_a_loaded_model_does_not_see_added_tokens(pair_of: Pair) -> None:
    for name in ("template", "byte-level", "sentence pieces"):
        tokenizer, other = pair_of(name)
        mine, expected = tokenizer.model, other.model
        for text in ("hello", "Hello <special> there", "<tool>", ""):
            assert _outcome(lambda m, text=text: [t.as_tuple() for t in m.tokenize(text)], mine, expected), text
        for id, token in other.get_added_tokens_decoder().items():
            assert mine.id_to_token(id) == expected.id_to_token(id)
            assert mine.token_to_id(str(token)) == expected.token_to_id(str(token))
        assert json.loads(pickle.loads(pickle.dumps(mine)).__getstate__()) == json.loads(expected.__getstate__())


def test_the_files_of_models_are_read(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(PIECES), encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("a\n b \nc\r\n\ne", encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na é\r\n#version x\nc d\n", encoding="utf-8")
    vocab, merges, words = (str(tmp_path / name) for name in ("vocab.json", "merges.txt", "vocab.txt"))
    for mine, other in zip(*((m.BPE, m.WordPiece, m.WordLevel) for m in (ours.models, theirs.models))):
        files = {"BPE": (vocab, merges), "WordPiece": (words,), "WordLevel": (vocab,)}[mine.__name__]
        assert mine.read_file(*files) == other.read_file(*files)
        with pytest.raises(FileNotFoundError):
            mine.read_file(*("/no/such" for _ in files))
    assert repr(ours.models.WordLevel.from_file(vocab)) == repr(theirs.models.WordLevel.from_file(vocab))
    (tmp_path / "merges.txt").write_text("a é\n", encoding="utf-8")
    both, asked = (ours.models, theirs.models), {"unk_token": "a"}
    made = [
        [m.WordLevel(vocab, **asked), *(make(words, **asked) for make in (m.WordPiece, m.WordPiece.from_file)),
         *(make(vocab, merges, **asked) for make in (m.BPE, m.BPE.from_file))]
        for m in both
    ]  # fmt: skip
    assert repr(made[0]) == repr(made[1])
    for spoiled in ("a  b\n", "a\n", "a b c\n", "\n"):
        (tmp_path / "merges.txt").write_text(spoiled, encoding="utf-8")
        with pytest.raises(TokenizerFileError, match="line 1"):
            ours.models.BPE.read_file(vocab, merges)
        with pytest.raises(Exception, match="invalid"):
            theirs.models.BPE.read_file(vocab, merges)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": "x", "c": true, "d": null, "e": [1]}', encoding="utf-8")
    assert ours.models.WordLevel.read_file(vocab) == theirs.models.WordLevel.read_file(vocab) == {"a": 0}
    for content in (b"\xff", b"[", b"[1]"):
        (tmp_path / "vocab.json").write_bytes(content)
        with pytest.raises(TokenizerFileError, match=r"vocab\.json"):
            ours.models.WordLevel.read_file(vocab)


def test_arguments_of_models() -> None:
    for module in (ours.models, theirs.models):
        model = module.BPE(dropout=0.5, unk_token="[UNK]")
        model.dropout, model.unk_token, model.end_of_word_suffix = None, "<unk>", "x"
        assert (model.dropout, model.unk_token, model.end_of_word_suffix) == (None, "<unk>", "x")
        model = module.Unigram(alpha=0.0)
        model.nbest_size = 64
        assert (model.alpha, model.nbest_size) == (0.0, 64)
        calls: list[tuple[Callable[[Any], Any], type[Exception]]] = [
            (lambda m: m.BPE({"a": 0}), ValueError),
            (lambda m: m.BPE({"a": 0}, ["aa"]), TypeError),
            (lambda m: m.BPE({"a": 0}, [("a", "a", "a")]), Exception),
            (lambda m: m.BPE(dropout=-0.1), Exception),
            (lambda m: m.BPE(byte_fallback=None), TypeError),
            (lambda m: m.BPE(ignore_merges=None), TypeError),
            (lambda m: m.WordPiece(max_input_chars_per_word="a"), TypeError),
            (lambda m: m.BPE(dropout=1.5), Exception),
        ]
        for call, error in calls:
            with pytest.raises(error):
                call(module)
    loaded = Tokenizer.from_str(file(model={"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": 0}))
    with pytest.raises(TokenizersMutationError, match=r"Unigram\.alpha cannot be set"):
        loaded.model.alpha = 0.1
    changed = ours.models.BPE(PIECES, [("a", "é")])
    assert [t.value for t in changed.tokenize("ab?")] == ["a", "b"]
    changed.unk_token = "<unk>"
    assert [t.value for t in changed.tokenize("ab?")] == ["a", "b", "<unk>"]
    for one in ({"alpha": 0.5}, {"nbest_size": 2}):
        with pytest.raises(TokenizersMutationError, match="sampling is left out"):
            ours.models.Unigram(**one).tokenize("a")
    with pytest.raises(TypeError, match="fuse_unk"):
        changed.fuse_unk = 1
    with pytest.raises(TypeError, match="expected int, got bool"):
        ours.models.WordPiece(max_input_chars_per_word=True)
    with pytest.raises(TokenizerError, match="the unknown token is not in the vocabulary"):
        ours.models.WordLevel({"a": 0}).tokenize("")


# ---- the ready-made tokenizers
BPE_VOCAB = {c: i for i, c in enumerate(["<unk>", *"abcdehlortw", "Ġ", "▁", "d</w>", "lo", "hé", "é"])}
BPE_MERGES = [("l", "o")]
BERT_VOCAB = {c: i for i, c in enumerate(["[UNK]", "[SEP]", "[CLS]", "[MASK]", "hello", "##s", "world", ",", "he"])}
READY: list[Callable[[Any], Any]] = [
    lambda m: m.BertWordPieceTokenizer(BERT_VOCAB),
    lambda m: m.BertWordPieceTokenizer(),
    lambda m: m.BertWordPieceTokenizer(BERT_VOCAB, lowercase=False, strip_accents=True, wordpieces_prefix="#"),
    lambda m: m.BertWordPieceTokenizer(BERT_VOCAB, mask_token=m.AddedToken("hello", lstrip=True)),
    lambda m: m.ByteLevelBPETokenizer(),
    lambda m: m.ByteLevelBPETokenizer(BPE_VOCAB, BPE_MERGES),
    lambda m: m.ByteLevelBPETokenizer(BPE_VOCAB, BPE_MERGES, True, True, None, "nfkc", trim_offsets=True),
    lambda m: m.CharBPETokenizer(BPE_VOCAB, BPE_MERGES),
    lambda m: m.CharBPETokenizer(unk_token="?"),
    lambda m: m.CharBPETokenizer(BPE_VOCAB, BPE_MERGES, lowercase=True, split_on_whitespace_only=True),
    lambda m: m.CharBPETokenizer(BPE_VOCAB, BPE_MERGES, bert_normalizer=False),
    lambda m: m.SentencePieceBPETokenizer(BPE_VOCAB, BPE_MERGES, fuse_unk=True),
    lambda m: m.SentencePieceBPETokenizer(BPE_VOCAB, BPE_MERGES, add_prefix_space=False, replacement="_"),
    lambda m: m.SentencePieceUnigramTokenizer([("▁hé", -1.0), ("▁", -2.0), ("l", -2.0), ("o", -3.0)]),
    lambda m: m.SentencePieceUnigramTokenizer(),
]


@pytest.mark.feature("J2")
@pytest.mark.parametrize("make", READY)
def test_ready_made_tokenizers(make: Callable[[Any], Any], assert_same: Any) -> None:
    mine, other = make(ours), make(theirs)
    assert json.loads(mine.to_str()) == json.loads(other.to_str())
    assert repr(mine) == repr(other)
    assert {name for name in dir(other) if name[0] != "_"} <= {*dir(mine), "from_spm"}  # which trains
    texts = ["Hello,  Wörld", "hélo worlds", "a", ""]
    for text in texts:
        results = []
        for one in (mine, other):
            try:
                results.append(one.encode(text, "hello"))
            except Exception:
                results.append(None)
        assert (results[0] is None) == (results[1] is None)
        if results[1] is not None:
            assert_same(results[0], results[1], text)
    assert mine.decode([5, 6, 1]) == other.decode([5, 6, 1])
    assert mine.decode_batch([[5], []]) == other.decode_batch([[5], []])
    assert mine.get_vocab() == other.get_vocab()
    if other.normalizer is not None:
        assert mine.normalize("HÉ") == other.normalize("HÉ")
    for call in (lambda t: t.encode(None), lambda t: t.encode_batch(None), lambda t: t.decode(None)):
        for one in (mine, other):
            with pytest.raises(ValueError, match="None"):
                call(one)


def test_ready_made_tokenizers_of_files(tmp_path: Path) -> None:
    (tmp_path / "bert.txt").write_text("".join(f"{token}\n" for token in BERT_VOCAB), encoding="utf-8")
    (tmp_path / "vocab.json").write_text(json.dumps(BPE_VOCAB), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\n", encoding="utf-8")
    bert, pair = (str(tmp_path / "bert.txt"),), (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for name, files in (
        ("BertWordPieceTokenizer", bert),
        ("ByteLevelBPETokenizer", pair),
        ("CharBPETokenizer", pair),
        ("SentencePieceBPETokenizer", pair),
    ):
        mine, other = (getattr(m, name).from_file(*files) for m in (ours, theirs))
        assert json.loads(mine.to_str()) == json.loads(other.to_str())
        again = pickle.loads(pickle.dumps(mine))
        assert again.encode("hello").ids == other.encode("hello").ids
        for one in (mine, other):
            one.enable_padding(length=8)
        assert mine.padding == other.padding and mine.encode("hello").ids == other.encode("hello").ids
        written = [one.save_model(str(tmp_path), "again") for one in (mine, other)]
        assert written[0] == written[1]
        with pytest.raises(TokenizersMutationError, match="training is left out"):
            mine.train(["a.txt"])
        with pytest.raises(TokenizersMutationError, match="cannot be set"):
            mine.normalizer = None
    with pytest.raises(TypeError, match="sep_token not found"):
        ours.BertWordPieceTokenizer({"a": 0, "[UNK]": 1})


def test_the_visualizer_of_hf_takes_ours(pair_of: Pair) -> None:
    tools = pytest.importorskip("tokenizers.tools")
    tokenizer, other = pair_of("template")
    drawn = [tools.EncodingVisualizer(t, default_to_notebook=False)("Hello there, you") for t in (tokenizer, other)]
    assert drawn[0] == drawn[1]
