"""transformers' fast tokenizers over ours: the same results, faster, and without changing a shared object.

    from prelude.tokenizer import patch_transformers, patched_transformers

    patch_transformers()                                 # for good; the returned function undoes it
    with patched_transformers():                         # or for a while
        AutoTokenizer.from_pretrained(...)("text")

transformers sets truncation and padding on one shared HF tokenizer at every call, so that threads disturb
each other ("Already borrowed"). Here each call of ``_encode_plus`` and ``_decode`` runs on a view of the
tokenizer with a backend of its own: our tables, shared and immutable, under settings that die with the call.

The HF tokenizer stays where it is and stays the truth: whatever changes it (added tokens, a new
post-processor) is noticed at the next call and loaded anew. Where it cannot be serialised (components
written in Python), transformers goes on with it as before.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from .tokenizer import Tokenizer

_log = logging.getLogger("prelude.tokenizer")
_METHODS = ("_encode_plus", "_batch_encode_plus", "_decode")  # the second is transformers 4's
_COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
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

_lock = threading.Lock()
_loaded: WeakKeyDictionary[Any, tuple[Any, tuple[Any, ...], Tokenizer | None]] = WeakKeyDictionary()
_originals: dict[str, Callable[..., Any]] = {}
_depth = 0


def patch_transformers() -> Callable[[], None]:
    """Make transformers' fast tokenizers run on ours; returns the function that undoes it."""
    global _depth
    from transformers import PreTrainedTokenizerFast as Fast

    with _lock:
        _depth += 1
        if _depth == 1:
            for name in _METHODS:
                if name in vars(Fast):
                    _originals[name] = vars(Fast)[name]
                    setattr(Fast, name, _over_ours(_originals[name]))
    undone = False

    def undo() -> None:
        global _depth
        nonlocal undone
        with _lock:
            if undone:
                return
            undone = True
            _depth -= 1
            if _depth == 0:
                for name, original in _originals.items():
                    setattr(Fast, name, original)
                _originals.clear()
                _loaded.clear()

    return undo


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
        view.__dict__["_tokenizer"] = _Backend(theirs, ours)
        return original(view, *args, **kwargs)

    return method


class _Backend:
    """What one call sees as its tokenizer: ours for the work, under settings of its own; HF's for the rest."""

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
    state = _state(theirs)
    found = _loaded.get(owner)
    if found is not None and found[0] is theirs and found[1] == state:
        return found[2]
    ours: Tokenizer | None = None
    try:
        ours = Tokenizer.from_str(theirs.to_str())
        ours.encode_special_tokens = theirs.encode_special_tokens
    except Exception as error:
        _log.info("transformers keeps its own tokenizer for %s: %s", type(owner).__name__, error)
    with _lock:
        _loaded[owner] = (theirs, state, ours)
    return ours


def _state(theirs: Any) -> tuple[Any, ...]:
    """What tells that an HF tokenizer was changed, without looking at the vocabulary."""
    return (
        theirs.get_vocab_size(),
        theirs.encode_special_tokens,
        *(_component_state(getattr(theirs, name)) for name in _COMPONENTS),
    )


def _component_state(component: Any) -> Any:
    if component is None:
        return None
    try:
        shown = repr(component)
        # the repr is shortened; not so the state, which for a precompiled normalizer is very long
        return shown if "Precompiled" in shown else component.__getstate__()
    except Exception:
        return "written in Python"
