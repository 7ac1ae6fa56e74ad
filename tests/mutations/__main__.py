"""Which edits of the tables the tests with their marks notice.

    python -m tests.mutations                       every edit; prints killed or survived for each
    python -m tests.mutations batch_delay eos_ignored       the edits of these names
    python -m tests.mutations --marks A6,53         the edits with one of these marks
    python -m tests.mutations --check               only looks whether each edit's old text stands in its file once
    python -m tests.mutations --json results.json   keeps the verdicts; verdicts of other edits stay in the file

An edit is *killed* where a test with one of its marks fails, ends the process, or takes ten times as long as without
the edit and is ended for it; *survived* where all pass, *not shown* where none ran, *unclear* where the tests ran out
of time, as they also do on a loaded machine.
At the end the tests that failed run in the unedited copy, where they have to pass.

The edits are made in a copy of the tree with the built extensions, below the temporary directory. An edit of a file
that is not Python builds the copy's extensions anew; ``CC`` and ``CXX`` may name a compiler cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.mutations.edit import Edit, TableError
from tests.mutations.runs import WarmTests
from tests.mutations.table import EDITS

SECONDS = 300
"""The time of the tests of one edit."""
TEST_SECONDS = 120
"""The time of one test."""
_MARK = r"mark\.(?:feature\(\"{0}\"|fault\({0})\)"


def copy_of_tree(target: Path) -> None:
    """Tracked and new files with the built extensions, laid out so that ``python -m pytest`` there imports them."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    built = [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*/*.so"), *ROOT.glob("build/cython/**/*.cpp"))]
    for name in [*filter(None, names), *built]:
        if (ROOT / name).is_file():  # not a tracked file that was deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for package, folder in (("_native", "_native"), ("tokenizer", "tokenizer"), ("cuda", "cuda")):
        (target / "prelude" / package).symlink_to(target / folder, target_is_directory=True)


def files_with(root: Path, marks: Sequence[str]) -> list[str]:
    """The test files that name one of the marks."""
    wanted = re.compile("|".join(_MARK.format(re.escape(mark)) for mark in marks))
    found = (path for path in root.glob("tests/**/test_*.py") if wanted.search(path.read_text(encoding="utf-8")))
    return sorted(str(path.relative_to(root)) for path in found)


def nearest_first(root: Path, files: Sequence[str], edit: Edit) -> list[str]:
    """The tests that import an edited module or have its name, then those of its package: the quickest to notice."""
    edited = [Path(change.file).with_suffix("") for change in edit.changes]
    imports = re.compile("|".join(rf"{re.escape('.'.join(path.parts))}\b" for path in edited))
    names = {path.name.strip("_") for path in edited}
    packages = {path.parent.name.strip("_") for path in edited}

    def distance(file: str) -> int:
        if imports.search((root / file).read_text(encoding="utf-8")) or any(
            name in Path(file).name for name in names
        ):
            return 0
        return 2 if packages.isdisjoint(Path(file).parts) else 1

    return sorted(files, key=distance)


def forget_bytecode(paths: Sequence[Path]) -> None:
    """Compiled files are told apart by second and size, which an edit may leave as they are."""
    for path in paths:
        if path.suffix == ".py":
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def verdict(tests: WarmTests, edit: Edit, patience: float) -> tuple[str, str]:
    """The verdict of the tests with the edit's marks, and the first of them that failed."""
    root = tests.root
    files = nearest_first(root, files_with(root, edit.marks), edit)
    if not files:
        return "not shown", "no test has the mark"
    before = edit.apply(root)
    forget_bytecode(list(before))
    built = {path: path.read_bytes() for path in root.glob("*/*.so")} if edit.native else {}
    try:
        if edit.native and (wrong := build(root)):
            return "unclear", wrong
        options = ["-x", "-vv", f"--timeout={TEST_SECONDS * patience}", "--timeout-method=thread"]
        shown = ["--shows", ",".join(edit.marks)]
        status, output = tests.run([*options, *shown, *files], SECONDS * patience)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
        forget_bytecode(list(before))
        for path, data in built.items():  # behind the sources: an extension is built where a source is younger
            path.unlink()
            path.write_bytes(data)
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output, re.MULTILINE)  # not a line of the log
    last = output.strip().splitlines()[-1] if output.strip() else ""
    if status == 0 and " passed" in output:
        return "survived", last
    if status in (0, 5):
        return "not shown", last
    if status == 1 and failed:
        return "killed", failed[1]
    if status == 1:  # the edit's doing, or the machine's
        return out_of_time(tests, output, TEST_SECONDS * patience)
    if status == -1:
        return "unclear", f"the tests took more than {SECONDS * patience:.0f} s"
    if status < -1 and (test := not_ended(output)):
        return "killed", f"{test}: ended by signal {-status}"
    return "unclear", last


def not_ended(output: str) -> str | None:
    """The test that had begun when the process ended."""
    begun = re.findall(r"^(tests/\S+\.py::\S.*?) *$", output, re.MULTILINE)  # a line without a verdict behind it
    left = [name for name in begun if not re.search(r" (PASSED|SKIPPED|XFAIL|FAILED|ERROR)\b", name)]
    return left[-1] if left else None


def out_of_time(tests: WarmTests, output: str, limit: float) -> tuple[str, str]:
    """Of a test that was ended, by itself and without the edit."""
    test = not_ended(output)
    if test is None:
        return "unclear", "a test ran out of time"
    began = time.monotonic()
    status, _ = tests.run([test], limit)
    seconds = time.monotonic() - began
    if status == 0 and seconds < limit / 10:
        return "killed", f"{test}: more than {limit:.0f} s, and {seconds:.0f} s without the edit"
    return "unclear", f"{test} ran out of time, and took {seconds:.0f} s without the edit"


def build(root: Path) -> str:
    """Builds what an edit of a file that is not Python changes; why it could not, else nothing."""
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return f"it does not compile: {errors[0] if errors else ''}" if done.returncode else ""


def chosen(names: Sequence[str], marks: str | None) -> list[Edit]:
    known = {edit.name: edit for edit in EDITS}
    if len(known) != len(EDITS):
        raise SystemExit("two edits of the tables have one name")
    if unknown := sorted(set(names) - known.keys()):
        raise SystemExit(f"no edit has the name {unknown[0]!r}")
    edits = [known[name] for name in names] or list(EDITS)
    wanted = set(marks.split(",")) if marks else None
    return [edit for edit in edits if wanted is None or wanted & set(edit.marks)]


def check(edits: Sequence[Edit]) -> None:
    """``SystemExit`` that names every edit whose old text does not stand in its file exactly once."""
    wrong = []
    for edit in edits:
        for change in edit.changes:
            path = ROOT / change.file
            count = path.read_text(encoding="utf-8").count(change.old) if path.is_file() else 0
            if count != 1:
                wrong.append(f"{edit.name}: its old text stands in {change.file} {count} times, not once")
    if wrong:
        raise SystemExit("\n".join(wrong))


def keep(path: Path, verdicts: dict[str, dict[str, object]]) -> None:
    """Beside the file's verdicts on other edits of the tables."""
    kept = json.loads(path.read_text(encoding="utf-8"))["edits"] if path.exists() else {}
    kept = {**kept, **verdicts}
    edits = {edit.name: kept[edit.name] for edit in EDITS if edit.name in kept}
    counts: dict[str, int] = {}
    for entry in edits.values():
        counts[str(entry["verdict"])] = counts.get(str(entry["verdict"]), 0) + 1
    left = [edit.name for edit in EDITS if edit.name not in edits]
    command = "python -m tests.mutations --json " + path.name
    whole = {"command": command, "counts": counts, "not_run": left, "edits": edits}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def confirm(tests: WarmTests, verdicts: dict[str, dict[str, object]], patience: float) -> None:
    """``SystemExit`` where a test that failed with an edit fails without one: its verdict is then not known."""
    failed = {str(entry["by"]).split(": ")[0] for entry in verdicts.values() if entry["verdict"] == "killed"}
    names = sorted({test.split("[")[0] for test in failed if "::" in test})  # with all of its parameters
    if not names:
        return
    status, output = tests.run(names, SECONDS * 4 * patience)
    last = output.strip().splitlines()[-1] if output else f"status {status}"
    print(f"the {len(names)} tests that failed, unedited: {last}")
    if status:
        raise SystemExit("a test fails without an edit: which edits it notices is not known\n" + output[-3000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="edits; all of them without a name")
    parser.add_argument("--marks", help="edits with one of these marks, separated by commas")
    parser.add_argument("--check", action="store_true", help="only look whether the tables fit the source")
    parser.add_argument("--json", type=Path, help="where to keep the verdicts")
    parser.add_argument("--patience", type=float, default=1.0, help="times as long for the tests: a loaded machine")
    arguments = parser.parse_args()
    edits = chosen(arguments.names, arguments.marks)
    check(edits)
    if arguments.check:
        print(f"{len(edits)} edits fit the source")
        return
    verdicts: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="prelude-mutations-") as folder:
        root = Path(folder)
        copy_of_tree(root)
        with WarmTests(root) as tests:
            for edit in edits:
                began = time.monotonic()
                try:
                    said, why = verdict(tests, edit, arguments.patience)
                except TableError as error:
                    raise SystemExit(str(error)) from None
                verdicts[edit.name] = {"marks": list(edit.marks), "verdict": said, "by": why}
                seconds = time.monotonic() - began
                print(f"{said:>9}  {edit.name:<32} {' '.join(edit.marks):<16} {why}  {seconds:.0f} s", flush=True)
                if arguments.json:
                    keep(arguments.json, verdicts)
            confirm(tests, verdicts, arguments.patience)
    if any(entry["verdict"] != "killed" for entry in verdicts.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
