"""The command ``prelude``. ``prelude demo``, or no command: ``demo.py``. ``prelude simulate``: see docs/SIMULATOR.md;
``prelude calibrate``: docs/CALIBRATION.md; ``prelude score``: docs/BULK.md; ``prelude memory``: docs/MEMORY.md;
``prelude convert``: docs/CPU.md."""

from __future__ import annotations

import argparse
import sys

from prelude import __version__, convert, demo, memory_table
from prelude.bulk import command as score
from prelude.calibration import command as calibrate
from prelude.errors import PreludeError
from prelude.simulation import command


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="prelude", description="Decisions and chat on one set of weights, in-process."
    )
    parser.add_argument("--version", action="version", version=f"prelude {__version__}")
    commands = parser.add_subparsers(dest="command")
    for one in (parser, commands.add_parser("demo", help="typed decisions on real input; also without a command")):
        demo.add_arguments(one)
    simulation = commands.add_parser("simulate", help="plan a workload in virtual time, on any machine")
    command.add_arguments(simulation)
    calibration = commands.add_parser("calibrate", help="fit probabilities to labels, and measure them")
    calibrate.add_arguments(calibration)
    score.add_arguments(commands.add_parser("score", help="one task for each row of a file, resumable"))
    convert.add_arguments(commands.add_parser("convert", help="a model directory whose weights are packed already"))
    memory_table.add_arguments(commands.add_parser("memory", help="where a model's memory goes, before loading it"))
    chosen = parser.parse_args(arguments)
    runs = {
        "calibrate": calibrate.main,
        "convert": convert.main,
        "memory": memory_table.main,
        "score": score.main,
        "simulate": command.main,
    }
    run = runs.get(chosen.command, demo.main)
    try:
        return run(chosen)
    except PreludeError as error:
        print(f"prelude: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
