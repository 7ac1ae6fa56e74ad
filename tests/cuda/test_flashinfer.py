"""FlashInfer's own sources against ``attention.py``: names and order of the arguments, and the fields that are read
of its plans. Nothing of it is imported: it needs a GPU build of torch. ``PRELUDE_FLASHINFER`` names a wheel
where the package is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from prelude.cuda.attention import VERSION, _used

ROOT = Path(__file__).resolve().parents[2]


# ------------------------------------------------------------------ plans


def test_the_release_is_pinned() -> None:
    assert f'"flashinfer-python=={VERSION}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "plan, nbytes",
    [
        ([33, 128, 0, 64, 0, 144, 288, 0, 432, 444, 0, 0, 464, 1, 0], 497),
        ([0, 64, 128, 192, 256, 320, 384, 448, 0], 512),
        ([33, 0, 0, 0, 144, 288, 448, 424, 1, 1], 481),
        ([16, 0, 0, 0, 64, 128, 0, 196, 1, 0], 200),
    ],
)
def test_bytes_of_a_plan(plan: list[int], nbytes: int) -> None:
    assert _used(plan) == nbytes
    with pytest.raises(RuntimeError, match=f"this code was read against {VERSION}"):
        _used([*plan, 0, 0, 0, 0, 0, 0, 0])
