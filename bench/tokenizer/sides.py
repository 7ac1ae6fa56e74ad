"""fasttoken and its peers as statements: the code of a user for a result, which is compared and then timed.

Over ``s`` (a text), ``ids`` and ``texts``; ``t`` is the side's tokenizer. Results of one kind are equal where
the tokenizers are: lists or arrays of ids, lists of them, text, (ids, offsets).

A peer that is not installed, or refuses a file, is left out. HF's next release lies in a folder of its own, which
``HF1_PATH`` names (``pip install --no-deps --target DIR tokenizers==1.0.0rc3``).
"""

from __future__ import annotations

import codecs
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from prelude.tokenizer import DecodeStream, Tokenizer
from prelude.tokenizer.backends.reference import BYTE_CHARS

from bench.blocks import Run, statement

OURS, HF = "prelude", "HF"
FAST, SEGMENTS = "HF, fast", "fastokens, segments"
FASTOKENS_ORDINARY, TIKTOKEN_ORDINARY = "fastokens, ordinary", "tiktoken, ordinary"
# A peer's other ways: the fastest on an input is the peer's figure.
VARIANTS = {SEGMENTS: "fastokens", FASTOKENS_ORDINARY: "fastokens", TIKTOKEN_ORDINARY: "tiktoken"}
KINDS = ("list", "list with special tokens", "array", "batch", "offsets", "offsets array", "decode", "stream")


@dataclass(frozen=True, slots=True)
class Side:
    """A tokenizer that is loaded, and its abilities."""

    name: str
    tokenizer: Any
    statements: dict[str, str]
    names: dict[str, Any] = field(default_factory=dict)

    def run(self, kind: str, **inputs: Any) -> Run:
        return statement(self.statements[kind], self.names | {"t": self.tokenizer} | inputs)

    def result(self, kind: str, **inputs: Any) -> Any:
        return plain(eval(self.statements[kind], self.names | {"t": self.tokenizer} | inputs))

    def encoder(self) -> Callable[[str], list[int]]:
        """From a text to a list, as a function."""
        encode: Callable[[str], list[int]] = eval(
            f"lambda s: {self.statements['list']}", self.names | {"t": self.tokenizer}
        )
        return encode

    def broken(self, kind: str) -> Side:
        """The same with a fault: the last of each result of a kind is missing."""
        changed = {kind: f"({self.statements[kind]})[:-1]"}
        return Side(self.name, self.tokenizer, self.statements | changed, self.names)


def plain(result: Any) -> Any:
    """Arrays as lists, so that results can be compared."""
    if isinstance(result, (list, tuple)) and result and not isinstance(result[0], (int, str, tuple, type(None))):
        return [plain(one) for one in result]
    if isinstance(result, (str, list)):
        return result
    return np.asarray(result).tolist()


# ---- the sides


def ours(path: Path) -> Side:
    t = Tokenizer.from_file(path)
    t.no_truncation()
    t.no_padding()
    return Side(
        OURS,
        t,
        {
            "list": "t.encode(s, add_special_tokens=False).ids",
            "list with special tokens": "t.encode(s).ids",
            "array": "t.encode_array(s, False)",
            "batch": "[e.ids for e in t.encode_batch(texts, add_special_tokens=False)]",
            "offsets": "t.encode(s, add_special_tokens=False).offsets",
            "offsets array": "t.encode_with_offsets(s, False)",
            "decode": "t.decode(ids, skip_special_tokens=False)",
            "stream": "stream(t, ids)",
        },
        {"stream": stream_of_ours},
    )


def stream_of_ours(t: Tokenizer, ids: Sequence[int]) -> list[str | None]:
    step = DecodeStream(skip_special_tokens=False).step
    return [step(t, i) for i in ids]


def hf(path: Path) -> Side:
    t = tokenizers.Tokenizer.from_file(str(path))
    t.no_truncation()
    t.no_padding()
    return Side(
        HF,
        t,
        {
            "list": "t.encode(s, add_special_tokens=False).ids",
            "list with special tokens": "t.encode(s).ids",
            "batch": "[e.ids for e in t.encode_batch(texts, add_special_tokens=False)]",
            "offsets": "t.encode(s, add_special_tokens=False).offsets",
            "offsets array": "ids_and_offsets(t.encode(s, add_special_tokens=False))",
            "decode": "t.decode(ids, skip_special_tokens=False)",
            "stream": "stream(t, ids)",
        },
        {"stream": stream_of_hf, "ids_and_offsets": lambda e: [e.ids, [list(pair) for pair in e.offsets]]},
    )


def hf_fast(path: Path) -> Side:
    """HF without offsets: only its batches have that form."""
    side = hf(path)
    batch = "[e.ids for e in t.encode_batch_fast({}, add_special_tokens=False)]"
    return Side(FAST, side.tokenizer, {"list": batch.format("[s]") + "[0]", "batch": batch.format("texts")})


def stream_of_hf(t: Any, ids: Sequence[int]) -> list[str | None]:
    step = tokenizers.decoders.DecodeStream(skip_special_tokens=False).step
    return [step(t, i) for i in ids]


@cache
def _next_hf() -> Any:
    """HF 1.0: another module of the same name, so it is imported from its folder and then put aside."""
    folder = os.environ["HF1_PATH"]
    kept = {k: sys.modules.pop(k) for k in list(sys.modules) if k.split(".")[0] == "tokenizers"}
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("tokenizers")
    finally:
        sys.path.remove(folder)
        for name in [k for k in sys.modules if k.split(".")[0] == "tokenizers"]:
            del sys.modules[name]
        sys.modules.update(kept)


def hf_next(path: Path) -> Side:
    return Side(
        "HF 1.0",
        _next_hf().Tokenizer.from_file(str(path)),
        {
            "list": "t.encode(s, add_special_tokens=False).ids",
            "array": "t.encode(s, add_special_tokens=False).ids_array",
            "batch": "[e.ids for e in t.encode_batch(texts, add_special_tokens=False)]",
            "decode": "t.decode(ids, skip_special_tokens=False)",
        },
    )


def fastokens(path: Path) -> Side:
    native = importlib.import_module("fastokens._native").Tokenizer
    return Side(
        "fastokens",
        native.from_file(str(path)),
        {
            "list": "t.encode(s).ids",
            "array": "np.frombuffer(t.encode_batch_flat([s])[0], np.uint32)",
            "batch": "[e.ids for e in t.encode_batch(texts)]",
            "decode": "t.decode(ids)",
        },
        {"np": np},
    )


def fastokens_segments(path: Path) -> Side:
    """With its cache of text between control tokens, which is off by default."""
    side = fastokens(path)
    side.tokenizer.enable_segment_cache(64 << 20)
    return Side(SEGMENTS, side.tokenizer, {"list": side.statements["list"]})


def fastokens_ordinary(path: Path) -> Side:
    """Without looking for added tokens: exact on a text that has none. A list is its faster array of a short text."""
    statements = {"list": "t.encode_ordinary(s).ids", "array": "np.array(t.encode_ordinary(s).ids, np.uint32)"}
    return Side(FASTOKENS_ORDINARY, fastokens(path).tokenizer, statements, {"np": np})


def gigatoken(path: Path) -> Side:
    t = importlib.import_module("gigatoken").Tokenizer(str(path))
    return Side(
        "gigatoken",
        t,
        {
            "list": "b.encode(s).tolist()",
            "array": "b.encode(s)",
            "batch": "t.encode_batch_list(texts)",
            "decode": "b.decode(ids).decode('utf-8', 'replace')",
        },
        {"b": t.backend},
    )


def iree(path: Path) -> Side:
    return Side(
        "iree",
        importlib.import_module("iree.tokenizer").Tokenizer.from_file(str(path)),
        {
            "list": "t.encode(s)",
            "array": "t.encode_to_array(s)",
            "batch": "t.encode_batch(texts)",
            "decode": "t.decode(ids)",
            "stream": "stream(t, ids)",
        },
        {"stream": stream_of_iree},
    )


def stream_of_iree(t: Any, ids: Sequence[int]) -> list[str | None]:
    with t.decode_stream(skip_special_tokens=False) as stream:
        return [*(stream.feed([i]) for i in ids), stream.finalize()]


def tiktoken(path: Path) -> Side:
    """An Encoding of the file's bytes, ids as ranks, where the file has one pattern and its merges are its order."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    bytes_of = {character: byte for byte, character in BYTE_CHARS.items()}
    added = {token["content"]: token["id"] for token in whole["added_tokens"]}
    vocab = {token: id for token, id in whole["model"]["vocab"].items() if token not in added}
    ranks = {bytes(bytes_of[character] for character in token): id for token, id in vocab.items()}
    pre = whole["pre_tokenizer"] or {}
    steps = pre.get("pretokenizers", [pre])
    patterns = [step["pattern"]["Regex"] for step in steps if step["type"] == "Split"]
    if len(patterns) > 1 or not any(step["type"] == "ByteLevel" for step in steps):
        raise ValueError("not one pattern over bytes")
    gpt2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    t = importlib.import_module("tiktoken").Encoding(
        "peer", pat_str=(patterns or [gpt2])[0], mergeable_ranks=ranks, special_tokens=added
    )
    return Side(
        "tiktoken",
        t,
        {
            "list": "t.encode(s, allowed_special='all')",
            "array": "t.encode_to_numpy(s, allowed_special='all')",
            "batch": "t.encode_batch(texts, allowed_special='all')",
            "decode": "t.decode(ids)",
            "stream": "stream(t, ids)",
        },
        {"stream": stream_of_tiktoken},
    )


def tiktoken_ordinary(path: Path) -> Side:
    """Without looking for special tokens: exact on a text that has none."""
    statements = {"list": "t.encode_ordinary(s)", "batch": "t.encode_ordinary_batch(texts)"}
    return Side(TIKTOKEN_ORDINARY, tiktoken(path).tokenizer, statements)


def stream_of_tiktoken(t: Any, ids: Sequence[int]) -> list[str | None]:
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    return [decode(t.decode_single_token_bytes(i)) for i in ids]


LOADERS: dict[str, Callable[[Path], Side]] = {
    HF: hf,
    OURS: ours,
    FAST: hf_fast,
    "HF 1.0": hf_next,
    "fastokens": fastokens,
    SEGMENTS: fastokens_segments,
    FASTOKENS_ORDINARY: fastokens_ordinary,
    "gigatoken": gigatoken,
    "iree": iree,
    "tiktoken": tiktoken,
    TIKTOKEN_ORDINARY: tiktoken_ordinary,
}
PACKAGES = {HF: "tokenizers", FAST: "tokenizers", "iree": "iree-tokenizer"}


def here(name: str, load: Callable[[], Any]) -> dict[str, Any]:
    """A side by its name; without it, and with a line that says so, for a peer that does not load."""
    try:
        return {name: load()}
    except BaseException as error:  # a panic of Rust is no Exception
        if name in (HF, OURS) or isinstance(error, KeyboardInterrupt):
            raise
        print(f"without {name}: {type(error).__name__} {error}"[:160], file=sys.stderr)
        return {}


class Sides:
    """The sides that are here and take a file, HF and ours first; a line for each peer that does not.

    ``fault``: (side, kind) of results that are to be corrupted, to see that they are found.
    """

    def __init__(self, path: Path, fault: tuple[str, str] | None = None) -> None:
        self.path, self.fault = path, fault
        self.loaded: dict[str, Side] = {}
        for name in LOADERS:
            self.loaded |= here(name, partial(self.new, name))

    def __getitem__(self, name: str) -> Side:
        return self.loaded[name]

    def new(self, name: str) -> Side:
        """Loaded again: with empty caches."""
        side = LOADERS[name](self.path)
        return side.broken(self.fault[1]) if self.fault and self.fault[0] == name else side

    def with_kind(self, kind: str) -> Iterator[Side]:
        return (side for side in self.loaded.values() if kind in side.statements)


def version_of(name: str) -> str:
    """Of the package that a side is from; empty where it does not say."""
    try:
        return str(_next_hf().__version__) if name == "HF 1.0" else version(PACKAGES.get(name, name))
    except (KeyError, AttributeError, PackageNotFoundError):
        return ""
