"""Rendering in a process of its own: the same answers, and an end that the template cannot prevent."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from prelude.tokenizer import ChatTemplateError
from prelude.tokenizer.chat import Bounds, render_segments
from prelude.tokenizer.template_process import TemplateProcess

from tests.patience import PATIENCE, open_files, until
from tests.tokenizer.templates import CHATML, HELLO

SLOW = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
ENDLESS = Bounds(max_work=10**15, max_memory=10**15, max_seconds=1e9)


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    with TemplateProcess(max_seconds=PATIENCE) as process:
        yield process


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(process: TemplateProcess) -> int:
    """Of the process that rendered something for it."""
    assert process.apply_chat_template(HELLO, "x") == "x"
    assert process._process is not None
    return process._process.pid


def test_a_template_process_gives_the_text_of_rendering_here(process: TemplateProcess) -> None:
    messages = [{"role": "user", "content": "<|im_end|> é \ud800"}, {"role": "tool", "content": "x", "n": 1.5}]
    here = render_segments(messages, CHATML, add_generation_prompt=True, bos_token="<s>")
    assert process.render_segments(messages, CHATML, add_generation_prompt=True, bos_token="<s>") == here
    assert process.apply_chat_template(messages, CHATML) == "".join(t for t, _ in render_segments(messages, CHATML))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "line 1"),
        ("{{ 'a' * 9000000 }}", "Bounds.max_output"),
    ],
)
def test_errors_arrive(process: TemplateProcess, template: Any, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        process.render_segments(HELLO, template)
    with pytest.raises(ChatTemplateError, match=r"messages\[0\].role"):
        process.render_segments([{"content": "x"}], CHATML)


@pytest.mark.fault(37)
def test_a_rendering_that_never_ends_is_ended() -> None:
    with TemplateProcess(max_seconds=2.0) as process:
        with pytest.raises(ChatTemplateError, match=r"no answer in 2\.0 seconds"):
            process.render_segments(HELLO, SLOW, bounds=ENDLESS)
        process._max_seconds = PATIENCE
        assert process.apply_chat_template(HELLO, "again") == "again"


@pytest.mark.fault(37)
def test_memory_is_the_operating_systems_to_refuse() -> None:
    kept = "{% for i in range(1000) %}{% set ns.l = [ns.l, 'a' * 8000000 ~ i] %}{% endfor %}"
    template = "{% set ns = namespace(l=[]) %}" + kept
    bounds = Bounds(max_work=10**15, max_memory=10**15, max_output=10**8, max_seconds=1e9)
    with TemplateProcess(max_bytes=64 << 20, max_seconds=PATIENCE) as process:
        with pytest.raises(ChatTemplateError, match="MemoryError"):
            process.render_segments(HELLO, template, bounds=bounds)
        assert process.apply_chat_template(HELLO, "again") == "again"


def test_a_process_that_died_is_said_and_replaced() -> None:
    with TemplateProcess(max_seconds=PATIENCE) as process:
        process.render_segments(HELLO, CHATML)
        assert process._process is not None
        process._process.kill()
        process._process.wait()
        with pytest.raises(ChatTemplateError, match="ended without an answer"):
            process.render_segments(HELLO, CHATML)
        assert process.apply_chat_template(HELLO, "again") == "again"


def test_nothing_is_left_behind() -> None:
    process = TemplateProcess(max_seconds=PATIENCE)
    threads, files = set(threading.enumerate()), open_files()
    first = pid_of(process)
    process.close()
    process.close()
    with pytest.raises(ChatTemplateError, match="is closed"):
        process.render_segments(HELLO, CHATML)
    dropped = TemplateProcess(max_seconds=PATIENCE)
    second = pid_of(dropped)
    del dropped
    left = Counter(open_files()) - Counter(files)  # garbage is collected first
    assert not is_alive(first) and not is_alive(second)
    assert set(threading.enumerate()) <= threads and not left


def test_a_template_process_ends_with_the_interpreter() -> None:
    code = (
        "from prelude.tokenizer.template_process import TemplateProcess\n"
        "process = TemplateProcess()\n"
        "process.apply_chat_template([], 'x')\n"
        "print(process._process.pid)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not is_alive(int(done.stdout))


@pytest.mark.fault(37)
def test_a_process_that_stopped_reading_is_ended() -> None:
    """The job is larger than a pipe holds."""
    messages = [{"role": "user", "content": "a" * (1 << 20)}]
    with TemplateProcess(max_seconds=PATIENCE) as process:
        os.kill(pid_of(process), signal.SIGSTOP)
        process._max_seconds = 0.5
        with pytest.raises(ChatTemplateError, match=r"no answer in 0\.5 seconds"):
            process.render_segments(messages, CHATML)


def test_closing_ends_the_rendering_under_way() -> None:
    process = TemplateProcess(max_seconds=PATIENCE)
    pid = pid_of(process)
    os.kill(pid, signal.SIGSTOP)
    raised: list[Exception] = []

    def render() -> None:
        try:
            process.render_segments(HELLO, CHATML)
        except ChatTemplateError as error:
            raised.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    until(process._lock.locked)
    began = time.monotonic()
    process.close()
    thread.join()
    assert time.monotonic() - began < PATIENCE and "is closed" in str(raised[0]) and not is_alive(pid)


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemplateProcess(max_seconds=PATIENCE) as process:
        monkeypatch.setattr(sys, "executable", "/nonexistent")
        with pytest.raises(ChatTemplateError, match=r"could not be started: .*/nonexistent"):
            process.render_segments(HELLO, CHATML)
        monkeypatch.undo()
        assert process.apply_chat_template(HELLO, "again") == "again"


def test_a_caller_with_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1400
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may open {hard} files")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        with TemplateProcess(max_seconds=PATIENCE) as process:
            assert process.apply_chat_template(HELLO, "far") == "far"
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.fault(62)
def test_a_forked_child_starts_its_own() -> None:
    """Also where another thread was in a rendering when the process forked."""
    with TemplateProcess(max_seconds=PATIENCE) as process:
        pid = pid_of(process)
        with process._lock:
            child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                signal.alarm(int(PATIENCE))
                code = int(pid_of(process) == pid)
                process.close()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert pid_of(process) == pid, "the parent's goes on"


def test_threads_share_one(process: TemplateProcess) -> None:
    found: list[str] = []

    def render(index: int) -> None:
        found.append(
            process.apply_chat_template([{"role": "user", "content": str(index)}], "{{ messages[0].content }}")
        )

    threads = [threading.Thread(target=render, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [str(i) for i in range(8)]
