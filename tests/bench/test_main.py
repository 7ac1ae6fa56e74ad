"""One command that lists the benchmarks and runs one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.__main__ import COMMANDS, FOLDER, summary

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_command_lists_every_file_of_bench_that_can_be_run() -> None:
    runnable = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for path in FOLDER.rglob("*.py")
        if path.name != "__main__.py"
        and "train" not in path.parts
        and '== "__main__"' in path.read_text(encoding="utf-8")
    }
    assert runnable == set(COMMANDS.values())
    listed = bench().stdout
    for name, module in COMMANDS.items():
        assert f"  {name:20} {summary(module)}\n" in listed and len(summary(module)) > 20


def test_options_go_to_the_benchmark_and_an_unknown_name_is_refused() -> None:
    assert "--man MAN" in bench("tokenizer_texts", "--help").stdout
    wrong = bench("nothing")
    assert wrong.returncode == 1 and "there is no 'nothing'; python -m bench lists the names" in wrong.stderr
