"""One engine of the packaged model for all clients. Files of libraries outside the test extra skip without them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prelude import Engine, EngineConfig


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with Engine.from_pretrained(dtype="float32", config=EngineConfig(kv_bytes=1 << 24)) as engine:
        yield engine
