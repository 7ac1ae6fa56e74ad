"""Text as tokens arrive: stop strings and word boundaries behind the detokeniser.

    token id ──Decoder──▶ certain characters ──Stops──▶ no stop can reach back ──words──▶ text

A ``TextState`` is one request's way through this. The texts of its ``feed`` calls and of ``finish``, in order,
is the decoded text of the tokens, cut at the stop; nothing is ever taken back.
"""

from __future__ import annotations

from prelude.streaming.detokenize import Texts

WORD_CHARS = 256  # with hold_words: a longer word is not waited for


# ------------------------------------------------------------------ stop strings


class Stops:
    """Stop strings as one automaton: a state is the longest end of the text that begins some stop string, so its
    depth is the number of characters to hold back. Work per character does not depend on the number of strings."""

    __slots__ = ("_depth", "_fail", "_first", "_match", "_next", "words")

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        self._next: list[dict[str, int]] = [{}]
        self._depth, self._match, self._fail = [0], [0], [0]
        for word in words:
            self._add(word)
        self._first = frozenset(self._next[0])
        level = list(self._next[0].values())
        while level:  # breadth first: a state's failure state is shallower
            deeper: list[int] = []
            for node in level:
                self._match[node] = self._match[node] or self._match[self._fail[node]]
                for char, child in self._next[node].items():
                    self._fail[child] = self._step(self._fail[node], char)
                    deeper.append(child)
            level = deeper

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stops) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def _add(self, word: str) -> None:
        node = 0
        for char in word:
            child = self._next[node].get(char)
            if child is None:
                child = self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._match.append(0)
                self._fail.append(0)
            node = child
        self._match[node] = len(word)

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(char, 0)

    def feed(self, node: int, text: str) -> tuple[int, int, int]:
        """Go from state ``node`` through ``text``: ``(state, -1, characters to hold)``, or, if a stop is complete,
        ``(state, characters of text up to its end, its length)``."""
        if not node and self._first.isdisjoint(text):
            return 0, -1, 0
        for at, char in enumerate(text):
            node = self._step(node, char)
            if self._match[node]:
                return node, at + 1, self._match[node]
        return node, -1, self._depth[node]

    def cut(self, text: str, include: bool) -> tuple[str, bool]:
        """Return a whole text up to its first stop, and whether there is one."""
        _, end, length = self.feed(0, text)
        if end < 0:
            return text, False
        return text[: end if include else end - length], True


# ------------------------------------------------------------------ one request


class TextState:
    """A request's text so far. ``close`` (once) when the request ends."""

    __slots__ = ("_decoder", "_held", "_include", "_node", "_pass", "_stops", "_texts", "_word", "_words", "stopped")

    def __init__(
        self,
        texts: Texts,
        stops: Stops | None = None,
        *,
        include_stop: bool = False,
        hold_words: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._texts = texts
        self._decoder = texts.decoder()
        self._stops = stops
        self._include = include_stop
        self._pass = min_tokens  # tokens whose text is not searched
        self._node = 0
        self._held = ""  # could begin a stop string
        self._words = hold_words
        self._word = ""  # could be half a word
        self.stopped = False
        texts.created += 1
        texts.live += 1

    def feed(self, token_id: int) -> str:
        """Return text that is certain now. ``stopped`` says whether a stop string is complete: feed no more then."""
        text = self._decoder.feed(token_id)
        if self._stops is not None:
            if self._pass > 0:
                self._pass -= 1
            else:
                text = self._searched(text)
        return self._whole_words(text) if self._words else text

    def finish(self) -> str:
        """Return all that was held, if no stop string cut it off."""
        text = ""
        if not self.stopped:
            text = self._searched(self._decoder.finish())
            if not self.stopped:
                text += self._held
        text, self._word = self._word + text, ""
        return text

    def close(self) -> None:
        self._texts.live -= 1

    def _searched(self, text: str) -> str:
        if not text or self._stops is None:
            return text
        self._node, end, length = self._stops.feed(self._node, text)
        if end >= 0:
            self.stopped = True
            text = self._held + text[:end]
            self._held = ""
            return text if self._include else text[: len(text) - length]
        if not length and not self._held:
            return text
        text = self._held + text
        self._held = text[len(text) - length :]
        return text[: len(text) - length]

    def _whole_words(self, text: str) -> str:
        text = self._word + text
        at = _last_boundary(text)
        self._word = text[at:]
        return text[:at]


def _last_boundary(text: str) -> int:
    """Return the end of the last white space, or of the last character that is a word by itself."""
    if len(text) > WORD_CHARS:
        return len(text)
    for at in range(len(text), 0, -1):
        if text[at - 1].isspace() or _alone(text[at - 1]):
            return at
    return 0


def _alone(char: str) -> bool:
    """Scripts written without spaces: CJK with its punctuation, kana, full-width forms."""
    return (
        "\u2e80" <= char <= "\u9fff"
        or "\uf900" <= char <= "\ufaff"
        or "\uff00" <= char <= "\uffef"
        or ("\U00020000" <= char <= "\U0003ffff")
    )
