"""The description of one added token: HF's ``AddedToken``, as a value."""

from __future__ import annotations

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class AddedToken:
    """A token matched in the text before the model sees it.

    ``normalized``, if it is not given, is True for a token that is not special. A setter of an AddedToken
    of a loaded tokenizer changes that object alone: each call of ``get_added_tokens_decoder`` makes new ones.
    """

    __slots__ = ("_normalized", "content", "lstrip", "rstrip", "single_word", "special")

    def __init__(
        self,
        content: str | None = None,
        single_word: bool = False,
        lstrip: bool = False,
        rstrip: bool = False,
        normalized: bool | None = None,
        special: bool = False,
    ) -> None:
        self.content = content or ""
        self.single_word, self.lstrip, self.rstrip, self.special = single_word, lstrip, rstrip, special
        self._normalized = normalized

    @property
    def normalized(self) -> bool:
        return not self.special if self._normalized is None else self._normalized

    def __eq__(self, other: object) -> bool:
        """Equal to an AddedToken of HF's that says the same."""
        if type(other).__name__ != "AddedToken":
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name, None) for name in ("content", *_FLAGS))

    def __hash__(self) -> int:
        return hash(self.content)

    def __str__(self) -> str:
        return self.content

    def __repr__(self) -> str:
        return (
            f'AddedToken("{self.content}", rstrip={self.rstrip}, lstrip={self.lstrip}, '
            f"single_word={self.single_word}, normalized={self.normalized}, special={self.special})"
        )

    def to_dict(self) -> dict[str, str | bool]:
        return {"content": self.content, **{name: getattr(self, name) for name in _FLAGS}}
