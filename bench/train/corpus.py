"""The training text: sentences, texts with and without personal data, decisions about them, documents.

Everything is drawn from one ``random.Random``, so that a seed fixes the whole corpus.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import phrases
from .languages import LANGUAGES, NAMES
from .values import Values

TEMPLATE = {
    "state": "{state}\n\n",
    "question": "Question: {question}\nOptions: {labels}\nAnswer:",
    "label": " {label}",
}
CHAT = {
    "state": "<|im_start|>user\n{state}\n\n",
    "question": "{question}\n{labels}<|im_end|>\n<|im_start|>assistant\n",
    "label": "{label}<|im_end|>",
}
PLAIN = {"state": "User: {state}\n", "question": "{question}\nAssistant:", "label": " {label}"}
STYLES = (*[TEMPLATE] * 17, CHAT, CHAT, PLAIN)
END = "<|endoftext|>"
EVERYDAY = 0.4
"""Share of the everyday sentences, in the languages that have some."""
UNSPACED = ("Chinese", "Japanese", "Thai")


@dataclass(frozen=True)
class Question:
    text: str
    labels: tuple[str, ...]
    answer: str
    notes: tuple[str | None, ...] = ()
    """A description for each label, or none where the labels stand in one line."""

    def asked(self, style: dict[str, str]) -> str:
        """The question's part of the state, as the engine writes it; in lines where a label has a description."""
        if not any(self.notes):
            return style["question"].format(question=self.text, labels=", ".join(self.labels))
        lines = [f"\n- {label}: {note}" if note else f"\n- {label}" for label, note in zip(self.labels, self.notes)]
        return style["question"].replace(" {labels}", "{labels}").format(question=self.text, labels="".join(lines))


@dataclass(frozen=True)
class Example:
    """One state and its questions; the rubric is shared by the rows of a batch."""

    text: str
    language: str
    kind: str
    """"email", "phone", "card", or "" where the text has no personal data."""
    questions: tuple[Question, ...] = ()


class Corpus:
    bare = 0.5
    """Share of the batches without a rubric in which the state is the text alone."""
    styles = STYLES

    def __init__(
        self,
        sentences: dict[str, list[str]],
        words: dict[str, list[str]],
        seed: int,
        everyday: dict[str, list[str]] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.words = words
        self.everyday = everyday or {}
        self.sentences = sentences
        self.values = {language.name: Values(language, self.rng) for language in LANGUAGES}
        # Longer sentences are rarer in catalogues and closer to everyday text.
        self.long = {name: [text for text in texts if len(text) > 40] or texts for name, texts in sentences.items()}

    def part(self, text: str) -> str:
        """The sentence, a clause of it, or some words of it."""
        roll = self.rng.random()
        clauses = [clause for clause in text.split(", ") if clause.count(" ") > 2]
        if roll < 0.2 and clauses:
            return self.rng.choice(clauses)
        words = text.split(" ")
        if roll < 0.4 and len(words) > 6:
            at = self.rng.randrange(len(words) - 5)
            return " ".join(words[at : at + self.rng.randint(5, len(words))])
        return text

    def sentence(self, language: str) -> str:
        if self.everyday.get(language) and self.rng.random() < EVERYDAY:
            return self.part(self.rng.choice(self.everyday[language]))
        roll = self.rng.random()
        if roll < 0.05:
            return self.rng.choice(self.words[language])
        if roll < 0.2:
            return self.values[language].everyday() or self.rng.choice(self.long[language])
        return self.rng.choice(self.long[language] if roll < 0.75 else self.sentences[language])

    def passage(self, language: str, least: int) -> str:
        """One sentence, or several up to a length."""
        text = self.sentence(language)
        while len(text) < least:
            join = "" if language in UNSPACED and self.rng.random() < 0.7 else " "
            stop = "" if text[-1] in ".!?。！？؟" else self.rng.choice([".", ".", ",", ";"])
            text = f"{text}{stop}{join}{self.sentence(language)}"
        return text

    def insert(self, text: str, value: str, language: str) -> str:
        """The value somewhere in the text: between two words, or where one script meets another."""
        spots = [at for at, char in enumerate(text) if char == " "]
        roll = self.rng.random()
        if roll < 0.35 or not text:
            return f"{text} {value}" + self.rng.choice(["", ".", ".", "!"])
        if roll < 0.5:
            return f"{value}{self.rng.choice([' ', ': ', ', ', ' – '])}{text}"
        if language in UNSPACED and roll < 0.8:
            at = self.rng.randrange(len(text))
            return text[:at] + value + text[at:]
        if not spots:
            return f"{text}, {value}"
        at = self.rng.choice(spots)
        value = self.rng.choice([value, value, f"({value})", f"{value},"])
        return f"{text[:at]} {value}{text[at:]}"

    def text(self, language: str, least: int | None = None) -> tuple[str, str]:
        """A text and the kind of personal data in it."""
        rng = self.rng
        least = rng.choice((10, 30, 30, 60, 60, 100, 160)) if least is None else least
        return self.valued(self.passage(language, least), language)

    def valued(self, text: str, language: str, share: float = 0.5) -> tuple[str, str]:
        """The text with personal data in it, in a ``share`` of the cases, and with other numbers; and its kind."""
        rng, values, kind = self.rng, self.values[language], ""
        if rng.random() < share:
            kind = rng.choice(("email", "email", "phone", "phone", "card"))
        for _ in range(rng.choice((0, 0, 0, 1)) if kind else rng.choice((0, 1, 1, 2))):
            text = self.insert(text, values.harmless(), language)
        if kind:
            value = getattr(values, kind)()
            if rng.random() < 0.6:
                leads = {"email": phrases.EMAIL, "phone": phrases.PHONE, "card": phrases.CARD}[kind]
                value = rng.choice(leads[language]).format(value)
            text = self.insert(text, value, language)
        return text, kind

    def labels(self, answer: str, most: int) -> tuple[str, ...]:
        """The answer among others, in any order or in the usual one."""
        if self.rng.random() < 0.15:
            return NAMES
        count = self.rng.randint(2, most)
        labels = [answer, *self.rng.sample([name for name in NAMES if name != answer], count - 1)]
        self.rng.shuffle(labels)
        return tuple(labels)

    def questions(self, language: str, kind: str, default: bool) -> tuple[Question, ...]:
        rng = self.rng

        def wording(options: tuple[str, ...]) -> str:
            return options[0] if default or rng.random() < 0.4 else rng.choice(options)

        labels = NAMES if default else self.labels(language, 8)
        yes_no = ("yes", "no") if default or rng.random() < 0.8 else ("no", "yes")
        asked = [
            Question(wording(phrases.LANGUAGE_QUESTIONS), labels, language),
            Question(wording(phrases.DATA_QUESTIONS), yes_no, "yes" if kind else "no"),
        ]
        if not default and rng.random() < 0.25:
            kinds = list(phrases.KINDS.values())
            rng.shuffle(kinds)
            asked[1] = Question(rng.choice(phrases.KIND_QUESTIONS), tuple(kinds), phrases.KINDS[kind])
        if not default and rng.random() < 0.2:
            other = rng.choice((language, rng.choice(NAMES)))
            answer = "yes" if other == language else "no"
            asked[0] = Question(rng.choice(phrases.IN_LANGUAGE_QUESTIONS).format(other), yes_no, answer)
        rng.shuffle(asked)
        return tuple(asked if default else asked[: rng.choice((1, 2))])

    def example(self, default: bool = False, least: int | None = None) -> Example:
        language = self.rng.choice(NAMES)
        text, kind = self.text(language, least)
        return Example(text, language, kind, self.questions(language, kind, default))

    def rubric(self) -> tuple[str, bool]:
        """A rubric for one batch, and whether everything is asked in the default words."""
        roll = self.rng.random()
        if roll < 0.3:
            return phrases.RUBRIC, True
        if roll < 0.45:
            return phrases.RUBRIC, False
        return ("" if roll < 0.75 else self.rng.choice(phrases.RUBRICS)), False

    def document(self) -> str:
        """Running text for the language model: passages, chats, short reports."""
        language = self.rng.choice(NAMES)
        text, kind = self.text(language, 80)
        roll = self.rng.random()
        if roll < 0.7:
            return "\n".join(self.passage(language, 60) for _ in range(self.rng.randint(1, 4)))
        question = self.rng.choice(self.questions(language, kind, False))
        if roll < 0.85:
            asked = f"{question.text}\n\n{text}" if self.rng.random() < 0.5 else f"{text}\n\n{question.text}"
            return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{question.answer}<|im_end|>"
        return f"User: {question.text} {text}\nAssistant: {question.answer}"
