"""The bar that a terminal shows while long work goes on: loading a checkpoint, simulating a trace, ``run_many``."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.bulk.runs import write_rows

pytest.importorskip("tqdm")

LOAD = """
import itertools, time
clock = itertools.count()
time.time = lambda: {time}  # tqdm's clock
from prelude import Engine
with Engine.from_pretrained() as engine:
    print("loaded")
"""
SECONDS = "float(next(clock))"  # a second passes whenever it is read
RUN = """
import asyncio, itertools, time
clock = itertools.count()
time.time = lambda: {time}  # tqdm's clock
from prelude import AsyncEngine, Engine, EngineConfig, Loglikelihood

async def awaited(engine, tasks, **options):
    await AsyncEngine(engine).run_many(tasks, **options)

with Engine.from_pretrained(config=EngineConfig(max_running=4).changed(max_step_requests=8)) as engine:
    tasks = [Loglikelihood([5, 6, 7 + at], [3]) for at in range(40)]
    {call}
print("loaded")
"""
BLOCKING, AWAITED = "engine.run_many(tasks, **{})", "asyncio.run(awaited(engine, tasks, **{}))"


def stderr_of(code: str, terminal: bool, closed: bool = False) -> str:
    """The stderr of a child that runs ``code``: a terminal, which may be gone, or a file."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        size = struct.pack("4H", 24, 100, 0, 0)  # tqdm writes nothing where a terminal has no columns
        fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    if closed:
        os.close(ours)
    written = b""
    while not closed:
        try:
            part = os.read(ours, 65536)
        except OSError:  # a terminal's error when the child has closed its end
            break
        if not part:
            break
        written += part
    out, _ = child.communicate()
    if not closed:
        os.close(ours)
    assert child.returncode == 0 and out.startswith(b"loaded"), (out, written)
    return written.decode()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_checkpoint_that_loads_for_more_than_a_second_shows_a_bar_in_a_terminal_alone(terminal: bool) -> None:
    written = stderr_of(LOAD.format(time=SECONDS), terminal)
    assert ("loading:" in written and " layers" in written) is terminal


def test_a_checkpoint_that_loads_quickly_shows_none() -> None:
    assert "loading:" not in stderr_of(LOAD.format(time="5.0"), terminal=True)


@pytest.mark.parametrize("call", [BLOCKING, AWAITED], ids=["Engine", "AsyncEngine"])
def test_a_run_many_of_more_than_a_second_shows_a_bar_in_a_terminal_alone(call: str) -> None:
    long = RUN.format(time=SECONDS, call=call.format({}))
    written = stderr_of(long, terminal=True)
    assert "/40 [" in written and "task/s" in written.replace("s/ task", " task/s"), written
    if call is AWAITED:  # which has the same bar
        return
    assert "/40" not in stderr_of(long, terminal=False)
    assert "/40" not in stderr_of(RUN.format(time="5.0", call=call.format({})), terminal=True)
    off = RUN.format(time=SECONDS, call=call.format({"progress": False}))
    assert "/40" not in stderr_of(off, terminal=True)


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    assert stderr_of(LOAD.format(time=SECONDS), terminal=True, closed=True) == ""


SCORE = """
from prelude.tools.cli import main
flags = ["--text-column", "text", "--noul", "q=Is it?", "--window", "20"]
print("loaded", flush=True)
main(["score", {source!r}, {target!r}, *flags])
"""


@pytest.mark.parametrize(("kind", "terminal"), [("csv", True), ("csv", False), ("jsonl", False), ("parquet", True)])
def test_a_run_over_a_file_shows_how_much_of_it_is_done(kind: str, terminal: bool, tmp_path: Path) -> None:
    """Also of a file that tells no number of rows. Outside a terminal in lines."""
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    source = write_rows(tmp_path / f"in.{kind}", [{"text": f"{at} " + "long " * 10} for at in range(100)])
    code = SCORE.format(source=str(source), target=str(tmp_path / "out.jsonl"))
    written = stderr_of(code, terminal)
    size = r"100/100" if kind == "parquet" else r"[\d.]+k/[\d.]+k"
    last = re.split(r"[\r\n]+", written.strip())[-1]
    assert " 0.00/" in written or "0/100 " in written, written
    assert re.search(rf"100%.* {size} \[.*, 100 rows, [\d,]+ rows/s", last), last
    assert ("\r" in written) is terminal


def test_a_bar_that_is_asked_for_is_lines_outside_a_terminal() -> None:
    written = stderr_of(RUN.format(time=SECONDS, call=BLOCKING.format({"progress": True})), terminal=False)
    assert "\r" not in written and "100% 40/40 [" in written.splitlines()[-1]
