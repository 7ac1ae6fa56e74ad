"""The command ``prelude``: every option of every command, files that are not there, pipes, and narrow encodings."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prelude import EngineConfig, default_model
from prelude.cpu.executor import logits_rows
from prelude.errors import ConfigError
from prelude.execution.memory_plan import StepMemory
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.gguf.directory import open_directory
from prelude.terminal.command_line import byte_count, check_target, writing
from prelude.tools.cli import command_parser, main


def commands() -> dict[str, argparse.ArgumentParser]:
    [choices] = [one.choices for one in command_parser()._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(choices)


OPTIONS = [(name, action) for name, parser in commands().items() for action in parser._actions]
NAMED = [(name, action) for name, action in OPTIONS if action.option_strings and action.dest != "help"]


def given(action: argparse.Action) -> list[str]:
    """The option with a value that it takes."""
    if action.nargs == 0:
        return [action.option_strings[-1]]
    value = next(iter(action.choices)) if action.choices else "2"
    return [action.option_strings[-1], str(value)]


def needed(command: str) -> list[str]:
    return ["word" for action in commands()[command]._actions if not action.option_strings and action.nargs is None]


@pytest.mark.parametrize(("command", "action"), NAMED, ids=lambda one: getattr(one, "dest", one))
def test_an_option_is_followed_behind_its_command_and_refused_before_it(
    command: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = command_parser()
    plain = parser.parse_args([command, *needed(command)])
    between = ["--"] if needed(command) else []
    for words in ([*needed(command), *given(action)], [*given(action), *between, *needed(command)]):
        chosen = parser.parse_args([command, *words])
        assert getattr(chosen, action.dest) != getattr(plain, action.dest) or action.choices
    option, *value = given(action)
    for before in ([option, *value], ["=".join([option, *value])]):
        with pytest.raises(SystemExit, match="2"):
            main([*before, command, *needed(command)])
        assert f"{option} stands before the command" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "action"), OPTIONS, ids=lambda one: getattr(one, "dest", one))
def test_every_option_has_a_help_text(command: str, action: argparse.Action) -> None:
    assert action.help and len(action.help) > 5


def test_without_a_command_it_is_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr("prelude.tools.demo.main", lambda chosen: ran.append(chosen) or 0)
    assert main([]) == 0 and main(["demo", "--model", "X"]) == 0
    assert [one.model for one in ran] == [None, "X"]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["simulate", "{}.jsonl"], "{}.jsonl"), (["calibrate", "{}.jsonl"], "{}.jsonl"),
        (["fit", "{}.csv"], "{}.csv"), (["score", "{}.csv", "out.csv", "--text-column", "a", "--embed"], "{}.csv"),
        (["score", __file__.replace(".py", ".csv"), "out.csv", "--task", "{}.json"], "{}.json"),
        (["demo", "--model", "{}.gguf"], "{}.gguf"), (["memory", "{}"], "{}"), (["convert", "{}", "out"], "{}"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_there_is_said_so(
    words: list[str], path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nothing")
    assert main([word.format(missing) for word in words]) == 2
    said = capsys.readouterr().err
    assert path.format(missing)[:50] in said and "no such file" in said and "Errno" not in said  # a long one is cut


@pytest.mark.parametrize(
    ("text", "count"),
    [("1500", 1500), ("1GB", 10**9), ("1.5gib", 3 << 29), ("2 TB", 2 * 10**12), ("512KiB", 1 << 19), ("7B", 7)],
)
def test_numbers_of_bytes(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["1G", "", "GB", "-1", "1e9", "1,5GB", "nan"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"1\.5GB or 2GiB"):
        byte_count(text)


def test_memory_takes_a_size_with_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--max-memory", "1GiB"]) == 0
    said = capsys.readouterr().out
    assert "1.0 GiB" in said and [line.split()[0] for line in said.splitlines()[-3:]] == ["512", "2,048", "8,192"]


def test_memory_says_what_fits_to_the_byte(capsys: pytest.CaptureFixture[str]) -> None:
    directory = open_directory(default_model.path(), False)
    model = ModelConfig.from_dir(directory)
    with Checkpoint.open(directory, model) as checkpoint:
        weights = checkpoint.nbytes(4, keep=True)
    longest = model.max_positions
    step = StepMemory.of_shapes(model.spec, 4, logits_rows(model.vocab_size), EngineConfig().expert.max_top)
    every = weights + step.step_bytes(longest) + longest * model.spec.kv_bytes_per_token(4)
    plain = weights + step.step_bytes(longest) - longest * step.row_bytes
    for most, fits in ((every, "all"), (every - 1, "one pass"), (plain, "one pass"), (plain - 1, "no")):
        assert main(["memory", "--max-memory", str(most)]) == 0
        *_, last = capsys.readouterr().out.splitlines()
        assert re.split("  +", last.strip())[::4] == [f"{longest:,}", fits]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_stdout_is_said() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "prelude", "memory"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (ran.returncode, ran.stderr) == (2, "prelude: No space left on device\n")


@pytest.mark.parametrize("name", ["risk.png", "RISK.PNG", "risk.Pdf", "risk.svg"])
def test_a_figure_s_name_ends_in_its_format(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_target("--plot", str(tmp_path / name), figure=True)
    for wrong in (name[:-3] + "gif", name + ".txt", "png"):
        with pytest.raises(ConfigError, match="has to end in one of"):
            check_target("--plot", str(tmp_path / wrong), figure=True)


@pytest.mark.parametrize("words", ["--help", "memory", "simulate posts --option users=2", "score --help"])
def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "prelude", *words.split()]
    ran = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert ran.returncode == (0 if "--help" in words else 141) and "BrokenPipe" not in ran.stderr


def test_a_stream_without_the_characters_shows_others() -> None:
    command = [sys.executable, "-m", "prelude", "simulate", "posts", "--option", "users=2"]
    ran = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    assert b"----" in ran.stdout and ran.stdout.isascii()


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (KeyboardInterrupt(), 130, "prelude: interrupted\n"),
        (ConfigError("it is wrong"), 2, "prelude: it is wrong\n"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 2, "prelude: x.json: "),
        (OSError(28, "No space left on device"), 2, "prelude: No space left on device\n"),
    ],
)
def test_the_status_of_a_command_that_ends_early(
    error: BaseException, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(chosen: Any) -> int:
        raise error

    monkeypatch.setattr("prelude.tools.demo.main", failing)
    assert main(["demo"]) == status
    found = capsys.readouterr()
    assert found.err.startswith(says) and found.err.count("\n") == 1 and not found.out


@pytest.mark.parametrize(
    ("words", "says"), [(["--version"], "prelude "), (["-h"], "usage: prelude"), (["--help"], "usage")]
)
def test_options_without_a_command(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert capsys.readouterr().out.startswith(says)
    for wrong in (["--version=1", "demo"], ["-x"], ["sing"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "rows.jsonl", "-o", "./rows.jsonl"],
        ["simulate", "rows.jsonl", "--write-trace", "rows.jsonl"],
        ["simulate", "rows.jsonl", "--json", "rows.jsonl"],
    ],
    ids=" ".join,
)
def test_a_file_that_is_read_is_not_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("{}\n", encoding="utf-8")
    assert main(words) == 2 and "are one file" in capsys.readouterr().err
    assert Path("rows.jsonl").read_text(encoding="utf-8") == "{}\n"


def test_targets_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_target("--plot", None, figure=True)
    check_target("--save", "x.any")
    check_target("--save", str(tmp_path / "there.json"))
    with pytest.raises(ConfigError, match=r"^--save .*: there is no folder"):
        check_target("--save", str(tmp_path / "no" / "x.json"))
    monkeypatch.setattr("prelude.terminal.command_line.find_spec", lambda name: None)
    check_target("--save", str(tmp_path / "x.png"))
    with pytest.raises(ConfigError, match=r"^--plot needs matplotlib: pip install matplotlib"):
        check_target("--plot", str(tmp_path / "x.png"), figure=True)
    with pytest.raises(ConfigError, match=r"a\.json: cannot be written: full"), writing("a.json"):
        raise OSError(28, "full")
    with pytest.raises(ConfigError, match=r"b\.json: cannot be written: full"), writing("a.json"):
        raise OSError(28, "full", "b.json")
