"""The journal of a run: which lines are taken, what it refuses, what is on the disk when."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prelude import BulkError
from prelude.bulk.journal import Journal
from tests.bulk.runs import FLAGS, score, write_rows


def key(at: int) -> str:
    return f"{min(at, 1):016x}{at:016x}"  # but for the first one with one first half


def fill(path: Path, rows: int = 3, configuration: str = "c") -> None:
    with Journal(path, configuration, {"model": configuration}) as journal:
        for at in range(rows):
            journal.append(key(at), {"value": "é" * at})


def held(journal: Journal, rows: int = 3) -> list[Any]:
    results = journal.results()
    return [found and found["value"] for found in (results.get(key(at)) for at in range(rows))]


@pytest.mark.fault(71)
@pytest.mark.parametrize("lost", range(1, 60, 7))
def test_a_torn_end_is_cut_off(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "j"
    fill(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    with Journal(path, "c", {}) as journal:
        left = journal.rows
        assert left < 3
        for at in range(left, 3):
            journal.append(key(at), {"value": "é" * at})
        assert held(journal) == ["", "é", "éé"]
    assert path.read_bytes() == whole


@pytest.mark.fault(71)
@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_line_with_a_wrong_sum_is_no_row_and_the_others_are(tmp_path: Path, line: int) -> None:
    path = tmp_path / "j"
    fill(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"value", b"valve")
    path.write_bytes(b"".join(lines))
    with Journal(path, "c", {}) as journal:
        want: list[Any] = ["", "é", "éé"]
        want[line - 1] = None
        assert journal.rows == 2 and held(journal) == want


@pytest.mark.fault(71)
@pytest.mark.parametrize("order", [[2, 1, 0], [1, 2, 0], [0, 2, 1], [0, 0, 9, 1, 9, 0]])
def test_rows_are_found_in_any_order(tmp_path: Path, order: list[int]) -> None:
    path = tmp_path / "j"
    fill(path)
    with Journal(path, "c", {}) as journal:
        results = journal.results()
        found = [results.get(key(at)) for at in order]
    assert found == [None if at == 9 else {"value": "é" * at} for at in order]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("text", [b"my notes\n", b"my notes", b'{"a": 1}\n'])
def test_a_file_of_the_user_s_is_not_overwritten(tmp_path: Path, text: bytes, restart: bool) -> None:
    path = tmp_path / "j"
    path.write_bytes(text)
    with pytest.raises(BulkError, match="no journal"):
        Journal(path, "c", {}, restart)
    assert path.read_bytes() == text


HEAD = b'{"prelude_journal": '


@pytest.mark.parametrize(
    "header",
    [
        HEAD + rest
        for rest in (b"2}\n", b"[]}\n", b"1e999}\n", b"1, \n", b"[" * 5000 + b"\n", b'2, "says": 3}\n', b"1}\n")
    ]
    + [HEAD[:-1] + b"\n", HEAD + b'2, "configuration": [], "says": ["a"]}\n'],
)
def test_a_header_of_other_shape_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(header)
    with pytest.raises(BulkError, match=r"no journal|format"):
        Journal(path, "c", {})


def test_two_writers(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", "c", {}), pytest.raises(BulkError, match="another process"):
        Journal(tmp_path / "j", "c", {})
    fill(tmp_path / "j")
    with Journal(tmp_path / "j", "c", {}) as journal, pytest.raises(BulkError, match="another process"):
        Journal(tmp_path / "j", "c", {}, restart=True)
    assert journal.rows == 3


class TestTheDisk:
    """A machine that loses its power keeps what ``fsync`` was called for."""

    @pytest.mark.fault(71)
    def test_rows_are_synced_while_the_run_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, synced = tmp_path / "j", [b""]
        sync = os.fsync

        def recorded(number: int) -> None:
            sync(number)
            if path.exists() and os.path.samestat(os.fstat(number), path.stat()):
                synced[0] = path.read_bytes()

        monkeypatch.setattr(os, "fsync", recorded)
        now, kept = [1000.0], []
        monkeypatch.setattr("prelude.bulk.journal.time", SimpleNamespace(monotonic=lambda: now[0]))
        with Journal(path, "c", {}) as journal:
            for at, passed in enumerate((5.1, 4.9, 0.2, 1.0, 4.1)):
                now[0] += passed
                journal.append(key(at), {"value": "é" * at})
                journal.flush()
                (tmp_path / "after").write_bytes(synced[0])
                with Journal(tmp_path / "after", "c", {}) as left:
                    kept.append(left.rows)
        assert kept == [1, 1, 3, 3, 5], "every five seconds, and not at each flush"

    @pytest.mark.fault(71)
    def test_a_write_of_which_the_disk_takes_a_part_is_an_error(self, tmp_path: Path) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        with Journal(tmp_path / "j", "c", {}) as journal:
            journal.append(key(0), {"value": "x" * 500})
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
            try:
                with pytest.raises(OSError, match="too large"):
                    journal.flush()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    @pytest.mark.fault(71)
    def test_the_output_is_on_the_disk_before_the_journal_goes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = write_rows(tmp_path / "in.csv"), tmp_path / "out.csv.gz"
        events: list[str] = []
        sync, replace, unlink = os.fsync, os.replace, Path.unlink

        def synced(number: int) -> None:
            events.append(f"sync {os.readlink(f'/proc/self/fd/{number}')}")
            sync(number)

        def replaced(one: Any, other: Any) -> None:
            events.append(f"move {one} to {other}")
            replace(one, other)

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            if path.exists():
                events.append(f"remove {path}")
            unlink(path, missing_ok)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        monkeypatch.setattr(Path, "unlink", unlinked)
        assert score(source, target) == 0
        events = [event for event in events if str(tmp_path) in event]
        assert f"sync {target}.journal" in events[:2] and f"sync {tmp_path}" in events[:2]  # its name is there too
        part = events[-3].removeprefix("move ").split(" to ")[0]
        moved = f"move {part} to {target}"
        assert events[-4:] == [f"sync {part}", moved, f"sync {tmp_path}", f"remove {target}.journal"]
        assert target.read_bytes()[4:8] == bytes(4), "no time, so that a run that goes on has the same bytes"


# ------------------------------------------------------------------ names that others have taken
COMMAND = [sys.executable, "-m", "prelude", "score"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "second name", "pipe", "device", "folder"])
def test_a_journal_that_is_another_file_is_refused(tmp_path: Path, kind: str) -> None:
    source, journal, precious = write_rows(tmp_path / "in.csv"), tmp_path / "out.csv.journal", tmp_path / "precious"
    if kind != "dangling link":
        precious.write_bytes(b"")  # an empty file is what a new journal is
    if kind.endswith("link"):
        journal.symlink_to(precious)
    elif kind == "second name":
        os.link(precious, journal)
    elif kind == "pipe":
        os.mkfifo(journal)
    elif kind == "folder":
        journal.mkdir()
    more = ["--journal", "/dev/null"] if kind == "device" else []
    done = subprocess.run(
        [*COMMAND, str(source), str(tmp_path / "out.csv"), *FLAGS, "--no-progress", *more],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "the journal cannot be written" in done.stderr, done.stderr
    assert not (tmp_path / "out.csv").exists()
    assert precious.read_bytes() == b"" if kind != "dangling link" else not precious.exists()


@pytest.mark.parametrize("name", ["out.csv.writing", "out.csv.part", "out.csv"])
def test_no_link_beside_the_output_is_followed(tmp_path: Path, name: str) -> None:
    source, precious = write_rows(tmp_path / "in.csv"), tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / name).symlink_to(precious)
    assert score(source, tmp_path / "out.csv", "--overwrite") == 0
    assert precious.read_bytes() == b"precious" and not (tmp_path / "out.csv").is_symlink()
