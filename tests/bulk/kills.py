"""Runs of ``prelude score`` that are killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

FLAGS = [
    "--text-column", "text", "--choice", "language=English,French,German",
    "--noul", "personal=Does it contain personal data?", "--score", "length=3",
    "--window", "16", "--no-progress",
]  # fmt: skip


def write_input(path: Path, rows: int) -> None:
    """JSON lines: texts with a shared beginning in turns, some rows that fail, one that is no JSON."""
    with open(path, "w", encoding="utf-8") as file:
        for at in range(rows):
            text = f"{'A note' if at % 3 else 'Eine Notiz'} of group {at % 7}, number {at * 7919 % 1000}"
            row = {"id": at, "text": None if at % 41 == 40 else text}
            file.write("{torn\n" if at % 97 == 96 else json.dumps(row) + "\n")


def start(source: Path, target: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "prelude", "score", str(source), str(target), *FLAGS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def wait_for_growth(process: subprocess.Popen[bytes], journal: Path, more: int) -> None:
    """Until the journal is ``more`` bytes longer, or the process has ended."""
    begin = journal.stat().st_size if journal.exists() else 0
    while process.poll() is None:
        if journal.exists() and journal.stat().st_size >= begin + more:
            return
        time.sleep(0.002)


def run_with_kills(source: Path, target: Path, kills: int, seed: int, sign: int = signal.SIGKILL) -> int:
    """Kills ``kills`` runs, each at a random length of the journal, and lets the next one end. Returns how many were
    killed before they ended by themselves."""
    draw = random.Random(seed)
    journal = Path(f"{target}.journal")
    killed = 0
    for _ in range(kills):
        if target.exists():
            break
        process = start(source, target)
        wait_for_growth(process, journal, draw.randrange(1, 4000))
        time.sleep(draw.random() * 0.01)
        if process.poll() is None:
            killed += 1
            process.send_signal(sign)
        process.communicate()
        if killed and journal.exists() and draw.random() < 0.3:  # a line that the machine wrote in part
            with open(journal, "ab") as file:
                file.write(b"0badc0de 0123")
    if not target.exists():
        last = start(source, target)
        _, errors = last.communicate()
        if last.returncode:
            raise RuntimeError(errors.decode())
    return killed
