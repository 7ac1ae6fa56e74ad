"""A process that has imported the libraries of the tests; each run of pytest is a fork of it.

A line of standard input is an order, a line of standard output its exit status, -1 where it took too long. Nothing
of the product is imported here: each fork reads the files as they are then.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import time

LIBRARIES = ("hypothesis.strategies", "numpy", "pytest", "safetensors.torch", "tokenizers", "torch", "transformers")


def in_fork(arguments: list[str], seconds: float, output: str) -> int:
    """pytest's exit status, that of the signal that ended it, or -1 where it took too long."""
    child = os.fork()
    if not child:
        os.setsid()
        written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, copy in ((null, 0), (written, 1), (written, 2)):
            os.dup2(descriptor, copy)
        import pytest

        status = int(pytest.main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    slept, pause = 0.0, 0.01  # the time is counted in sleeps: while both processes are stopped it stands still
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if slept > seconds:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1
        time.sleep(pause)
        slept += pause
        pause = min(0.25, pause * 1.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that a test left
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    sys.path[0] = os.getcwd()  # as "python -m pytest" has it
    for name in LIBRARIES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    for line in sys.stdin:
        print(in_fork(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
