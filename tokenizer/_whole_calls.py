"""The reference backend's ``encode`` and ``encode_batch``: a whole call is one call of HF, with its own
post-processor, truncation and padding.

HF keeps truncation and padding in the tokenizer, and setting them on a shared one raises "Already borrowed". So
there is an HF tokenizer for each of the settings in use, over one model, and none is changed once made.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ._post_processing import BertProcessing, Processor, Sequenced, Special, TemplateProcessing
from ._reference import ReferenceCore, asked, checked_text
from ._reference_encoding import ReferenceEncoding
from .encoding import Encoding
from .params import Padding, Truncation

Settings = tuple[Truncation | None, Padding | None, bool]  # the last: whether special tokens are found in text
Input = str | list[str] | tuple[str | list[str], str | list[str]]  # a text or words, or two of one of these

_MOST_ENGINES = 16
_MOST_OVERLAPPING = 1 << 20  # tokens of all overflowing parts of a call; past that ours are made, which has a bound


class WholeCalls:
    """``processor`` is the file's, and one that HF is trusted with: see ``served``."""

    def __init__(self, core: ReferenceCore, processor: Processor | None) -> None:
        self._core, self._processor = core, processor
        self._engines: dict[Settings, Any] = {}
        self._lock = threading.Lock()  # around the making of an engine

    @staticmethod
    def served(core: Any, processor: Processor | None) -> WholeCalls | None:
        """None where texts are encoded elsewhere, and where the processor is of a kind that HF fails on."""
        if not isinstance(core, ReferenceCore) or not _is_plain(processor):
            return None
        return WholeCalls(core, processor)

    @property
    def free_characters(self) -> int:
        return self._core.free_characters

    def for_texts(self, settings: Settings) -> Any:
        """HF's ``encode``, where any text of ``free_characters`` may be given to it under these settings; None where
        that depends."""
        rule = settings[0]
        return None if rule is not None and not self._cuts(rule, None, True) else self._engine(settings).encode

    def encode(
        self, settings: Settings, inputs: Sequence[Input], is_pretokenized: bool, add_special_tokens: bool, fast: bool
    ) -> list[Encoding] | None:
        """HF encodes them on all processors. None where HF is not asked: the caller goes the long way."""
        rule = settings[0]
        if rule is not None and not self._cuts(rule, inputs, add_special_tokens):
            return None
        for text in _texts(list(inputs)):
            if len(text) > self.free_characters:
                self._core.taken(text)
        engine = self._engine(settings)
        if len(inputs) == 1 and not fast:  # HF's call for batches wakes its threads
            both = inputs[0] if isinstance(inputs[0], tuple) else (inputs[0], None)
            found = [_checked(engine.encode, *both, is_pretokenized, add_special_tokens)]
        else:
            call = engine.encode_batch_fast if fast else engine.encode_batch
            found = _checked(call, inputs, is_pretokenized, add_special_tokens)
        return ReferenceEncoding.over(found)

    def _cuts(self, rule: Truncation, inputs: Sequence[Input] | None, add_special_tokens: bool) -> bool:
        """Whether HF may cut these inputs, or any (None): it ends the process where overlapping parts do not fit into
        memory, and panics where the special tokens alone are more than the limit."""
        added = 0
        if self._processor is not None and add_special_tokens:
            added = max(self._processor.added(False), self._processor.added(True))
        limit = rule.max_length - added
        if limit <= rule.stride:
            return False
        if rule.stride == 0:
            return True
        return inputs is not None and _size(inputs) * limit // (limit - rule.stride) <= _MOST_OVERLAPPING

    def _engine(self, settings: Settings) -> Any:
        engine = self._engines.get(settings)
        return self._made(settings) if engine is None else engine

    def _made(self, settings: Settings) -> Any:
        truncation, padding, parse_special = settings
        with self._lock:
            made = self._core.copy_of_engine()
            made.encode_special_tokens = not parse_special
            if truncation is not None:
                made.enable_truncation(**truncation.as_dict())
            if padding is not None:
                made.enable_padding(**padding.as_dict())
            if len(self._engines) >= _MOST_ENGINES:
                self._engines = {}
            self._engines[settings] = made
        return made


def _checked(call: Any, *arguments: Any) -> Any:
    """HF's result; its ``TypeError`` for a lone surrogate is a ``LoneSurrogateError``."""
    try:
        return asked(call, *arguments)
    except TypeError:
        for text in _texts(arguments):
            checked_text(text)
        raise


def _texts(value: Any) -> list[str]:
    """All strings of a call's arguments."""
    if isinstance(value, str):
        return [value]
    return [text for one in value for text in _texts(one)] if isinstance(value, (list, tuple)) else []


def _size(inputs: Sequence[Input]) -> int:
    return sum(map(len, _texts(inputs)))


def _is_plain(processor: Processor | None) -> bool:
    """Whether HF applies ``processor`` without a panic to any text."""
    if isinstance(processor, Sequenced):
        around = [p for p in processor.processors if isinstance(p, (TemplateProcessing, BertProcessing, Sequenced))]
        return len(around) <= 1 and all(map(_is_plain, processor.processors))
    if isinstance(processor, TemplateProcessing):
        pieces = [p for p in (*processor.single, *processor.pair) if isinstance(p, Special)]
        return all(p.undeclared is None and len(p.ids) == len(p.tokens) for p in pieces)
    return True
