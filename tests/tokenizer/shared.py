"""Where the shared reference material lies: PRELUDE_SHARED, or a folder ``shared`` beside the checkout."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def shared() -> Path | None:
    named = os.environ.get("PRELUDE_SHARED")
    for folder in [Path(named)] if named else [REPO.parent / "shared", REPO.parent.parent / "shared"]:
        if (folder / "tokenizers").is_dir():
            return folder
    return None


def families() -> list[str]:
    folder = shared()
    if folder is None:
        return []
    return sorted(p.name for p in (folder / "tokenizers").iterdir() if p.is_dir())


def tokenizer_json(family: str) -> bytes:
    folder = shared() / "tokenizers" / family
    plain = folder / "tokenizer.json"
    return plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())


@cache
def golden_lines() -> list[str]:
    return json.loads(gzip.decompress((shared() / "texts" / "golden_lines.json.gz").read_bytes()))


def golden(family: str) -> list[dict]:
    raw = gzip.decompress((shared() / "tokenizers" / family / "golden.jsonl.gz").read_bytes())
    return [json.loads(line) for line in raw.splitlines()]
