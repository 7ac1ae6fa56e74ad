"""The description of one added token: HF's ``AddedToken``, as a value."""

from __future__ import annotations

from dataclasses import dataclass

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class AddedToken:
    """A token matched in the text before the model sees it."""

    content: str = ""
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

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
            f"AddedToken({_quoted(self.content)}, rstrip={self.rstrip}, lstrip={self.lstrip}, "
            f"single_word={self.single_word}, normalized={self.normalized}, special={self.special})"
        )

    def to_dict(self) -> dict[str, str | bool]:
        return {
            "content": self.content,
            "single_word": self.single_word,
            "lstrip": self.lstrip,
            "rstrip": self.rstrip,
            "normalized": self.normalized,
            "special": self.special,
        }


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
