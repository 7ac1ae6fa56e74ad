"""The thread count of a step on processors that others use as well: lessons from waiting times that a test states,
the system's own counts, and the caller's own number of threads, which is the same after a step as before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from prelude._native import cpu
from prelude._native.cpu import rms_norm, thread_ids

from prelude import Engine, EngineConfig
from prelude.cpu.threads import Governor, Team
from prelude.errors import ConfigError
from prelude.models.memory import default_threads, processors
from tests.patience import open_files, shown


class Machine:
    """A clock, and the waiting of each thread, that move as a test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits = [0.0] * 8
        self.threads = 4
        self.governor = Governor(lambda size: self.waits[:size], lambda: self.now)

    def step(self, seconds: float, *shares: float) -> int:
        """A step whose n-th thread waits for ``shares[n]`` of its time: the thread count at its end."""
        with self.governor.of(self.threads):
            for _ in range(10):
                self.now += seconds / 10
                for index, share in enumerate(shares):
                    self.waits[index] += share * seconds / 10
                self.governor.look()
            return cpu.threads()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr("prelude.cpu.threads.processors", lambda: 8)
    before = cpu.threads()
    yield Machine()
    assert cpu.threads() == before, "a step leaves the caller's number of threads as it was"


def test_threads_that_wait_are_done_without_inside_of_the_step(machine: Machine) -> None:
    assert machine.step(1.0) == 4
    assert machine.step(0.2, 0.0, 0.0, 0.6, 0.7) == 2
    assert machine.step(0.1, 0.7, 0.7) == 1
    assert machine.step(0.1, 0.7) == 1, "one thread is the least, however long it waits"


def test_a_thread_that_waits_now_and_then_counts_as_free(machine: Machine) -> None:
    assert machine.step(1.0, 0.1, 0.2, 0.1, 0.1) == 4


@pytest.mark.parametrize("begin", [0.0, 0.003, 0.012, 0.019])
def test_a_moment_on_one_processor_after_a_pause_takes_no_thread(begin: float, machine: Machine) -> None:
    """Wherever in a window the moment begins."""
    machine.step(1.0)
    machine.step(begin or 1e-6)
    machine.now += 0.5
    assert machine.step(0.022, 0.9, 0.9) == 4
    assert machine.step(0.1) == 4


def test_another_process_takes_a_thread_after_some_windows(machine: Machine) -> None:
    machine.step(1.0)
    assert machine.step(0.04, 0.0, 0.0, 0.0, 0.6) == 4
    assert machine.step(0.06, 0.0, 0.0, 0.0, 0.6) == 3


def test_short_steps_are_summed_up(machine: Machine) -> None:
    counts = [machine.step(0.002, 0.8, 0.8, 0.8, 0.8) for _ in range(50)]
    assert counts[0] == 4 and counts[-1] == 1


def test_a_step_whose_waiting_cannot_be_read_gives_the_threads_back(machine: Machine) -> None:
    """Ctrl-C, or no memory."""
    machine.step(0.1, 0.7, 0.7, 0.7, 0.7)

    def none(_: int) -> list[float]:
        raise MemoryError

    machine.governor._waited = none
    before = cpu.threads()
    with pytest.raises(MemoryError), machine.governor.of(4):
        assert cpu.threads() == 1
        machine.now += 1.0
    assert cpu.threads() == before


def test_waiting_between_steps_is_not_the_steps(machine: Machine) -> None:
    machine.step(0.1)
    machine.now += 60.0
    machine.waits = [wait + 30.0 for wait in machine.waits]
    assert machine.step(0.1) == 4


def test_all_threads_come_back_when_no_call_waits_any_more(machine: Machine) -> None:
    machine.step(0.1, 0.7, 0.7, 0.7, 0.7)
    assert machine.step(0.1) == 1, "not at once"
    assert machine.step(1.0) == 4


def test_threads_that_are_left_come_back_when_it_is_quiet(machine: Machine) -> None:
    machine.step(1.0)
    assert machine.step(0.1, 0.0, 0.0, 0.0, 0.6) == 3
    assert machine.step(0.04, 0.6, 0.6, 0.0) == 1
    assert machine.step(0.06) == 1, "a thread waited a moment ago"
    assert machine.step(0.4) > 1


def test_attempts_that_fail_grow_rare(machine: Machine) -> None:
    """One of four processors is another's: all four threads are tried again, less and less often."""
    tries, last = [], 4
    for _ in range(3000):
        count = machine.step(0.03, 0.0, 0.0, 0.0, 0.6)
        if count == 4 and last != 4:
            tries.append(machine.now)
        last = count
    gaps = [after - before for before, after in pairwise(tries)]
    assert len(gaps) >= 3 and gaps == sorted(gaps) and gaps[-1] > 8 * gaps[0]


def test_moments_of_other_work_do_not_make_attempts_frequent(machine: Machine) -> None:
    """One of four processors is another's for ever, and a moment of each second takes one more from the steps: all
    four threads are tried no more often than without those moments, and three run most of the time."""
    tries, counts = 0, [4]
    for _ in range(120):
        machine.step(0.03, 0.6, 0.0, 0.0, 0.6)
        for _ in range(32):
            counts.append(machine.step(0.03, 0.0, 0.0, 0.0, 0.6))
            tries += counts[-1] == 4 and counts[-2] != 4
    assert 3 <= tries <= 20
    assert counts.count(3) > 0.6 * len(counts)


def test_moments_of_other_work_take_the_threads_for_moments(machine: Machine) -> None:
    """Another process works for 30 ms of each second: all four threads run most of the time."""
    counts = []
    for _ in range(60):
        machine.step(0.03, 0.6, 0.6, 0.6, 0.6)
        counts += [machine.step(0.01) for _ in range(97)]
    assert counts.count(4) > 0.6 * len(counts)


def test_the_engines_number_of_threads_is_the_most(machine: Machine) -> None:
    machine.threads = 2
    assert machine.step(1.0) == 2


def test_other_threads_keep_their_count(machine: Machine) -> None:
    """A thread that begins while a step is held up gets the process's number."""
    machine.step(0.1, 0.7, 0.7, 0.7, 0.7)
    seen: list[int] = []
    before = cpu.threads()
    cpu.set_threads(7)
    try:
        with machine.governor.of(4):
            assert cpu.threads() == 1
            other = threading.Thread(target=lambda: seen.append(cpu.threads()))
            other.start()
            other.join()
    finally:
        cpu.set_threads(before)
    assert seen == [7]


def test_a_step_with_one_thread_computes_in_the_callers_thread(machine: Machine) -> None:
    machine.step(0.1, 0.7, 0.7, 0.7, 0.7)
    x = np.ones((2000, 1000), np.float32)

    def one_thread_computes() -> bool:
        """Threads of earlier tests may take processor time beside it, now and then."""
        with machine.governor.of(4):
            process, own = time.process_time(), time.thread_time()
            for _ in range(50):
                rms_norm(x, 1e-6, None)
            process, own = time.process_time() - process, time.thread_time() - own
        return process < 1.3 * own

    assert shown(one_thread_computes)


def waited_while_computing(team: Team) -> float:
    """Seconds that this thread waited for a processor during some tenths of a second of arithmetic."""
    before = team.waited(1)[0]
    sum(number * number for number in range(2_000_000))
    return team.waited(1)[0] - before


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")
def test_the_system_counts_the_waiting_of_each_thread() -> None:
    ids = thread_ids(2)
    assert len(set(ids)) == 2 and threading.get_native_id() in ids
    assert set(ids) <= {int(name) for name in os.listdir("/proc/self/task")}
    team = Team()
    before = team.waited(2)
    if not before:
        pytest.skip("this kernel was built without scheduler statistics")
    burner = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
    count = 2 * len(os.sched_getaffinity(0))
    burners = [subprocess.Popen([sys.executable, "-c", burner]) for _ in range(count)]
    try:
        assert shown(lambda: waited_while_computing(team) > 0.02)
    finally:
        for process in burners:
            process.kill()
            process.wait()
    assert len(team.waited(2)) == 2

    def counting() -> int:
        """The descriptors that count the waiting of these two threads."""
        return sum(f"/task/{thread}/schedstat" in name for name in open_files() for thread in ids)

    files = counting()
    team.close()
    assert counting() <= files - 2


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The processor that the test's own thread is bound to, while the pool's thread may run on all."""
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor, or a system without affinities")
    thread_ids(2)  # a thread that begins later would be bound as well
    places = os.sched_getaffinity(0)
    monkeypatch.setattr("prelude.cpu.threads.processors", lambda: 2)
    os.sched_setaffinity(0, {min(places)})
    yield min(places)
    os.sched_setaffinity(0, places)


def test_a_step_after_a_pause_keeps_its_threads_off_the_processor_of_its_own(bound: int) -> None:
    now = 100.0
    governor = Governor(clock=lambda: now)
    (other,) = set(thread_ids(2)) - {threading.get_native_id()}
    places = os.sched_getaffinity(other)
    with pytest.raises(RuntimeError), governor.of(2):
        assert os.sched_getaffinity(other) == places - {bound}
        raise RuntimeError
    assert os.sched_getaffinity(other) == places, "also after a step that failed"
    with governor.of(2):
        assert os.sched_getaffinity(other) == places, "no pause"
    now += 0.1
    with governor.of(1):
        governor.look()  # a step of one thread leaves the other known
    now += 0.1
    with governor.of(2):
        assert os.sched_getaffinity(other) == places - {bound}
        governor.look()
        assert os.sched_getaffinity(other) == places, "it runs by now"
    now += 0.1
    os.sched_setaffinity(0, places)
    with governor.of(2):
        assert os.sched_getaffinity(0) == places, "its own thread goes where it may"


QUOTAS = [
    ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 2),
    ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"}, 1),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 64),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "0 100000\n"}, 1),
    ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100000 0\n"}, 64),
    (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:memory:/x\n",
            "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
        },
        3,
    ),
    (
        {
            "proc/self/cgroup": "3:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        64,
    ),
    ({}, 64),
]


@pytest.mark.parametrize("files, expected", QUOTAS)
def test_processors_are_bounded_by_quotas(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert processors(tmp_path) == expected


CORES = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@pytest.mark.parametrize("said, expected", [(None, 2), ("3", 3), ("5,2", 5), ("", 2), ("0", 2), ("many", 2)])
def test_without_a_setting_there_is_a_thread_for_each_core(
    said: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four processors, two on each core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for number in range(4):
        file = tmp_path / CORES.format(number)
        file.parent.mkdir(parents=True)
        file.write_text(f"{number % 2},{number % 2 + 2}\n", encoding="utf-8")
    if said is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert default_threads(tmp_path) == expected
    if said is None:
        assert default_threads(tmp_path / "a system that does not say") == 4


WORKERS = """
from contextlib import suppress
from pathlib import Path
from prelude import Engine, EngineConfig
for threads in (1, 2):
    with Engine.from_pretrained(config=EngineConfig(threads=threads, kv_bytes=1 << 22, max_length=2048)) as engine:
        engine.embed(list(range(5, 1500)), pooling="mean", cache="never")
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread of the engine may end between the list and its name
            names.append((task / "comm").read_text().strip())
    print(names.count("prelude-kernels"))
"""


@pytest.mark.skipif(processors() < 2 or sys.platform != "linux", reason="one processor, or threads without names")
def test_an_engine_has_the_threads_of_its_config() -> None:
    done = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"], "the caller is one of them"


def test_threads_are_of_cpus() -> None:
    with pytest.raises(ConfigError, match="threads=2 is of CPUs"):
        Engine.from_pretrained(device="cuda", config=EngineConfig(threads=2))
