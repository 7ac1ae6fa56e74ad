"""The example files as modules, and one engine of the packaged model for those that take an engine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """``examples/name.py``: the examples are files to read and run, not a package."""
    spec = importlib.util.spec_from_file_location(f"prelude_example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
