"""README.md's Python examples, each in an interpreter of its own, as a reader would paste it into a file."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prelude import default_model
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    """An example that waits for SIGTERM gets it after its first line of output."""
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number], encoding="utf-8")
    shutil.copy(default_model.path() / "tokenizer.json", tmp_path)
    command = [sys.executable, script.name]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            if "SIGTERM" in EXAMPLES[number]:
                assert process.stdout is not None
                assert process.stdout.readline(), process.communicate()[1]
                process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert not errors


def test_the_examples_are_found() -> None:
    assert len(EXAMPLES) >= 3
