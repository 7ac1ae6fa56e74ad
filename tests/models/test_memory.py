"""Available memory: of the machine, and of every control group above the process."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from prelude.errors import InsufficientMemory
from prelude.models.memory import available_memory, default_blocks, require_memory

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: {32 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {16 * GIB >> 10} kB\n"}
V2 = {"proc/self/cgroup": "0::/service/job\n"}


def group(name: str, most: int | str, used: int, stat: str = "") -> dict[str, str]:
    base = f"sys/fs/cgroup/{name}".rstrip("/")
    return {f"{base}/memory.max": f"{most}\n", f"{base}/memory.current": f"{used}\n", f"{base}/memory.stat": stat}


@pytest.mark.fault(48)
@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, 16 * GIB),
        ({**V2, **group("service/job", "max", GIB)}, 16 * GIB),
        ({"proc/self/cgroup": "0::/user:1/job\n", **group("user:1/job", 8 * GIB, 3 * GIB)}, 5 * GIB),
        ({**V2, "sys/fs/cgroup/service/job/memory.max": f"{GIB}\n"}, 16 * GIB),
        ({**V2, **group("service/job", 8 * GIB, 3 * GIB), **group("service", 4 * GIB, 3 * GIB)}, GIB),
        ({**V2, **group("", 2 * GIB, GIB)}, GIB),
        ({**V2, **group("service/job", GIB, 2 * GIB)}, 0),
        (
            {
                **V2,
                **group("service/job", 8 * GIB, 8 * GIB, f"x 1\ninactive_file {GIB}\nactive_file {GIB}\nactive_file"),
            },
            2 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/job\n4:memory,hugetlb:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{6 * GIB}\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
            },
            4 * GIB,
        ),
        ({"proc/self/cgroup": "nonsense\n\n0::/../..\n"}, 16 * GIB),
    ],
    ids=["machine", "unlimited", "group", "bare", "parent", "container", "over", "page_cache", "version_1", "odd"],
)
def test_available(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert available_memory(tree(tmp_path, {**MEMINFO, **files})) == expected


def test_this_machine() -> None:
    available = available_memory()
    assert available is not None and available > 0


@pytest.mark.fault(48)
def test_requirement_names_both_numbers() -> None:
    require_memory(10, "this", 10)
    require_memory(10, "this", None)
    with pytest.raises(
        InsufficientMemory, match=r"this needs 4,294,967,296 bytes \(4\.00 GiB\), 1,024 bytes"
    ) as failure:
        require_memory(4 * GIB, "this", 1024)
    assert (failure.value.needed, failure.value.available) == (4 * GIB, 1024)


@pytest.mark.parametrize(
    "available, longest, running, expected",
    [
        (16 << 20, 1024, 1, 64),  # one running sequence of 1,024 tokens fills 64 blocks of 16
        (16 << 20, 1024, 64, 4096),
        (16 << 20, 4096, 64, 4096),  # a quarter of 16 MiB in blocks of 1 KiB
        (16 << 20, 1 << 17, 64, 8192),  # one sequence of 131,072 tokens takes half of it: the quarter is too small
        (16 << 20, 1 << 20, 64, 8192),  # never more than the half
        (100, 1024, 64, 1),
        (0, 1024, 64, 1),
        (None, 1024, 64, 32),  # the fallback's 32 KiB
        (1 << 60, 1 << 30, 64, 1 << 24),
    ],
)
def test_the_default_pool_follows_the_memory_and_the_positions(
    available: int | None, longest: int, running: int, expected: int
) -> None:
    blocks = default_blocks(available, 1024, block_size=16, longest=longest, running=running, fallback=32 << 10)
    assert blocks == expected


def test_a_model_of_few_positions_keeps_the_fallback_for_prefixes() -> None:
    """One running sequence of 64 tokens fills four blocks; the prefix cache has a use for more."""
    assert default_blocks(GIB, 1024, block_size=16, longest=64, running=1, fallback=32 << 10) == 32
    assert default_blocks(None, 64 << 10, block_size=16, longest=64, running=1, fallback=32 << 10) == 1


_STEPS = """
import resource
import numpy as np
from prelude.models.memory import keep_freed

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        rooms = [np.empty(size, np.uint8) for size in (1_200_000, 400_000, 1_600_000)]
        for room in rooms:
            room[::4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before = faults()
keep_freed()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limits are glibc's")
def test_steps_find_the_pages_that_the_ones_before_them_had() -> None:
    done = subprocess.run([sys.executable, "-c", _STEPS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert 10 * after < before, (before, after)


_NO_ROOM = """
import resource
from prelude.models.memory import keep_freed

pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 20), resource.RLIM_INFINITY))
keep_freed()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm")
def test_a_process_whose_limit_leaves_no_room_for_that_block_goes_on() -> None:
    """A model that is loaded already is not lost for it."""
    done = subprocess.run([sys.executable, "-c", _NO_ROOM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
