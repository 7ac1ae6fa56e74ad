"""The command of a benchmark: the line that runs it again, and its options. Only the standard library is imported:
``bench gpu_first`` reports also where no other package can be imported."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.__main__ import COMMANDS


def command_line(module: str | None = None, arguments: Sequence[str] | None = None) -> str:
    """The command that runs this benchmark again, from the repository's root."""
    if module is None:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name.removeprefix("bench.") if spec else Path(sys.argv[0]).stem
    name = {of: name for name, of in COMMANDS.items()}.get(module, module)
    given = sys.argv[1:] if arguments is None else arguments
    run = ["bench", name] if name in COMMANDS else [f"bench.{module}"]
    return shlex.join(["python", "-m", *run, *given])


def options_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose usage says ``python -m bench NAME``. argparse itself would say the name of the module's file."""
    return argparse.ArgumentParser(
        prog=command_line(arguments=()), description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
