"""Everyday messages and typed questions about them: ``Noul``, ``Choice`` and ``Score`` with descriptions.

``tickets.txt`` has clauses by language and topic. A message is a clause or more of one topic, with a mood, a wish for
money back and a haste where the topic is one of a customer's.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache

from . import DATA, phrases
from .corpus import TEMPLATE, Corpus, Example, Question
from .sources import without

MOODS = ("calm", "annoyed", "angry")
MARKS = ("refund", "urgent")
# topic: names of the label, descriptions, and as the object of "Is it about …?"
TEAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "billing": (
        ("Billing", "Payments", "Invoices", "Finance", "Accounting", "billing"),
        (
            "payments, invoices, refunds",
            "Payments, invoices, refunds",
            "charges and receipts",
            "bills, fees, refunds",
        ),
        ("billing", "a payment", "an invoice"),
    ),
    "delivery": (
        ("Delivery", "Shipping", "Parcels", "Logistics", "delivery"),
        ("parcels and couriers", "late, lost or damaged parcels", "orders on their way", "shipping of orders"),
        ("a delivery", "a parcel", "shipping"),
    ),
    "technical": (
        ("Technical", "Support", "Technical support", "Bugs", "IT", "technical"),
        ("bugs and outages", "Bugs", "errors, crashes, broken pages", "things that do not work"),
        ("a technical problem", "a bug", "something that does not work"),
    ),
    "account": (
        ("Account", "Accounts", "Login", "Access", "account"),
        ("passwords and logins", "sign-in, profile, user data", "locked accounts, passwords"),
        ("an account", "a password or a login"),
    ),
    "sales": (
        ("Sales", "Offers", "Purchases", "sales"),
        ("prices and upgrades", "offers, discounts, new purchases", "questions before buying"),
        ("prices and offers", "buying something new"),
    ),
}
TOPICS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "weather": (("Weather", "weather"), ("rain, sun, snow, wind", "temperatures and storms"), ("the weather",)),
    "food": (("Food", "Cooking", "food"), ("meals, recipes, restaurants", "cooking and eating"), ("food", "cooking")),
    "travel": (
        ("Travel", "Holidays", "travel"),
        ("flights, hotels, trips", "trains and holidays"),
        ("travel", "a trip"),
    ),
    "health": (
        ("Health", "Medicine", "health"),
        ("illness, doctors, medicine", "pain and doctors"),
        ("health", "illness"),
    ),
    "sport": (("Sport", "Sports", "sport"), ("matches, teams, training", "games and exercise"), ("sport", "a match")),
}
TEAM_QUESTIONS = (
    "Which team?",
    "Which team should handle it?",
    "Which department?",
    "What is the message about?",
    "Who should answer it?",
    None,
)
TOPIC_QUESTIONS = ("What is it about?", "Which topic?", "What is the topic?", "What is the text about?", None)
REFUND_QUESTIONS = (
    "Is the customer asking for money back?",
    "Does the customer want money back?",
    "Does the customer ask for a refund?",
    "A refund?",
)
REFUND_CRITERIA = (
    ("money is to be paid back", "no money is asked for"),
    ("the customer wants a refund", "the customer does not want a refund"),
)
URGENT_QUESTIONS = ("Is it urgent?", "Must it be done at once?", "Is the customer in a hurry?")
URGENT_CRITERIA = (("today or at once", "it can wait"), ("needs an answer now", "no hurry"))
UNHAPPY_QUESTIONS = (
    "Is the customer unhappy?",
    "Is the customer annoyed or angry?",
    "Is it a complaint about the service?",
)
UNHAPPY_CRITERIA = (("disappointed, annoyed or angry", "calm or friendly"), ("complains", "does not complain"))
MOOD_QUESTIONS = (
    "How frustrated is the customer?",
    "How angry is the customer?",
    "How annoyed is the writer?",
    "How upset is the customer?",
)
MOOD_LEVELS = (
    ("calm", "annoyed", "very angry"),
    ("Calm", "Frustrated", "Very angry"),
    ("calm or friendly", "disappointed", "furious"),
    ("not at all", "somewhat", "very much"),
)
CONTENT_QUESTIONS = ("How satisfied is the customer?", "How friendly is the message?")
CONTENT_LEVELS = (("very angry", "annoyed", "calm"), ("not at all", "a little", "satisfied"))
NO_DATA_QUESTIONS = (
    "Is the text free of personal data?",
    "Is it free of personal data?",
    "Does it contain no personal data?",
    "Is there no personal data in it?",
)
OTHER = ("Other", "anything else")


@cache
def clauses() -> dict[str, dict[str, tuple[str, ...]]]:
    """Language → topic, mood or mark → its clauses; those that share a run of words with a held-out message are left
    out."""
    rows = (DATA / "tickets-heldout.jsonl").read_text(encoding="utf-8").splitlines()
    held = [json.loads(row)["text"] for row in rows]
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in (DATA / "tickets.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            own = found[line[2:]] = {}
        elif line:
            name, _, rest = line.partition(": ")
            own[name] = tuple(without(rest.split(" / "), held))
    return found


@dataclass(frozen=True)
class Facts:
    """The facts of a message. ``mood``: place in ``MOODS``."""

    topic: str
    mood: int = 0
    refund: bool = False
    urgent: bool = False
    kind: str = ""


class Tickets(Corpus):
    """The corpus with messages in the place of its texts; ``rubric`` and the personal data are the corpus's."""

    bare = 1.0
    styles = (TEMPLATE,)

    def rubric(self) -> tuple[str, bool]:
        return ("" if self.rng.random() < 0.8 else self.rng.choice(phrases.RUBRICS)), False

    def message(self, language: str) -> tuple[str, Facts]:
        rng, own = self.rng, clauses()[language]
        if rng.random() < 0.3:
            topic = rng.choice(tuple(TOPICS))
            said = rng.sample(own[topic], rng.choice((1, 1, 2)))
            facts = Facts(topic)
        else:
            topic, mood = rng.choice(tuple(TEAMS)), 0
            said = rng.sample(own[topic], rng.choice((1, 1, 1, 2)))
            if rng.random() < 0.75:
                mood = rng.randrange(len(MOODS))
                said += rng.sample(own[MOODS[mood]], rng.choice((1, 1, 2)))
            refund = rng.random() < (0.4 if topic == "billing" else 0.1)
            urgent = rng.random() < 0.3
            for name, there in zip(MARKS, (refund, urgent)):
                said += [rng.choice(own[name])] if there else []
            facts = Facts(topic, mood, refund, urgent)
        if rng.random() < 0.5:
            rng.shuffle(said)
        return self.joined(said, language), facts

    def joined(self, said: list[str], language: str) -> str:
        """Sentences with their stops; now and then as the subject and body of a JSON object."""
        rng = self.rng
        stops, space = (
            (("。", "。", "！"), "") if language in ("Chinese", "Japanese") else ((".", ".", ".", "!"), " ")
        )
        text = space.join(one + rng.choice(stops) for one in said)
        if rng.random() < 0.1:
            text = text.lower()
        return text

    def example(self, default: bool = False, least: int | None = None) -> Example:
        language = self.rng.choice(tuple(clauses()))
        text, facts = self.message(language)
        text, kind = self.valued(text, language, 0.2)
        facts = Facts(facts.topic, facts.mood, facts.refund, facts.urgent, kind)
        if self.rng.random() < 0.3:
            subject = self.rng.choice((self.values[language].word().capitalize(), f"#{self.rng.randint(1, 9999)}"))
            text = json.dumps({"subject": subject, "body": text}, ensure_ascii=False)
        return Example(text, language, kind, self.asked(language, facts))

    def asked(self, language: str, facts: Facts) -> tuple[Question, ...]:
        """Two or three questions about one message."""
        customer = facts.topic in TEAMS
        kinds = [self.topic, self.about, lambda _: self.data(facts)]
        if customer:
            kinds += [self.topic, self.refund, self.urgent, self.unhappy, self.mood, self.mood]
        found = [make(facts) for make in self.rng.sample(kinds, self.rng.choice((2, 3)))]
        if self.rng.random() < 0.15:
            found[0] = self.questions(language, facts.kind, False)[0]
        return tuple(found)

    def topic(self, facts: Facts) -> Question:
        rng = self.rng
        table = TEAMS if facts.topic in TEAMS else TOPICS
        asked = rng.choice(TEAM_QUESTIONS if table is TEAMS else TOPIC_QUESTIONS) or "Choose the best option."
        if rng.random() < 0.2:
            table, asked = {**TEAMS, **TOPICS}, rng.choice(TOPIC_QUESTIONS[:-1])
        names = [name for name in table if name != facts.topic]
        names = rng.sample(names, rng.randint(1, len(names)))
        options = [(self.name(name), rng.choice(table[name][1])) for name in names]
        answer = OTHER[0] if rng.random() < 0.08 else self.name(facts.topic)
        options.append((answer, OTHER[1] if answer == OTHER[0] else rng.choice(table[facts.topic][1])))
        if answer != OTHER[0] and rng.random() < 0.15:
            options.append(OTHER)
        rng.shuffle(options)
        plain = rng.random() < 0.35
        notes = tuple(None if plain or rng.random() < 0.12 else note for _, note in options)
        return Question(asked, tuple(label for label, _ in options), answer, notes)

    def name(self, topic: str) -> str:
        names = {**TEAMS, **TOPICS}[topic][0]
        return names[0] if self.rng.random() < 0.4 else self.rng.choice(names)

    def noul(self, asked: tuple[str, ...], truth: bool, criteria: tuple[tuple[str, str], ...] = ()) -> Question:
        rng = self.rng
        notes: tuple[str | None, ...] = rng.choice(criteria) if criteria and rng.random() < 0.4 else ()
        labels = ("yes", "no")
        if rng.random() < 0.2:
            labels, notes = ("no", "yes"), notes[::-1]
        if notes and rng.random() < 0.2:
            notes = (notes[0], None)
        return Question(rng.choice(asked), labels, "yes" if truth else "no", notes)

    def about(self, facts: Facts) -> Question:
        tables = {**TEAMS, **TOPICS}
        other = (
            facts.topic
            if self.rng.random() < 0.5
            else self.rng.choice([name for name in tables if name != facts.topic])
        )
        subject = self.rng.choice(tables[other][2])
        return self.noul((f"Is it about {subject}?", f"Is the message about {subject}?"), other == facts.topic)

    def data(self, facts: Facts) -> Question:
        if self.rng.random() < 0.5:
            return self.noul(NO_DATA_QUESTIONS, not facts.kind)
        return self.noul(phrases.DATA_QUESTIONS, bool(facts.kind))

    def refund(self, facts: Facts) -> Question:
        return self.noul(REFUND_QUESTIONS, facts.refund, REFUND_CRITERIA)

    def urgent(self, facts: Facts) -> Question:
        return self.noul(URGENT_QUESTIONS, facts.urgent, URGENT_CRITERIA)

    def unhappy(self, facts: Facts) -> Question:
        return self.noul(UNHAPPY_QUESTIONS, facts.mood > 0, UNHAPPY_CRITERIA)

    def mood(self, facts: Facts) -> Question:
        rng, roll = self.rng, self.rng.random()
        if roll < 0.15:
            asked = rng.choice(CONTENT_QUESTIONS)
            levels, level = rng.choice(CONTENT_LEVELS), 2 - facts.mood
        elif roll < 0.3:
            asked = rng.choice(MOOD_QUESTIONS)
            levels, level = ("calm or friendly", "annoyed or angry"), int(facts.mood > 0)
        elif roll < 0.4:
            return Question(rng.choice(MOOD_QUESTIONS), ("1", "2", "3"), str(1 + facts.mood))
        else:
            asked = rng.choice(MOOD_QUESTIONS)
            levels, level = (MOOD_LEVELS[0] if rng.random() < 0.4 else rng.choice(MOOD_LEVELS)), facts.mood
        return Question(asked, tuple(map(str, range(len(levels)))), str(level), levels)


def tickets(corpus: Corpus) -> Tickets:
    """With the sentences, the words and the values of a corpus, and draws of its own."""
    made = Tickets.__new__(Tickets)
    made.__dict__.update(corpus.__dict__)
    made.rng = random.Random(corpus.rng.random())
    return made
