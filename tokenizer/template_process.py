"""Chat templates rendered in a process of their own, for files that are not trusted.

    with TemplateProcess() as process:
        pieces = process.render_segments(messages, template, add_generation_prompt=True)

The bounds of a rendering hold without this: each operation is charged before it runs. The process is for those who do
not want to rely on that alone. The operating system bounds its memory, the caller ends it when it does not answer in
time, and a template that found a way out of the sandbox would be in a process that has read nothing but its jobs.

The object owns the process: it starts with the first rendering, serves one after the other, is started again after it
was ended, and ends with ``close``. Jobs and answers are JSON, so tuples arrive as lists and keys of dicts as strings.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from ._limits import Bounds, Rendering
from .chat import plain_arguments, render_segments
from .errors import ChatTemplateError

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from prelude.tokenizer.template_process import serve; serve(int(sys.argv[2]))"
)
_SIZE = struct.Struct("<Q")
MAX_ANSWER = 1 << 29  # bytes


class TemplateProcess:
    """``max_bytes``: address space that renderings may use beyond what the process has once it has started.
    ``max_seconds``: time on the clock from a call to its answer; the process is killed when they are over, so it is
    well above ``Bounds.max_seconds``, which is processor time. Any thread may call; calls wait for each other. A
    forked child of the caller starts a process of its own. POSIX only."""

    def __init__(self, *, max_bytes: int = 256 << 20, max_seconds: float = 30.0) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._end: Any = None

    def __enter__(self) -> TemplateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def apply_chat_template(self, messages: Sequence[Any], chat_template: str | None = None, **options: Any) -> str:
        """As ``prelude.tokenizer.chat.apply_chat_template``, with the same options."""
        return "".join(text for text, _ in self.render_segments(messages, chat_template, **options))

    def render_segments(
        self,
        messages: Sequence[Any],
        chat_template: str | None = None,
        *,
        bounds: Bounds | None = None,
        **options: Any,
    ) -> list[tuple[str, bool]]:
        """As ``prelude.tokenizer.chat.render_segments``, with the same options. Raises ``ChatTemplateError`` also
        where the process was ended."""
        limits = bounds or Bounds()
        job = plain_arguments({"messages": messages, "chat_template": chat_template, **options}, Rendering(limits))
        answer = self._ask(json.dumps({**job, "bounds": asdict(limits)}).encode())
        if "error" in answer:
            raise ChatTemplateError(str(answer["error"]))
        return [(str(text), bool(trusted)) for text, trusted in answer["pieces"]]

    def close(self) -> None:
        """End the process. A later rendering starts another."""
        with self._lock:
            self._stop()

    def _ask(self, job: bytes) -> Any:
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            deadline = time.monotonic() + self._max_seconds
            try:
                process.stdin.write(_SIZE.pack(len(job)) + job)
                process.stdin.flush()
                (size,) = _SIZE.unpack(_read(process.stdout, _SIZE.size, deadline))
                if size > MAX_ANSWER:
                    raise EOFError
                return json.loads(_read(process.stdout, size, deadline))
            except TimeoutError:
                failure = f"it took more than {self._max_seconds} seconds"
            except (EOFError, OSError, ValueError):
                failure = "it ended without an answer"
            except BaseException:  # what was left unread would be taken for the next answer
                self._stop()
                raise
            self._stop()
        raise ChatTemplateError(f"the process that rendered the chat template was ended: {failure}")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            command = [sys.executable, "-c", _START, json.dumps(sys.path), str(self._max_bytes)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            self._owner = os.getpid()
            self._end = weakref.finalize(self, _ended, self._process, self._owner)
        return self._process

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _ended(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # bytes that were not taken
                pipe.close()


def _read(pipe: Any, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise TimeoutError
        part = os.read(pipe.fileno(), min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


# ---- in the process


def serve(max_bytes: int) -> None:
    """Answer the jobs on standard input until it ends."""
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    render_segments([], "{{ messages | tojson(indent=1) }}")  # all that is imported late
    _limit_memory(max_bytes)
    while head := jobs.read(_SIZE.size):
        _answer(answers, json.dumps(_rendered(jobs.read(_SIZE.unpack(head)[0]))).encode())


def _rendered(job: bytes) -> dict[str, Any]:
    try:
        given = json.loads(job)
        bounds = Bounds(**given.pop("bounds"))
        return {"pieces": render_segments(given.pop("messages"), given.pop("chat_template"), bounds=bounds, **given)}
    except MemoryError:
        return {"error": "the chat template's messages do not fit into the memory of its process"}
    except Exception as error:
        return {"error": str(error)[:2000]}


def _answer(pipe: BinaryIO, answer: bytes) -> None:
    pipe.write(_SIZE.pack(len(answer)) + answer)
    pipe.flush()


def _limit_memory(max_bytes: int) -> None:
    import resource

    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + max_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
