"""Truncation and padding: the settings, as values, and their effect on encodings (HF's rules).

A tokenizer holds each as one immutable object and every call reads it once, so that a thread that changes
the settings never disturbs a call that is under way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from ._core import Encoding
from .encoding import _unsigned, unsigned_32
from .errors import TokenizerError

Direction = Literal["left", "right"]
Strategy = Literal["longest_first", "only_first", "only_second"]

_MOST_LENGTH = 1 << 22  # tokens that an encoding is padded to: each takes some forty bytes
_WRAP = 1 << 64  # HF subtracts in 64 bits without a sign
_STRATEGY_JSON = {"longest_first": "LongestFirst", "only_first": "OnlyFirst", "only_second": "OnlySecond"}
_DIRECTION_NAME: dict[str, Direction] = {"Left": "left", "Right": "right"}
_STRATEGY_NAME = {value: key for key, value in _STRATEGY_JSON.items()}


@dataclass(frozen=True, slots=True)
class Truncation:
    max_length: int
    stride: int
    strategy: Strategy
    direction: Direction

    @staticmethod
    def checked(max_length: int, stride: int, strategy: str, direction: str) -> Truncation:
        if strategy not in _STRATEGY_JSON:
            raise TokenizerError(
                f"Unknown `strategy`: `{strategy}`. Use one of `longest_first`, `only_first`, or `only_second`"
            )
        return Truncation(_unsigned(max_length), _unsigned(stride), cast(Strategy, strategy), _direction(direction))

    @staticmethod
    def from_json(member: dict[str, Any]) -> Truncation:
        return Truncation(
            _whole("max_length", member["max_length"]),
            _whole("stride", member["stride"]),
            cast(Strategy, _STRATEGY_NAME[member["strategy"]]),
            _DIRECTION_NAME[member.get("direction", "Right")],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "direction": self.direction.capitalize(),
            "max_length": self.max_length,
            "strategy": _STRATEGY_JSON[self.strategy],
            "stride": self.stride,
        }

    as_dict = dataclasses.asdict

    def check_stride(self, added: int) -> None:
        effective = self.limit(added)
        if effective < self.stride:
            raise TokenizerError(
                f"tokenizer stride set to {self.stride}, which is greater than or equal to its effective max "
                f"length of {effective} (= {self.max_length} original max length - {added} added special tokens), "
            )

    def limit(self, added: int) -> int:
        return (self.max_length - added) % _WRAP


@dataclass(frozen=True, slots=True)
class Padding:
    length: int | None
    pad_to_multiple_of: int | None
    pad_id: int
    pad_token: str
    pad_type_id: int
    direction: Direction

    @staticmethod
    def checked(
        direction: str,
        pad_id: int,
        pad_type_id: int,
        pad_token: str,
        length: int | None,
        pad_to_multiple_of: int | None,
    ) -> Padding:
        if not isinstance(pad_token, str):
            raise TypeError(f"pad_token={pad_token!r:.60} is not a string")
        return Padding(
            None if length is None else _length("length", length),
            None if pad_to_multiple_of is None else _length("pad_to_multiple_of", pad_to_multiple_of),
            unsigned_32("pad_id", pad_id),
            pad_token,
            unsigned_32("pad_type_id", pad_type_id),
            _direction(direction),
        )

    @staticmethod
    def from_json(member: dict[str, Any]) -> Padding:
        strategy, multiple = member["strategy"], member.get("pad_to_multiple_of")
        if strategy != "BatchLongest" and not isinstance(strategy, dict):
            raise TokenizerError(f'strategy={strategy!r:.60} is neither "BatchLongest" nor {{"Fixed": length}}')
        return Padding.checked(
            _DIRECTION_NAME[member["direction"]],
            _whole("pad_id", member["pad_id"]),
            _whole("pad_type_id", member["pad_type_id"]),
            member["pad_token"],
            _whole("strategy.Fixed", strategy["Fixed"]) if isinstance(strategy, dict) else None,
            None if multiple is None else _whole("pad_to_multiple_of", multiple),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": "BatchLongest" if self.length is None else {"Fixed": self.length},
            "direction": self.direction.capitalize(),
            "pad_to_multiple_of": self.pad_to_multiple_of,
            "pad_id": self.pad_id,
            "pad_type_id": self.pad_type_id,
            "pad_token": self.pad_token,
        }

    as_dict = dataclasses.asdict

    def apply(self, encodings: Sequence[Encoding]) -> None:
        if not encodings:
            return
        target = max(map(len, encodings)) if self.length is None else self.length
        multiple = self.pad_to_multiple_of
        if multiple and target % multiple:
            target += multiple - target % multiple
        for encoding in encodings:
            self.put(encoding, target)

    def put(self, encoding: Encoding, length: int) -> None:
        """Pad one to ``length``, and its overflowing parts."""
        encoding.pad(length, self.direction, self.pad_id, self.pad_type_id, self.pad_token)


def truncate_pair(encoding: Encoding, pair: Encoding | None, rule: Truncation, added: int) -> None:
    """Truncate in place so that both, with ``added`` special tokens, fit ``rule.max_length``."""
    limit = rule.limit(added)
    total = len(encoding) + (len(pair) if pair is not None else 0)
    if limit == 0:
        targets = [(encoding, 0)] + ([(pair, 0)] if pair is not None else [])
    elif total <= limit:
        return
    elif rule.strategy == "longest_first":
        if pair is None:
            targets = [(encoding, limit)]
        else:
            first, second = longest_first(len(encoding), len(pair), limit)
            targets = [(encoding, first), (pair, second)]
    else:
        target = encoding if rule.strategy == "only_first" else pair
        if target is None:
            raise TokenizerError("Truncation error: Second sequence not provided")
        kept = len(target) - (total - limit)
        if kept <= 0:
            message = "Truncation error: Sequence to truncate too short to respect the provided max_length"
            raise TokenizerError(message)
        targets = [(target, kept)]
    for one, kept in targets:
        one.truncate(kept, rule.stride, rule.direction)


def longest_first(first: int, second: int, limit: int) -> tuple[int, int]:
    """Tokens that are left of two texts of so many, ``limit`` in all: the longer one gives way first; when both must,
    each gets half and the longer the odd token."""
    short = min(first, second, limit // 2)
    return (limit - short, short) if first > second else (short, limit - short)


def _direction(value: str) -> Direction:
    if value not in ("left", "right"):
        raise TokenizerError(f"Unknown `direction`: `{value}`. Use one of `left` or `right`.")
    return cast(Direction, value)


def _whole(name: str, value: Any) -> int:
    """Return a member of a file that is a number of 64 bits without a sign."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _WRAP:
        raise TokenizerError(f"{name}={value!r:.60} is not a whole number from 0 on")
    return value


def _length(name: str, value: Any) -> int:
    number = _unsigned(value)
    if number > _MOST_LENGTH:
        raise TokenizerError(f"{name}={number} is out of range; it takes 0 to {_MOST_LENGTH}")
    return number
