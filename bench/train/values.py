"""Personal data as people write it, and the numbers and names that are not personal data."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from babel.dates import format_date, format_time
from babel.numbers import format_currency, format_decimal, format_percent
from faker import Faker

from .languages import Language
from .words import WORDS

ENDINGS = "com org net info de fr es it pt nl pl hu tr vn ru gr sa in th cn jp kr io eu co.il co.uk com.br co.jp"
CONSONANTS = "b c d f g h j k l m n p r s t v w z ch sh st tr ng th"
VOWELS = "a e i o u y ai ou ee an en in on ar er or"
COINS = "€ $ £ ¥ ₹ ₽ zł Ft TL ₫ ₪ ฿ 元 円 원 % °C"
CURRENCIES = "USD EUR GBP JPY CNY KRW INR RUB PLN HUF TRY VND ILS THB BRL SAR"
UNITS = "km kg m MB GB cm W kWh x m²"


def has_words(locale: str) -> bool:
    """Whether faker has everyday words of the locale, not the Latin of a lorem ipsum."""
    return locale != "he_IL" and find_spec(f"faker.providers.lorem.{locale}") is not None


@dataclass
class Values:
    """Personal data of one language, and numbers that are not personal data."""

    language: Language
    rng: random.Random
    fakers: list[Faker] = field(init=False)

    def __post_init__(self) -> None:
        self.fakers = [Faker(locale) for locale in self.language.faker]
        for faker in self.fakers:
            faker.seed_instance(self.rng.getrandbits(32))
        self.speakers = [faker for faker, locale in zip(self.fakers, self.language.faker) if has_words(locale)]
        self.ascii = Faker("en_US")
        self.ascii.seed_instance(self.rng.getrandbits(32))

    def everyday(self) -> str:
        """A sentence of everyday words in no order; empty where faker has none."""
        own = WORDS.get(self.language.name)
        if own:
            return " ".join(self.rng.choices(own.split(), k=self.rng.randint(6, 14))).capitalize() + "."
        if not self.speakers:
            return ""
        return self.rng.choice(self.speakers).sentence(self.rng.randint(6, 14))

    def digits(self, count: int) -> str:
        return "".join(self.rng.choices("0123456789", k=count))

    def word(self) -> str:
        """A lower-case word of ASCII letters: an English one, a name, or syllables of no language."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice((self.ascii.first_name, self.ascii.last_name, self.ascii.word))().lower()
        return "".join(rng.choice(CONSONANTS.split()) + rng.choice(VOWELS.split()) for _ in range(rng.randint(2, 4)))

    def email(self) -> str:
        rng = self.rng
        if rng.random() < 0.15:
            return self.ascii.email()
        first, last, word = self.word(), self.word(), self.word()
        local = rng.choice(
            [first, last, word, f"{first}.{last}", f"{first[0]}.{last}", f"{first}_{last}", first + last]
        )
        local += rng.choice(["", "", "", "", self.digits(2), str(rng.randint(1950, 2025)), f"-{word}"])
        name = rng.choice(
            [word, "gmail", "mail", word + self.word(), f"{word}-{self.word()}", f"{word}.{self.word()}"]
        )
        return f"{local}@{name}.{rng.choice(ENDINGS.split())}"

    def phone(self) -> str:
        rng = self.rng
        if rng.random() < 0.35:
            return rng.choice(self.fakers).phone_number()
        start = rng.choice(["+" + str(rng.randint(1, 998)), "00" + str(rng.randint(30, 99)), "", ""])
        area = rng.choice(["0", "(0)", ""]) + str(rng.randint(1, 999))
        if rng.random() < 0.2:
            area = f"({area.strip('()')})"
        groups = [self.digits(rng.choice((2, 3, 3, 4))) for _ in range(rng.choice((2, 2, 3, 4)))]
        while sum(map(len, groups)) < 6:
            groups.append(self.digits(3))
        separator = rng.choice([" ", " ", " ", "-", ".", "", " / "])
        return separator.join(part for part in (start, area, *groups) if part).strip()

    def card(self) -> str:
        rng = self.rng
        sizes = rng.choice([(4, 4, 4, 4)] * 5 + [(4, 6, 5)])
        number = rng.choice("3456") + self.digits(sum(sizes) - 1)
        groups, at = [], 0
        for size in sizes:
            groups.append(number[at : at + size])
            at += size
        return rng.choice([" ", " ", "-", ""]).join(groups)

    def harmless(self) -> str:
        """A number, a date, a price, a web address: values that a careless reader might take for personal data."""
        rng, day, month = self.rng, self.rng.randint(1, 28), self.rng.randint(1, 12)
        year = rng.randint(1750, 2035)
        hour, minute = rng.randint(0, 23), rng.randint(0, 59)
        amount = rng.choice([f"{rng.randint(1, 999)}", f"{rng.randint(1, 99)}.{rng.randint(100, 999)}"])
        coin, unit = rng.choice(COINS.split()), rng.choice(UNITS.split())
        locale, style = self.language.babel, rng.choice(("short", "medium", "long", "full"))
        choices: list[Callable[[], str]] = [
            *[lambda: format_date(datetime.date(year, month, day), style, locale)] * 4,
            *[lambda: format_time(datetime.time(hour, minute), "short", locale=locale)] * 2,
            *[lambda: format_currency(float(amount), rng.choice(CURRENCIES.split()), locale=locale)] * 3,
            *[lambda: format_decimal(int(10 ** rng.uniform(0, 9)), locale=locale)] * 3,
            lambda: format_percent(rng.randint(0, 1000) / 1000, locale=locale),
            lambda: f"{rng.randint(1, 30)} {rng.choice(UNITS.split())}",
            lambda: str(year),
            lambda: f"{year}-{month:02}-{day:02}",
            lambda: f"{day}.{month}.{year}",
            lambda: f"{day:02}/{month:02}/{year}",
            lambda: f"{year}/{month}/{day}",
            lambda: f"{hour}:{minute:02}",
            lambda: f"{hour}:{minute:02}–{hour + 1}:{minute:02}",
            lambda: f"{year}-{year + rng.randint(1, 60)}",
            lambda: f"{amount} {coin}",
            lambda: f"{coin}{amount}",
            lambda: f"{amount},{rng.randint(0, 99):02} {coin}",
            lambda: f"{amount} {unit}",
            lambda: str(rng.randint(1, 99999)),
            lambda: f"{rng.randint(1, 999)} {rng.randint(0, 999):03} {rng.choice(['', '000'])}".strip(),
            lambda: f"{rng.randint(1, 99)},{rng.randint(0, 999):03},000",
            lambda: f"{rng.randint(0, 30)}.{rng.randint(0, 30)}.{rng.randint(0, 30)}",
            lambda: f"{rng.randint(640, 4096)}x{rng.randint(480, 2160)}",
            lambda: f"#{rng.randint(1, 99999)}",
            lambda: f"({rng.randint(1, 400)})",
            lambda: f"{rng.randint(1, 200)}/{rng.randint(1, 200)}",
            lambda: f"{rng.choice('ABCDEFX')}{rng.randint(1, 9999)}",
            lambda: f"ISBN 978-{self.digits(1)}-{self.digits(4)}-{self.digits(4)}-{self.digits(1)}",
            lambda: f"www.{self.ascii.domain_name()}",
            lambda: f"https://{self.ascii.domain_name()}/{self.ascii.word()}",
            lambda: self.ascii.domain_name(),
            lambda: rng.choice(self.fakers).name(),
            lambda: rng.choice(self.fakers).city(),
        ]
        return rng.choice(choices)()
