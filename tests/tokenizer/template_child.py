"""Renders chat templates in processes that are limited and measured.

    with TemplateChild() as child:
        found = child.render(template, messages)     {"text" or "error", "seconds", "megabytes"}

Each rendering has a process of its own, forked from one that has everything imported: 256 MB more of address space
than that, and ``CPU_SECONDS`` of processor time. It reports how it ended. One that was killed has ``error`` "killed".
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

MEGABYTES = 256
CPU_SECONDS = 10


class TemplateChild:
    def __init__(self, python: str = sys.executable, module: str = "prelude.tokenizer.chat") -> None:
        command = [python, "-m", "tests.tokenizer.template_child", module]
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


def _serve(module: str) -> None:
    import importlib

    chat = importlib.import_module(module)
    chat.apply_chat_template([{"role": "user", "content": "x"}], "{{ messages | tojson(indent=1) }}")
    for line in sys.stdin:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            code = 1
            try:
                os.write(write, json.dumps(_limited(chat, json.loads(line))).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read()
        _, _, usage = os.wait4(pid, 0)
        found = json.loads(answer) if answer else {"error": "killed", "megabytes": 0}
        print(json.dumps({**found, "seconds": usage.ru_utime + usage.ru_stime}), flush=True)


def _limited(chat: Any, job: dict[str, Any]) -> dict[str, Any]:
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (MEGABYTES << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    template, messages = job.pop("template"), job.pop("messages")
    if bounds := job.pop("bounds", None):
        job["bounds"] = chat.Bounds(**bounds)
    try:
        pieces = chat.render_segments(messages, template, **job)
        found: dict[str, Any] = {"pieces": [[len(text), trusted] for text, trusted in pieces[:100]]}
    except Exception as error:
        found = {"error": type(error).__name__, "message": str(error)[:600]}
    except BaseException as error:
        found = {"error": f"not an Exception: {type(error).__name__}"}
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**found, "megabytes": (after - before) / 1024}


if __name__ == "__main__":
    _serve(sys.argv[1])
