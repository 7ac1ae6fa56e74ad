"""Runs functions on jobs in processes that are limited and measured: each job in one of its own.

    with TemplateChild() as child:
        found = child.render(template, messages)     {"pieces" or "error", "seconds", "megabytes"}

A process is forked for each job from one that has everything imported. It may use 256 MB more of address space than
that, and ``CPU_SECONDS`` of processor time. One that was killed before it answered has ``error`` "killed".
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

MEGABYTES = 256
CPU_SECONDS = 10


class TemplateChild:
    def __init__(self, function: str = "tests.tokenizer.template_child:rendered") -> None:
        """``function`` is a generator of dicts, which are put together; it stands in ``module:name``."""
        command = [sys.executable, "-W", "ignore", "-m", "tests.tokenizer.template_child", function]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> TemplateChild:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def render(self, template: str, messages: Any = None, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"template": template, "messages": messages or [{"role": "user", "content": "Hello!"}], **arguments}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def rendered(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The result of ``render_segments`` for a job, and its time and memory."""
    from prelude.tokenizer import chat

    template, messages = job.pop("template"), job.pop("messages")
    if bounds := job.pop("bounds", None):
        job["bounds"] = chat.Bounds(**bounds)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found: dict[str, Any] = {"pieces": chat.render_segments(messages, template, **job)}
    except Exception as error:
        found = {"error": type(error).__name__, "message": str(error)[:600]}
    except BaseException as error:
        found = {"error": f"not an Exception: {type(error).__name__}"}
    after = resource.getrusage(resource.RUSAGE_SELF)
    yield {**found, "megabytes": (after.ru_maxrss - before) / 1024, "seconds": after.ru_utime + after.ru_stime}


def _serve(name: str) -> None:
    module, _, function = name.partition(":")
    run = getattr(importlib.import_module(module), function)
    list(run({"template": "{{ messages | tojson(indent=1) }}", "messages": [{"role": "user", "content": "x"}]}))
    for line in sys.stdin:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            code = 1
            try:
                _limit()
                for found in run(json.loads(line)):
                    os.write(write, json.dumps(found).encode() + b"\n")
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        answer: dict[str, Any] = {"error": "killed", "megabytes": 0, "seconds": CPU_SECONDS}
        with os.fdopen(read, "rb") as pipe:
            for index, found in enumerate(pipe):
                answer = {**({} if index == 0 else answer), **json.loads(found)}
        os.waitpid(pid, 0)
        print(json.dumps(answer), flush=True)


def _limit() -> None:
    with open("/proc/self/statm", encoding="utf-8") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (MEGABYTES << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


if __name__ == "__main__":
    _serve(sys.argv[1])
