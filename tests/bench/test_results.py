"""The kept results: small, and each with a command that this tree can run."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path

import pytest

from bench.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_kept_result_has_a_command_whose_options_there_are(path: Path) -> None:
    assert path.stat().st_size < 100_000, "raw values stay out of the tree"
    command = json.loads(path.read_text(encoding="utf-8"))["command"]
    words = shlex.split(command)
    words = words[words.index("python") :]
    assert words[1] == "-m", command
    module = f"bench.{COMMANDS[words[3]]}" if words[2] == "bench" else words[2]
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, command
    sources = (Path(spec.origin), ROOT / "bench" / "common.py")
    source = "".join(each.read_text(encoding="utf-8") for each in sources)
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option.partition("=")[0]}"' in source, f"{command}: {option}"
