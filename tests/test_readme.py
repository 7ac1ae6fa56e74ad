"""The Python examples of the README and of docs, each in an interpreter of its own, as a reader would paste it into a
file. A block marked ``python`` that imports something is an example; others are excerpts."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prelude import default_model
from prelude.models.names import PACKAGES, is_there
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRINTS = re.compile(r"^# prints: (.*)$", re.M)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
EXAMPLES = {
    f"{page.name}-{number}": block
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
    if re.search(r"^(import|from) ", block, re.M)
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    """An example that waits for SIGTERM gets it after its first line of output."""
    for model in PACKAGES:
        if f'"{model}"' in EXAMPLES[name] and not is_there(model):
            pytest.skip(f"the package of the model {model} is not installed: {PACKAGES[model].command}")
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[name], encoding="utf-8")
    shutil.copy(default_model.path() / "tokenizer.json", tmp_path)
    command = [sys.executable, script.name]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            if "SIGTERM" in EXAMPLES[name]:
                assert process.stdout is not None
                assert process.stdout.readline(), process.communicate()[1]
                process.send_signal(signal.SIGTERM)
            printed, errors = process.communicate(timeout=3 * PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    if "  # warns: " in EXAMPLES[name]:
        [errors] = [line for line in errors.splitlines() if "its labels have a probability of" not in line] or [""]
    assert not errors
    said = PRINTS.findall(EXAMPLES[name])
    assert not said or printed.splitlines() == said


def test_the_examples_are_found() -> None:
    assert {"README.md-0", "README.md-1", "SERVICES.md-0"} <= EXAMPLES.keys()
