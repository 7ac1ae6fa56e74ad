"""transformers' fast tokenizers over ours: the same results, faster, and without changing a shared object.

transformers sets truncation and padding on one shared HF tokenizer at every call, so that threads disturb each other
("Already borrowed"). Here the settings die with the call. Most calls are one call of our core (``hf/calls.py``);
others run transformers' method on a view of the tokenizer with a backend of its own (``hf/backend.py``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .hf import calls
from .hf.backend import Backend, Call, begin_watching, end_watching, lock, ours_of

_METHODS = ("_encode_plus", "_batch_encode_plus", "_decode")  # the second is transformers 4's
_originals: dict[str, Callable[..., Any]] = {}
_patches = 0


def fast_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer that is, and does, what ``tokenizer`` is and does, over ours; ``tokenizer`` stays as it is.

    It is of a subclass of its class, can be pickled, and follows changes of itself (added tokens, another
    post-processor). HF's object is made anew if it is asked for. Raises ``TypeError`` for any but a fast tokenizer.
    """
    from transformers import PreTrainedTokenizerFast as Fast

    if not isinstance(tokenizer, Fast):
        raise TypeError(f"expected a fast tokenizer of transformers, not {type(tokenizer).__name__}")
    theirs = tokenizer._tokenizer
    if isinstance(theirs, Backend):
        return tokenizer
    begin_watching()
    try:
        ours = ours_of(tokenizer, theirs)
    finally:
        end_watching()
    state = {k: v.copy() if type(v) in (dict, list) else v for k, v in vars(tokenizer).items()}
    state["_tokenizer"] = Backend(ours) if ours is not None else Backend(None, theirs)
    return _restored(type(tokenizer), state)


def _restored(cls: type, state: dict[str, Any]) -> Any:
    made: Any = object.__new__(_fast_class(cls))
    made.__dict__.update(state)
    return made


@functools.cache
def _fast_class(cls: Any) -> type:
    from transformers import PreTrainedTokenizerBase as Base

    methods = {name: _over_ours(getattr(cls, name)) for name in _METHODS if hasattr(cls, name)}
    if cls.pad is Base.pad and cls._pad is Base._pad:
        methods["pad"] = _short_pad(Base.pad)
    named = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls.__name__, (cls,), {**named, **methods, "__reduce__": lambda self: (_restored, (cls, vars(self)))})


def _short_pad(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def pad(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = calls.pad(self, *args, **kwargs)
        return original(self, *args, **kwargs) if made is None else made

    return pad


def patch_transformers() -> Callable[[], None]:
    """Make transformers' fast tokenizers run on ours; returns the function that undoes it."""
    global _patches
    from transformers import PreTrainedTokenizerFast as Fast

    with lock:
        begin_watching()
        _patches += 1
        for name in _METHODS if _patches == 1 else ():
            if name in vars(Fast):
                _originals[name] = vars(Fast)[name]
                setattr(Fast, name, _over_ours(_originals[name]))
    undone = False

    def undo() -> None:
        global _patches
        nonlocal undone
        with lock:
            if not undone:
                undone = True
                _patches -= 1
                while _originals and not _patches:
                    setattr(Fast, *_originals.popitem())
                end_watching()

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
    short = _short_way(original)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside = self._tokenizer
        if isinstance(inside, Call):  # one of these methods called another
            return original(self, *args, **kwargs)
        ours = ours_of(self, inside)
        if ours is None:
            return original(self, *args, **kwargs)
        if short is not None:
            made = short(self, ours, *args, **kwargs)
            if made is not None:
                return made
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view.__dict__["_tokenizer"] = Call(inside, ours)
        return original(view, *args, **kwargs)

    return method


def _short_way(original: Any) -> Callable[..., Any] | None:
    """Find the shorter call of a method of transformers 5 alone, not of one that a model's class has of its own."""
    from transformers import PreTrainedTokenizerFast as Fast

    if getattr(original, "__qualname__", "") == f"{Fast.__name__}._encode_plus" and not hasattr(
        Fast, "_batch_encode_plus"
    ):
        return calls.encode_plus
    return calls.decode if getattr(original, "__qualname__", "") == f"{Fast.__name__}._decode" else None
