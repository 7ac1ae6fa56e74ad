"""One command that lists the benchmarks and runs one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.__main__ import COMMANDS, FOLDER, summary

ROOT = Path(__file__).resolve().parents[2]

# Prints the help of every benchmark, each with its name: one process, since most of them import torch.
HELP = """
import contextlib, io, json
from bench.__main__ import COMMANDS, main

found = {}
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([name, "--help"])
    found[name] = printed.getvalue()
print(json.dumps(found))
"""


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


def test_the_help_of_every_benchmark_begins_with_the_command_that_runs_it() -> None:
    command = [sys.executable, "-c", HELP]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    printed = json.loads(ran.stdout)
    assert list(printed) == list(COMMANDS)
    for name, text in printed.items():
        assert text.startswith(f"usage: python -m bench {name} [-h]"), text
        assert summary(COMMANDS[name]) in " ".join(text.split())
