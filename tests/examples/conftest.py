"""The example files as modules, and one engine of the packaged model for those that take an engine."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO

from tests.patience import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """``examples/name.py``: the examples are files to read and run, not a package."""
    spec = importlib.util.spec_from_file_location(f"prelude_example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def service(name: str, *arguments: str, log: int | IO[bytes] = subprocess.DEVNULL) -> Iterator[str]:
    """The address of the example ``name`` as a process of its own, which writes its log to ``log``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / f"examples/{name}.py"), "--port", str(port), *arguments]
    process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or answers(port), "the service does not come up")
        assert process.poll() is None
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(PATIENCE) is not None


def answers(port: int) -> bool:
    import httpx

    try:
        return bool(httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200)
    except httpx.HTTPError:
        return False
