"""Shared by all tests: where the optional reference files lie, and the record that ``coverage_map`` reads."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("PRELUDE_TOKENIZER_CACHE", "off")  # nothing is written beside the tests' own folders
if "OMP_WAIT_POLICY" not in os.environ:
    # The threads of torch, the oracle, would spin for libgomp's own time: a quarter of the tests' processor time.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# Every run has the same inputs, whatever time a machine takes to make them. ``--search`` has others.
settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True,
                          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

ROOT = Path(__file__).resolve().parent.parent
ORACLES = ("torch", "transformers", "safetensors", "sentence_transformers", "tokenizers", "huggingface_hub")
"""Libraries that the engine does without."""
SEED = "PRELUDE_TESTS_SEED"
RECORD = ROOT / ".pytest_cache" / "prelude_shown.json"


def shared_dir() -> Path | None:
    """The folder of real tokenizers, texts and models that some tests use where it is present; it is not part of the
    project. ``PRELUDE_SHARED`` names it, else it lies beside the checkout."""
    for candidate in (os.environ.get("PRELUDE_SHARED"), ROOT.parent / "shared", ROOT.parent.parent / "shared"):
        if candidate and (Path(candidate) / "tokenizers").is_dir():
            return Path(candidate)
    return None


@pytest.fixture(scope="session")
def shared() -> Path:
    found = shared_dir()
    if found is None:
        pytest.skip("the folder of real reference files is not beside the checkout (set PRELUDE_SHARED)")
    return found


@pytest.fixture(scope="session")
def shared_or_none() -> Path | None:
    return shared_dir()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shows", default="", help="only tests marked with one of these features or faults: A6,B2,53")

    parser.addoption("--long", action="store_true", help="the long tests alone, which a usual run leaves out")
    parser.addoption("--search", action="store_true", help="property tests alone, on inputs that no run had before")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--search"):
        settings.load_profile("search")
        config.option.markexpr = config.option.markexpr or "hypothesis"
        if config.option.hypothesis_seed is None:  # workers find the seed of the process that started them
            config.option.hypothesis_seed = os.environ.setdefault(SEED, str(random.SystemRandom().getrandbits(32)))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--search"):
        terminalreporter.line(f"the same inputs again: --search --hypothesis-seed={config.option.hypothesis_seed}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted, long = set(filter(None, config.getoption("--shows").split(","))), config.getoption("--long")
    kept = [item for item in items if not wanted or wanted & {name for _, name in marks_of(item)}]
    if not any("::" in one for one in config.args):  # a test that is named runs
        kept = [item for item in kept if (item.get_closest_marker("long") is not None) == long]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests are no garbage, and to look at all of them takes half a second each time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def marks_of(item: pytest.Item) -> list[tuple[str, str]]:
    """("feature", "A6") and ("fault", "53") for each mark of the test."""
    return [(mark.name, str(mark.args[0])) for mark in item.iter_markers() if mark.name in ("feature", "fault")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that draws without a seed of its own draws the same in every order of the tests."""
    random.seed(0)
    np.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


_shown: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    report.user_properties += [("shows", mark) for mark in marks_of(item)]
    if report.failed:
        _skip_without_oracle(report, item.path)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        _skip_without_oracle(report, collector.path)


def _skip_without_oracle(report: Any, path: Path) -> None:
    """Tests that compare with a library which is not installed are skipped by its name."""
    said = re.findall(r"No module named '(\w+)|cannot import name '\w+' from '(tests)\.", str(report.longrepr))
    missing = [name for name in ORACLES if importlib.util.find_spec(name) is None]
    if said and missing and (said[-1][1] or said[-1][0] in missing):
        name = said[-1][0] or missing[0]  # a file of tests imports from another one, which was skipped
        report.outcome, report.longrepr = "skipped", (str(path), 0, f"Skipped: {name} is not installed")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Runs in the process that reports, which with ``-n`` has the tests of all workers."""
    marks = list(dict.fromkeys(tuple(mark) for name, mark in report.user_properties if name == "shows"))
    if not marks:
        return
    entry = _shown.setdefault(report.nodeid, {"marks": marks, "passed": False, "failed": False})
    if report.when == "call":
        entry["passed"] = report.passed
    if report.failed:
        entry["failed"] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("collectonly", False) or hasattr(session.config, "workerinput"):
        return
    try:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(_shown), encoding="utf-8")
    except OSError:  # a read-only checkout can still be tested
        pass
