"""What a wheel carries: an editable install finds every folder by itself, a wheel only those that are listed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_package_folder_is_listed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^packages = \[\n(.*?)^\]", text, re.S | re.M)
    assert block is not None
    listed = set(re.findall(r'"([\w.]+)"', block[1]))
    found = set()
    for folder in ("prelude", "_native", "tokenizer", "cuda"):
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join(parts if parts[0] == "prelude" else ("prelude", *parts)))
    assert found == listed
