"""Where the shared reference material lies; ``tests.conftest`` says where that is."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

from tests.conftest import shared_dir

REPO = Path(__file__).resolve().parents[2]


def shared() -> Path | None:
    return shared_dir()


def families() -> list[str]:
    folder = shared_dir()
    return sorted(p.name for p in (folder / "tokenizers").iterdir() if p.is_dir()) if folder else []


def tokenizer_json(family: str) -> bytes:
    folder = shared_dir()
    assert folder is not None
    plain = folder / "tokenizers" / family / "tokenizer.json"
    return plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())


@cache
def golden_lines() -> list[str]:
    folder = shared_dir()
    assert folder is not None
    lines: list[str] = json.loads(gzip.decompress((folder / "texts" / "golden_lines.json.gz").read_bytes()))
    return lines


def golden(family: str) -> list[dict]:
    folder = shared_dir()
    assert folder is not None
    raw = gzip.decompress((folder / "tokenizers" / family / "golden.jsonl.gz").read_bytes())
    return [json.loads(line) for line in raw.splitlines()]
