"""The kept results: small, and each with a command that this tree can run."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import COMMANDS
from bench.serving import service as serving

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


def commands_of(value: dict[str, Any]) -> list[str]:
    return [value["command"]] if "command" in value else list(value["commands"])


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_kept_result_has_a_command_whose_options_there_are(path: Path) -> None:
    assert path.stat().st_size < 100_000, "raw values stay out of the tree"
    for command in commands_of(json.loads(path.read_text(encoding="utf-8"))):
        words = shlex.split(command)
        words = words[words.index("python") if "python" in words else words.index("prelude") :]
        if words[0] == "prelude":
            source = (ROOT / "prelude" / "simulation" / "command.py").read_text(encoding="utf-8")
        else:
            assert words[1] == "-m", command
            module = f"bench.{COMMANDS[words[3]]}" if words[2] == "bench" else words[2]
            spec = importlib.util.find_spec(module)
            assert spec is not None and spec.origin is not None, command
            source = Path(spec.origin).read_text(encoding="utf-8") + (ROOT / "bench" / "common.py").read_text(
                encoding="utf-8"
            )
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option.partition("=")[0]}"' in source, f"{command}: {option}"


def test_the_page_of_benchmarks_names_files_that_there_are() -> None:
    named = set(re.findall(r"`([a-z0-9-]+\.json)`", (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")))
    assert named and named <= {path.name for path in RESULTS}


def test_the_times_of_single_requests_are_kept_on_demand() -> None:
    report = serving.ServingReport("title", "command")
    report.loads["load"] = {"runs": [{"samples_ms": [[1.0]], "requests": 1}]}
    serving.drop_samples(report)
    assert report.loads == {"load": {"runs": [{"requests": 1}]}}
