"""Runs of pytest in a tree that edits change, with the libraries imported once for all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.conftest import shared_dir

PLUGINS = ("pytest_timeout", "xdist.plugin", "_hypothesis_pytestplugin")
"""The plugins that the tests use; another that is installed takes seconds of each run."""


class WarmTests:
    """The tests of the tree below ``root``; a context, whose end ends the process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        if (shared := shared_dir()) is not None:
            environment["PRELUDE_SHARED"] = str(shared)
        command = [sys.executable, str(Path(__file__).with_name("warm.py"))]
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> WarmTests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, arguments: Sequence[str], seconds: float) -> tuple[int, str]:
        """pytest's exit status and output; status -1, and the output until then, where it took too long."""
        written = self.root / "output.txt"
        plugins = [part for name in PLUGINS for part in ("-p", name)]
        order = {
            "arguments": ["-rfE", "-p", "no:cacheprovider", *plugins, *arguments],
            "seconds": seconds,
            "output": str(written),
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that runs the tests has ended")
        return int(answer), written.read_text(errors="replace", encoding="utf-8")
