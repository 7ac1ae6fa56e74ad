"""Reports of the benchmarks: rows as they come, tables, files, figures, the command that runs a result again."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import pytest

from bench.command_line import command_line
from bench.common import TABLE_WIDTH, Report, add_outputs

ROOT = Path(__file__).resolve().parents[2]


def report_with_rows() -> Report:
    report = Report("A title", "python -m bench engine --quick", facts={"cpu": "a processor " * 12})
    report.add("64 decisions of a load with a long name", "transformers / prelude", (3.0, 2.5, 3.5), "x", ">= 2.5")
    report.add(
        "one decision " * 5, "a measure with a name of many words " * 2, (412.5, 0.5, 2.0), "x", note="n " * 90
    )
    return report


def test_a_table_is_at_most_120_columns_wide_and_loses_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    report_with_rows().show()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= TABLE_WIDTH == 120
    assert printed.count("decision ") + printed.count("decision\n") >= 5 and printed.count("n ") >= 80
    assert "412.50 x" in printed and "[2.50 .. 3.50]" in printed and ">= 2.5" in printed


def test_a_result_has_its_date_commit_and_command(tmp_path: Path) -> None:
    report_with_rows().write(tmp_path / "new" / "result.json")
    kept = json.loads((tmp_path / "new" / "result.json").read_text(encoding="utf-8"))
    facts = kept["facts"]
    assert facts["date"].count("-") == 2 and facts["cpu"] == "a processor " * 12 and len(facts["load"]) == 2
    assert {"commit", "cores", "vectors", "versions", "builds", "files"} <= set(facts)
    assert kept["command"] == "python -m bench engine --quick"
    given = ["--texts", "a folder", "--only", "load"]
    assert shlex.split(command_line("tokenizer", given)) == ["python", "-m", "bench", "tokenizer", *given]


@pytest.mark.parametrize("name, right", [("x.foo", False), ("x", False), ("x.PNG", True), ("x.svg", True)])
def test_the_figures_format_is_checked_before_any_work(
    name: str, right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_outputs(parser)
    if right:
        assert parser.parse_args(["--plot", name]).plot == Path(name)
        return
    with pytest.raises(SystemExit):
        parser.parse_args(["--plot", name])
    assert "does not end in .png" in capsys.readouterr().err
