"""One allocation of Python's that fails, then the next one: a verb's end after each.

    python -m tests.no_memory complete --to 3000          # every n; the tests take a few dozen
    python -m tests.no_memory decide --to 3000 --width 50 # fifty failures in a row
    python -m tests.no_memory decide --from 900 --to 3000 # goes on where an earlier run was ended

A line after every hundred numbers says how far the run is and how its calls ended; a fault is printed when it is
found.

Before each call of the verb ``_testcapi.set_nomemory(n, n + width)`` makes allocations number n and on fail. The call
has to end, in a result or in an error, within seconds. The call after it has to give its usual result, and the
engine's accounts have to be whole, unless an error of the engine's own has closed it. Allocations of numpy's arrays
and of C++ are not Python's, and do not fail here.

A crash ends the process, so each range runs in a child. Failures that are not the engine's are counted apart: a
crash inside numpy 2.4, and a ``SystemError`` that numpy raises where it forgets to set the error. One crash of numpy
is known: in a line that indexes an array by an int32 array, whose cast found no memory.
"""

from __future__ import annotations

import argparse
import json
import linecache
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prelude import default_model
from tests.checkpoints import make_checkpoint
from tests.threads import use_threads

SECONDS = 60  # a call; a loaded machine takes a fraction of one
ENDS = {"MemoryError", "ExecutionError"}  # the errors of a call, beside its result
NUMPY_FORGOT = ("error return without exception set", "returned NULL without setting an exception")


@dataclass
class Report:
    ends: Counter[str] = field(default_factory=Counter)
    numpy_crashes: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def said(self) -> str:
        return f"{dict(self.ends)}, crashes inside numpy at {self.numpy_crashes}"


def forgotten_by_numpy(error: BaseException) -> bool:
    return isinstance(error, SystemError) and str(error).endswith(NUMPY_FORGOT)


def verbs(engine: Any) -> dict[str, Callable[[], Any]]:
    from prelude import SamplingParams, YesNo

    params = SamplingParams(max_tokens=3, temperature=0)
    return {
        "complete": lambda: engine.complete("The quick brown fox jumps", params).token_ids,
        "decide": lambda: engine.decide("Two boats lay at the quay.", [YesNo("Is it so?")])[0].label,
        "chat": lambda: engine.complete([{"role": "user", "content": "Hello there"}], params).token_ids,
        "loglikelihood": lambda: engine.loglikelihood("Two boats", " lay").total,
        "run_many": lambda: [one.token_ids for one in engine.run_many(same_words(params))],
        "embed": lambda: engine.embed("Two boats lay at the quay.", pooling="mean").tolist(),
        "classify": lambda: engine.classify("Two boats lay at the quay.").scores.tolist(),
    }


def same_words(params: Any) -> list[Any]:
    from prelude import Generate

    return [Generate([1 + i, 2, 3, 4 + i], params) for i in range(4)]


def write_model(path: Path, verb: str) -> Path:
    """A random checkpoint that serves ``verb``, with the packaged model's tokenizer and chat template."""
    kind = "ForSequenceClassification" if verb == "classify" else "ForCausalLM"
    make_checkpoint(path, kind=kind)
    shutil.copy(default_model.path() / "tokenizer_config.json", path / "tokenizer_config.json")
    return path


def child(path: Path, verb: str, numbers: list[int], width: int) -> None:
    """Reports a line of JSON for each number, so that a crash is known by the missing lines."""
    import _testcapi
    import faulthandler

    from prelude import Engine

    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    use_threads(1)
    engine = Engine.from_pretrained(path)
    call = verbs(engine)[verb]
    want = [call() for _ in range(5)][-1]
    for n in numbers:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(json.dumps({"begin": n}), flush=True)
        end, where = "result", ""
        try:
            _testcapi.set_nomemory(n, n + width)
            try:
                call()
            finally:
                _testcapi.remove_mem_hooks()
        except BaseException as error:
            end = type(error).__name__
            if forgotten_by_numpy(error.__cause__ or error):  # no name for the cause: it would hold the call's places
                end = "numpy"
            if end not in ENDS:
                where = "".join(traceback.format_exception(error))
        after = ""
        if engine.health().closed:
            engine.close()
            engine = Engine.from_pretrained(path)
            call = verbs(engine)[verb]
        try:
            got = call()
            if got != want:
                after = f"then {got} instead of {want}"
            if not engine._core.inbox.empty or engine._core.live:
                after = "a request was left"
            elif engine._core.inbox.requests or engine._core.inbox.tokens:
                after = f"{engine._core.inbox.requests} places and {engine._core.inbox.tokens} tokens were left"
            engine._core.audit()
        except BaseException as error:
            after = "".join(traceback.format_exception(error))
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"n": n, "end": end, "where": where, "after": after}), flush=True)
    engine.close()


def run(
    path: Path, verb: str, numbers: list[int], width: int = 1, say: Callable[[str], None] = lambda line: None
) -> Report:
    """Of all numbers; a child that dies is followed by another. ``say`` is given each fault and the progress."""
    report, left = Report(), list(numbers)

    def found(fault: str) -> None:
        report.faults.append(fault)
        say(fault)

    def note(line: dict[str, Any]) -> None:
        if "n" not in line:
            return
        report.ends[line["end"]] += 1
        if line["after"]:
            found(f"{verb} {line['n']}: {line['end']}; {line['after']}")
        if line["end"] not in {"result", "numpy", *ENDS}:
            found(f"{verb} {line['n']}: {line['where']}")
        if line["n"] % 100 == 99:
            say(f"{verb} to {line['n'] + 1}: {report.said()}")

    again: set[int] = set()
    while left:
        last, status, errors = one_child(path, verb, left, width, note)
        if status == 0:
            return report
        if "begin" not in last:
            raise RuntimeError(f"the child ended with {status}: {errors[-2000:]}")
        at = last["begin"]
        if status == 1 and at not in again:  # a machine may stand still for a minute
            again.add(at)
            left = left[left.index(at) :]
            say(f"{verb} {at}: no end in {SECONDS} s; tried again\n{errors[-3000:]}")
            continue
        frames = [line for line in errors.split("Current thread")[-1].splitlines() if line.startswith("  File")]
        if status < 0 and frames and indexes_by_an_array(frames[0]):
            report.numpy_crashes.append(at)
        else:
            found(f"{verb} {at}: ended with {status}: " + "\n".join(frames[:6] if status < 0 else [errors[-3000:]]))
        left = left[left.index(at) + 1 :]
    return report


def one_child(
    path: Path, verb: str, numbers: list[int], width: int, note: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], int, str]:
    """Its last line, exit status and errors; ``note`` is given each line as it comes."""
    command = [sys.executable, "-m", "tests.no_memory", verb, "--path", str(path), "--width", str(width)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    last: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            [*command, "--child", json.dumps(numbers)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                last = json.loads(line)
                note(last)
        status = process.wait()
        errors.seek(0)
        return last, status, errors.read()


def line_of(frame: str) -> str:
    """The line that faulthandler names."""
    file, number = re.fullmatch(r'  File "(.+)", line (\d+) in .*', frame).groups()  # type: ignore[union-attr]
    return linecache.getline(file, int(number)).rstrip()


def indexes_by_an_array(frame: str) -> bool:
    """Whether the frame's line has an index that may be an array: neither a number nor a slice."""
    return re.search(r"\w\[[A-Za-z_][\w.]*\]", line_of(frame)) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "verb", choices=["complete", "decide", "chat", "loglikelihood", "run_many", "embed", "classify"]
    )
    parser.add_argument("--from", dest="begin", type=int, default=0)
    parser.add_argument("--to", type=int, default=3000)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--path", type=Path)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.path, given.verb, given.child, given.width)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = given.path or write_model(Path(folder) / "model", given.verb)
        numbers = list(range(given.begin, given.to, given.step))
        report = run(path, given.verb, numbers, given.width, lambda line: print(line, flush=True))
    print(report.said())
    print(f"{len(report.faults)} faults")
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
