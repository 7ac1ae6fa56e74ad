"""transformers' fast tokenizers over ours: the same results, faster, and without changing a shared object.

    from prelude.tokenizer import patch_transformers, patched_transformers

    patch_transformers()                                 # for good; the returned function undoes it
    with patched_transformers():                         # or for a while
        AutoTokenizer.from_pretrained(...)("text")
    patch_transformers(tokenizer)                        # this tokenizer alone

transformers sets truncation and padding on one shared HF tokenizer at every call, so that threads disturb
each other ("Already borrowed"). Here each call of ``_encode_plus`` and ``_decode`` runs on a view of the
tokenizer with a backend of its own: our tables, shared and immutable, under settings that die with the call.

The HF tokenizer stays where it is and stays authoritative: any change of it (added tokens, a new
post-processor, a model's dropout) is noticed at the next call and loaded anew; ``_hf_changes`` says how. Where it
cannot be serialised (components written in Python), transformers goes on with it as before.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ._hf_changes import unwatch, version, watch
from .tokenizer import Tokenizer

_log = logging.getLogger("prelude.tokenizer")
_METHODS = ("_encode_plus", "_batch_encode_plus", "_decode")  # the second is transformers 4's
_OURS = frozenset(
    [
        "encode",
        "encode_batch",
        "encode_batch_fast",
        "decode",
        "decode_batch",
        "truncation",
        "enable_truncation",
        "no_truncation",
        "padding",
        "enable_padding",
        "no_padding",
    ]
)


class _Loaded(NamedTuple):
    """Ours for an HF tokenizer as it was at ``version``; None where it cannot be had."""

    theirs: Any
    version: tuple[int, int, bool]
    digest: bytes  # of its serialised form
    ours: Tokenizer | None


_lock = threading.Lock()
_loaded: WeakKeyDictionary[Any, _Loaded] = WeakKeyDictionary()
_originals: dict[str, Callable[..., Any]] = {}
_patches = 0  # in force: of the class, and of single tokenizers
_class_patches = 0


def patch_transformers(tokenizer: Any = None) -> Callable[[], None]:
    """Make transformers' fast tokenizers, or ``tokenizer`` alone, run on ours; returns the function that undoes it.

    A deep copy of a patched tokenizer is patched; one that was pickled is not.
    """
    from transformers import PreTrainedTokenizerFast as Fast

    if tokenizer is not None and not isinstance(tokenizer, Fast):
        raise TypeError(f"expected a fast tokenizer of transformers, not {type(tokenizer).__name__}")
    with _lock:
        _begin(Fast, tokenizer)
    undone = False

    def undo() -> None:
        nonlocal undone
        with _lock:
            if not undone:
                _end(Fast, tokenizer)
            undone = True

    return undo


def _begin(fast: type, tokenizer: Any) -> None:
    global _patches, _class_patches
    if _patches == 0:
        watch()
    _patches += 1
    if tokenizer is not None:
        for name in _METHODS:
            if hasattr(fast, name):
                original = getattr(type(tokenizer), name)
                vars(tokenizer)[name] = MethodType(_over_ours(original), tokenizer)
        return
    _class_patches += 1
    if _class_patches == 1:
        for name in _METHODS:
            if name in vars(fast):
                _originals[name] = vars(fast)[name]
                setattr(fast, name, _over_ours(_originals[name]))


def _end(fast: type, tokenizer: Any) -> None:
    global _patches, _class_patches
    _patches -= 1
    if tokenizer is not None:
        for name in _METHODS:
            vars(tokenizer).pop(name, None)
    else:
        _class_patches -= 1
        if _class_patches == 0:
            for name, original in _originals.items():
                setattr(fast, name, original)
            _originals.clear()
    if _patches == 0:
        unwatch()
        _loaded.clear()


@contextlib.contextmanager
def patched_transformers() -> Iterator[None]:
    """``patch_transformers`` for the length of a with-block."""
    undo = patch_transformers()
    try:
        yield
    finally:
        undo()


def _over_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        theirs = self._tokenizer
        if isinstance(theirs, _Backend):  # one of these methods called another
            return original(self, *args, **kwargs)
        ours = _ours_for(self, theirs)
        if ours is None:
            return original(self, *args, **kwargs)
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        for name in _METHODS:  # those of a tokenizer patched by itself are bound to it, not to the view
            view.__dict__.pop(name, None)
        view.__dict__["_tokenizer"] = _Backend(theirs, ours)
        return original(view, *args, **kwargs)

    return method


class _Backend:
    """The tokenizer that one call sees: ours for the work, under settings of its own; HF's for the rest."""

    __slots__ = ("_ours", "_theirs")

    def __init__(self, theirs: Any, ours: Tokenizer) -> None:
        made = ours.__copy__()
        made.no_truncation()
        made.no_padding()
        object.__setattr__(self, "_theirs", theirs)
        object.__setattr__(self, "_ours", made)

    def __getattr__(self, name: str) -> Any:
        if name == "encode_special_tokens" or (name in _OURS and name not in getattr(self._theirs, "__dict__", ())):
            return getattr(self._ours, name)
        return getattr(self._theirs, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ours if name == "encode_special_tokens" else self._theirs, name, value)


def _ours_for(owner: Any, theirs: Any) -> Tokenizer | None:
    """Our tokenizer for HF's as it is now; None when it cannot be had."""
    if isinstance(theirs, Tokenizer):  # given as ``tokenizer_object``
        return theirs
    now, found = version(theirs), _loaded.get(owner)
    if found is not None and found.theirs is theirs and found.version == now:
        return found.ours
    ours: Tokenizer | None = None
    digest = b""
    try:
        text = theirs.to_str()
        digest = hashlib.blake2b(text.encode()).digest()
        same = found is not None and found.theirs is theirs and found.digest == digest
        ours = found.ours if found is not None and same else _read_back(text, theirs)
        if ours is not None and ours.encode_special_tokens != now[2]:
            ours = ours.__copy__()
            ours.encode_special_tokens = now[2]
    except Exception as error:
        _log.info("transformers keeps its own tokenizer for %s: %s", type(owner).__name__, error)
    with _lock:
        _loaded[owner] = _Loaded(theirs, now, digest, ours)
    return ours


def _read_back(text: str, theirs: Any) -> Tokenizer:
    """``theirs`` as its serialised form has it; ValueError where that is another tokenizer than ``theirs`` is.

    Loading a file gives ids to the added tokens that the model does not have, and normalizes those that are to be
    found in normalized text. A live tokenizer did both when the tokens were added: the model or the normalizer may
    have been changed since.
    """
    ours = Tokenizer.from_str(text)
    added = theirs.get_added_tokens_decoder()
    mine = ours.get_added_tokens_decoder()
    if {i: str(t) for i, t in mine.items()} != {i: str(t) for i, t in added.items()}:
        raise ValueError("its added tokens have other ids when it is saved and loaded")
    if theirs.normalizer is not None:
        for token in (str(t) for t in added.values() if t.normalized):
            if ours.encode(token).ids != theirs.encode(token).ids:
                raise ValueError(f"its added token {token!r} is found in other text when it is saved and loaded")
        rows = [[id] for id in added]
        if ours.decode_batch(rows, False) != theirs.decode_batch(rows, False):
            raise ValueError("an added token is decoded as another text when it is saved and loaded")
    return ours
