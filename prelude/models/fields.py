"""Typed, bounded reading of the values in a JSON object.

Every reader names the key, the value seen and the allowed values, so that a wrong ``config.json``
is repaired by reading one line. ``true`` is not 1, ``"32"`` is not 32, NaN is nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prelude.errors import ModelError, shown

_MISSING: Any = object()


class Fields:
    """The object ``values``, read key by key; ``where`` opens every message."""

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None):
        self.values = values
        self.where = where
        self.defaults = defaults or {}

    def wrong(self, key: str, wanted: str) -> ModelError:
        return ModelError(f"{self.where}: {key} is {shown(self.values.get(key))}, {wanted}")

    def get(self, key: str, default: Any = _MISSING) -> Any:
        """Return the raw value; a key that is absent takes ``default``, then the family's, else it is an error."""
        if key in self.values:
            return self.values[key]
        if default is not _MISSING:
            return default
        if key in self.defaults:
            return self.defaults[key]
        raise ModelError(f"{self.where}: {key} is missing")

    def integer(self, key: str, low: int, high: int, default: Any = _MISSING) -> int:
        value = self.get(key, default)
        if type(value) is not int:
            raise self.wrong(key, f"an integer between {low:,} and {high:,} is needed")
        if not low <= value <= high:
            raise self.wrong(key, f"the limits are {low:,} and {high:,}")
        return value

    def number(self, key: str, low: float, high: float, default: Any = _MISSING) -> float:
        """Return a finite number with ``low < value <= high``."""
        value = self.get(key, default)
        if type(value) not in (int, float):
            raise self.wrong(key, f"a number above {low:g} and at most {high:g} is needed")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.wrong(key, "a finite number is needed")
        if not low < value <= high:
            raise self.wrong(key, f"it must be above {low:g} and at most {high:g}")
        return float(value)

    def boolean(self, key: str, default: Any = _MISSING) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false is needed")
        return value

    def text(self, key: str, default: Any = _MISSING) -> str:
        value = self.get(key, default)
        if type(value) is not str:
            raise self.wrong(key, "a string is needed")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One id, a list of ids, or nothing at all. The family's own id counts if the vocabulary reaches it."""
        value = self.get(key, self.defaults.get(key))
        if value is None or (key not in self.values and value >= vocab_size):
            return ()
        listed = value if isinstance(value, list) else [value]
        if len(listed) > 1024:
            raise ModelError(f"{self.where}: {key} lists {len(listed):,} ids, the limit is 1,024")
        for item in listed:
            if type(item) is not int:
                raise self.wrong(key, "a token id or a list of token ids is needed")
            if not 0 <= item < vocab_size:
                raise self.wrong(key, f"token ids here are between 0 and vocab_size - 1 = {vocab_size - 1:,}")
        return tuple(dict.fromkeys(listed))

    def token_id(self, key: str, vocab_size: int) -> int | None:
        """One id; null, and the -1 that some files write for it, mean none."""
        given = self.get(key, None)
        if given == -1:
            return None
        found = self.token_ids(key, vocab_size)
        if isinstance(given, list):
            raise self.wrong(key, "one token id is needed")
        return found[0] if found else None
