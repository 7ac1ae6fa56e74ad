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

NEXT = "|next|"
CLOCK = f"""
import asyncio, itertools, sys, time
clock, seconds = itertools.count(), 1.0
time.time = lambda: seconds * next(clock)  # tqdm's clock: so many seconds pass whenever it is read
from prelude import AsyncEngine, Engine, EngineConfig, Loglikelihood

def runs(*all):
    global seconds
    for at, (seconds, run) in enumerate(all):
        if at:
            print("{NEXT}", end="", file=sys.stderr, flush=True)
        run()
    print("loaded")
"""
LOAD = CLOCK + "load = lambda: Engine.from_pretrained().close()\n"
RUN = f"""{CLOCK}
async def awaited():
    await AsyncEngine(engine).run_many(tasks)

engine = Engine.from_pretrained(config=EngineConfig(max_running=4).changed(max_step_requests=8))
tasks = [Loglikelihood([5, 6, 7 + at], [3]) for at in range(40)]
blocking = lambda **options: lambda: engine.run_many(tasks, **options)
"""


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
    assert child.returncode == 0 and out.endswith(b"loaded\n"), (out, written)
    return written.decode()


def test_a_checkpoint_that_loads_for_more_than_a_second_shows_a_bar_in_a_terminal_alone() -> None:
    long, quick = stderr_of(f"{LOAD}runs((1.0, load), (0.0, load))", terminal=True).split(NEXT)
    assert "loading:" in long and " layers" in long and "loading:" not in quick
    assert "loading:" not in stderr_of(f"{LOAD}runs((1.0, load))", terminal=False)


def test_a_run_many_of_more_than_a_second_shows_a_bar_in_a_terminal_alone() -> None:
    calls = (
        "(1.0, blocking()), (1.0, lambda: asyncio.run(awaited())), (0.0, blocking()), (1.0, blocking(progress=False))"
        ", (1.0, lambda: engine.run_many(tasks[:1]))"
    )
    *long, quick, off, one = stderr_of(f"{RUN}runs({calls})", terminal=True).split(NEXT)
    assert len(long) == 2, "of an Engine and of an AsyncEngine"
    for written in long:
        assert "/40 [" in written and "task/s" in written.replace("s/ task", " task/s"), written
    assert "/40" not in quick and "/40" not in off and "/1 " not in one
    silent, asked = stderr_of(f"{RUN}runs((1.0, blocking()), (1.0, blocking(progress=True)))", terminal=False).split(
        NEXT
    )
    assert "/40" not in silent
    assert "\r" not in asked and "100% 40/40 [" in asked.splitlines()[-1], "lines"


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    assert stderr_of(f"{LOAD}runs((1.0, load))", terminal=True, closed=True) == ""


SCORE = f"""{CLOCK}
from prelude.tools.cli import main
time.time = time.monotonic
flags = ["--text-column", "text", "--noul", "q=Is it?", "--window", "20"]
score = lambda kind: lambda: main(["score", f"in.{{kind}}", f"out of {{kind}}.jsonl", *flags])
"""


@pytest.mark.parametrize(("kinds", "terminal"), [(("csv", "parquet"), True), (("csv", "jsonl"), False)])
def test_a_run_over_a_file_shows_how_much_of_it_is_done(
    kinds: tuple[str, str], terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a file that tells no number of rows. Outside a terminal in lines."""
    if "parquet" in kinds:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    monkeypatch.chdir(tmp_path)
    for kind in kinds:
        write_rows(tmp_path / f"in.{kind}", [{"text": f"{at} " + "long " * 10} for at in range(100)])
    code = f"{SCORE}runs(*((1.0, score(kind)) for kind in {kinds}))"
    for kind, written in zip(kinds, stderr_of(code, terminal).split(NEXT), strict=True):
        size = r"100/100" if kind == "parquet" else r"[\d.]+k/[\d.]+k"
        last = re.split(r"[\r\n]+", written.strip())[-1]
        assert " 0.00/" in written or "0/100 " in written, written
        assert re.search(rf"100%.* {size} \[.*, 100 rows, [\d,]+ rows/s", last), last
        assert ("\r" in written) is terminal
