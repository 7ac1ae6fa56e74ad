"""Python opcodes and frames that a call takes, with no model: counts that other load on the machine does not change.

    python -m bench opcodes [--json FILE] [--functions N]

The loads are those of ``bench host_path`` and ``bench typed_decisions``, alone and 64 at once: every step is answered
with a constant. The count is of the interpreter that runs it (CPython 3.10 to 3.13 differ by a tenth), of one call
after four others. ``--functions`` lists the functions that take the most opcodes of each load. Native calls count as
one opcode each.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from bench.command_line import options_parser
from bench.common import Report, add_outputs
from bench.host import typed_decisions as typed
from bench.host.path import PARAMS, Bench
from prelude import Decide, Generate
from prelude.systemone import SystemOne

ROWS = (1, 64)
Counts = Counter[tuple[str, str, int]]


def counted(call: Callable[[], object]) -> tuple[Counts, int]:
    """The opcodes of each function (file, name, line), and the number of frames."""
    opcodes: Counts = Counter()
    frames = 0

    def count(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "opcode":
            code = frame.f_code
            opcodes[code.co_filename, code.co_name, code.co_firstlineno] += 1
        return count

    def enter(frame: FrameType, event: str, given: Any) -> Callable[..., Any]:
        nonlocal frames
        frames += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return opcodes, frames


def loads(bench: Bench) -> dict[str, Callable[[int], list[Any]]]:
    return {
        "decide": lambda rows: bench.decisions(rows, "text"),
        "messages": lambda rows: bench.decisions(rows, "messages"),
        "one token": lambda rows: [Generate(prompt.tolist(), PARAMS) for prompt in bench.prompts(rows, 128)],
        "three questions": lambda rows: [Decide(state, typed.PLAIN) for state in typed.states(bench, rows)],
        "three typed questions": lambda rows: [Decide(state, typed.TYPED) for state in typed.states(bench, rows)],
        "systemone": lambda rows: [
            {"state": state, "questions": typed.QUESTIONS} for state in typed.states(bench, rows)
        ],
    }


def main() -> None:
    parser = options_parser(__doc__)
    add_outputs(parser, plot=False)
    parser.add_argument("--functions", type=int, default=0)
    chosen = parser.parse_args()
    bench = Bench(quick=True)
    report = Report("The interpreter's opcodes")
    for rows in ROWS:
        for name, make in loads(bench).items():
            engine = bench.engine(rows, 512)
            run: Callable[[Any], object] = SystemOne(engine).answer_many if name == "systemone" else engine.run_many
            for _ in range(4):
                run(make(rows))
            given = make(rows)
            opcodes, frames = counted(lambda run=run, given=given: run(given))  # type: ignore[misc]
            for measure, count in (("opcodes", opcodes.total()), ("frames", frames)):
                report.add(name if rows == 1 else f"{name}, {rows} at once", measure, (count, count, count), "")
            for (file, function, line), count in opcodes.most_common(chosen.functions):
                print(f"    {count:7}  {Path(file).name}:{line} {function}")
            engine.close()
    report.finish(chosen)


if __name__ == "__main__":
    main()
