"""An engine in processes of every start method, beside an engine of the parent that has run: none may hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")

PROGRAM = """
import os, signal, sys, threading, multiprocessing
from concurrent.futures import ProcessPoolExecutor
from prelude import Engine, EngineConfig, YesNo
from prelude.errors import EngineForked

def made():
    return Engine.from_pretrained(config=EngineConfig(kv_bytes=1 << 22, max_length=2048))

def ask(engine):
    [answer] = engine.decide("A text of some length. " * 60, [YesNo("Is it long?")])
    return round(answer.probability, 6)

def child(_=None):
    signal.alarm(300)  # ends a child that hangs
    with made() as engine:
        return ask(engine), engine.embed("a text", pooling="mean").shape

def in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(child()))
    thread.start()
    thread.join()
    return found[0]

def forked(work):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(write, repr(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as file:
        found = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return found

def worker():
    try:
        ask(PARENT)
    except EngineForked as error:
        assert "forkserver" in str(error)
        return child()

def own_files():
    found = child()
    links = [os.readlink(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{file}")]
    return found, {link.split("/")[2] for link in links if link.endswith("schedstat")} <= {str(os.getpid())}

if __name__ == "__main__":
    PARENT = made()
    right = repr((ask(PARENT), PARENT.embed("a text", pooling="mean").shape))
    kind = sys.argv[1]
    if kind in ("fork", "forkserver", "spawn"):
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind)) as pool:
            assert [*map(repr, pool.map(child, range(3)))] == [right] * 3
    elif kind == "workers":  # of a server that loads the application, forks and replaces workers
        assert [forked(worker) for _ in range(3)] == [right] * 3
    elif kind == "thread":
        assert forked(in_a_thread) == right
    elif kind == "files":
        assert forked(own_files) == f"({right}, True)"
    elif kind == "grandchild":
        assert forked(lambda: (child(), forked(child))) == repr((eval(right), right))
    assert repr((ask(PARENT), PARENT.embed("a text", pooling="mean").shape)) == right
    PARENT.close()
    print("done")
"""


@pytest.mark.fault(62)
@pytest.mark.parametrize("kind", ["fork", "forkserver", "spawn", "workers", "thread", "files", "grandchild"])
def test_a_child_makes_an_engine_of_its_own(kind: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    # A fork ends OpenMP's other threads, and with them the use of their files; that of the thread itself stays open.
    env = {**os.environ, "OMP_NUM_THREADS": "1"} if kind == "files" else None
    command = [sys.executable, str(program), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
