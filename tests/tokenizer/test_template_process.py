"""Rendering in a process of its own: the same answers, and an end that the template cannot prevent."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prelude.tokenizer import ChatTemplateError
from prelude.tokenizer.chat import Bounds, render_segments
from prelude.tokenizer.template_process import TemplateProcess

from tests.patience import PATIENCE
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


def test_it_gives_what_rendering_here_gives(process: TemplateProcess) -> None:
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
        with pytest.raises(ChatTemplateError, match=r"more than 2\.0 seconds"):
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
    threads = threading.active_count()
    process.render_segments(HELLO, CHATML)
    assert process._process is not None
    first = process._process.pid
    process.close()
    process.close()
    process.render_segments(HELLO, CHATML)
    second = process._process.pid
    del process
    gc.collect()
    assert not is_alive(first) and not is_alive(second)
    assert threading.active_count() == threads


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
