"""The base class of all errors raised on purpose, and nothing else: the tokenizer package derives from it too, and
imports nothing of the engine."""

from __future__ import annotations

from typing import Any


def _restored(cls: type[PreludeError], args: tuple[Any, ...], state: dict[str, Any]) -> PreludeError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class PreludeError(Exception):
    """Base of all errors raised on purpose. They can be pickled, with constructors of any arguments."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)
