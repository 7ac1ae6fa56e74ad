"""The command ``prelude``. ``prelude demo``, or no command: ``demo.py``. ``prelude simulate``: see docs/SIMULATOR.md;
``prelude fit``: docs/DECISIONS.md; ``prelude calibrate``: docs/CALIBRATION.md; ``prelude score``: docs/BULK.md;
``prelude memory``: docs/MEMORY.md; ``prelude convert``: docs/CPU.md. The module of the chosen command alone is
imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from prelude import __version__
from prelude.errors import PreludeError, reason
from prelude.terminal.command_line import close_stdout, print_anything

_OWN = ("-h", "--help", "--version")
_COMMANDS = {
    "demo": ("demo", "typed decisions on real input; also without a command"),
    "simulate": ("simulate", "plan a workload in virtual time, on any machine"),
    "fit": ("fit", "a decision from labelled rows of a file"),
    "calibrate": ("calibrate", "fit probabilities to labels, and measure them"),
    "score": ("score", "one task for each row of a file, resumable"),
    "convert": ("convert", "a model directory whose weights are packed already"),
    "memory": ("memory_table", "where a model's memory goes, before loading it"),
}


def command_parser(chosen: Iterable[str] = _COMMANDS) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of the ``chosen`` commands."""
    parser = argparse.ArgumentParser(
        prog="prelude", description="Decisions and chat on one set of weights, in-process."
    )
    parser.add_argument("--version", action="version", version=f"prelude {__version__}")
    commands = parser.add_subparsers(dest="command")
    for name, (_, text) in _COMMANDS.items():
        arguments = commands.add_parser(name, help=text)
        if name in chosen:
            module_of(name).add_arguments(arguments)
    return parser


def module_of(command: str) -> Any:
    return import_module(f"prelude.tools.{_COMMANDS[command][0]}")


def main(arguments: list[str] | None = None) -> int:
    print_anything()
    try:
        try:
            return run((sys.argv[1:] if arguments is None else arguments) or ["demo"])
        finally:
            sys.stdout.flush()
    except PreludeError as error:
        print(f"prelude: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        close_stdout()
        return 141  # as a shell says of a program that SIGPIPE ended
    except OSError as error:
        named = "" if error.filename is None else f"{error.filename}: "  # none of the output, such as of a full disk
        print(f"prelude: {named}{reason(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prelude: interrupted", file=sys.stderr)
        return 130  # and of SIGINT


def run(arguments: list[str]) -> int:
    parser = command_parser(arguments[:1])
    if arguments[0].startswith("-") and arguments[0] not in _OWN:
        option = arguments[0].partition("=")[0]
        parser.error(f"{option} stands before the command; options stand behind it: prelude COMMAND {option} ...")
    chosen = parser.parse_args(arguments)
    code: int = module_of(chosen.command).main(chosen)
    return code


if __name__ == "__main__":
    sys.exit(main())
