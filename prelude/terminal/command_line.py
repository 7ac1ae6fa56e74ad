"""Options and output that the commands of ``prelude`` share."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from prelude.errors import ConfigError, reason

FIGURES = (".png", ".svg", ".pdf")
_PLAIN = {"█": "#", "─": "-", "…": "~"}  # in the place of characters that a stream cannot encode
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:([KMGT]?)(I?)B)?", re.IGNORECASE)


def add_model(parser: argparse.ArgumentParser, *, named: bool = True, quantization: bool = False) -> None:
    """Add the options of a model; ``named``: ``--model`` among them."""
    if named:
        parser.add_argument("--model", help="a directory, or a name; the packaged model by default")
    parser.add_argument("--revision", help="commit, tag or branch of a hub name")
    types = ("auto", "float32", "bfloat16")
    parser.add_argument("--dtype", default="auto", choices=types, help="in which the model computes (docs/CPU.md)")
    if quantization:
        parser.add_argument("--quantization", choices=("int8",), help="keep the layers' weights in 8 bits")


def byte_count(text: str) -> int:
    """Return the bytes that ``1500000000``, ``1.5GB`` (powers of 1000) or ``2GiB`` (powers of 1024) says."""
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1500000000, 1.5GB or 2GiB")
    number, prefix, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index((prefix or " ").upper()))


def check_target(option: str, given: str | None, *, figure: bool = False) -> None:
    """Check before the work that the file can be written afterwards.

    Raises:
        ConfigError: its folder is not there; or it is a figure, and its name has no format or matplotlib is missing.
    """
    if given is None:
        return
    if figure and Path(given).suffix.lower() not in FIGURES:
        raise ConfigError(f"{option} {given!r}: the name has to end in one of {', '.join(FIGURES)}")
    if figure and find_spec("matplotlib") is None:
        raise ConfigError(f"{option} needs matplotlib: pip install matplotlib")
    if not Path(given).absolute().parent.is_dir():
        raise ConfigError(f"{option} {given!r}: there is no folder {str(Path(given).absolute().parent)!r}")


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn an error of a write, which may name no file by itself, into a ``ConfigError`` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: cannot be written: {reason(error)}") from error


# ------------------------------------------------------------------ output


def print_anything() -> None:
    """Make stdout show another character in the place of one that it cannot encode."""
    codecs.register_error("prelude.plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="prelude.plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join([_PLAIN.get(one, "?") for one in error.object[error.start : error.end]]), error.end


def close_stdout() -> None:
    """Discard the rest of the output after a ``BrokenPipeError``, so that the interpreter ends quietly."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
