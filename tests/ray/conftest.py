"""A real Ray on this machine, once for all tests of the folder. The files skip where ray is not installed.

python -m pytest tests/ray runs them; about two minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_raylet_start_wait_time_s", "240")  # a loaded machine; also of processes that tests start


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The CPUs are Ray's own account: two actors, and the tasks that read their input.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    yield
    ray.shutdown()
