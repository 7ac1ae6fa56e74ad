"""Chat templates rendered in a process of their own, for files that are not trusted.

    with TemplateProcess() as process:
        pieces = process.render_segments(messages, template, add_generation_prompt=True)

The bounds of a rendering hold without this: each operation is charged before it runs. The process is for callers that
do not want to rely on that alone. The operating system bounds its memory, the caller ends it when it does not answer
in time, and a template that found a way out of the sandbox would be in a process that has read nothing but its jobs.

The object owns the process: it starts with the first rendering, serves one after the other, is started again after it
was ended, and ends with ``close`` or with the object. A forked child of the caller leaves the parent's process alone
and starts one of its own. Jobs and answers are JSON, so tuples arrive as lists and keys of dicts as strings.
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
    """``max_bytes``: address space that renderings may use beyond that of the process after its start.
    ``max_seconds``: time on the clock from a call to its answer; the process is killed when they are over, so it is
    well above ``Bounds.max_seconds``, which is processor time. Any thread may call; calls wait for each other. Linux
    only: the address space is read in /proc."""

    def __init__(self, *, max_bytes: int = 256 << 20, max_seconds: float = 30.0) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        _ALIVE.add(self)

    def __enter__(self) -> TemplateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._closed

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
        where the process was ended, could not be started, or is closed."""
        limits = bounds or Bounds()
        job = plain_arguments({"messages": messages, "chat_template": chat_template, **options}, Rendering(limits))
        answer = self._ask(json.dumps({**job, "bounds": asdict(limits)}).encode())
        if "error" in answer:
            raise ChatTemplateError(str(answer["error"]))
        return [(str(text), bool(trusted)) for text, trusted in answer["pieces"]]

    def close(self) -> None:
        """End the process, with the rendering that it is at. Every later rendering raises ``ChatTemplateError``."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # a rendering holds the lock until it has its answer
        with self._lock:
            self._stop()

    def _ask(self, job: bytes) -> Any:
        with self._lock:
            deadline = time.monotonic() + self._max_seconds
            try:
                process = self._started()
                _write(process.stdin, _SIZE.pack(len(job)) + job, deadline)
                (size,) = _SIZE.unpack(_read(process.stdout, _SIZE.size, deadline))
                if size > MAX_ANSWER:
                    raise EOFError
                return json.loads(_read(process.stdout, size, deadline))
            except TimeoutError:
                failure = f"gave no answer in {self._max_seconds} seconds and was ended"
            except (EOFError, OSError, ValueError) as error:
                started = self._process is not None
                failure = "ended without an answer" if started else f"could not be started: {error}"
                failure = "is closed" if self._closed else failure
            except BaseException:  # an unread rest would be taken for the next answer
                self._stop()
                raise
            self._stop()
        raise ChatTemplateError(f"the chat template's process {failure}")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None and not self._closed:
            command = [sys.executable, "-c", _START, json.dumps(sys.path), str(self._max_bytes)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            self._end = weakref.finalize(self, _ended, process)
            self._process = process
        if self._closed or self._process is None:  # ``close`` may have come before it could see the process
            raise EOFError
        return self._process

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def _forked(self) -> None:
        """In a forked child: the process is the parent's, and a thread that held the lock is not there."""
        if self._end is not None:
            self._end.detach()
        if self._process is not None:
            _close_pipes(self._process)
        self._process = self._end = None
        self._lock = threading.Lock()


_ALIVE: weakref.WeakSet[TemplateProcess] = weakref.WeakSet()


def _in_child() -> None:
    for process in list(_ALIVE):
        process._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _write(pipe: Any, data: bytes, deadline: float) -> None:
    """A process that stopped reading cannot keep its caller: ``pipe`` is made one that does not block."""
    os.set_blocking(pipe.fileno(), False)
    left = memoryview(data)
    while left:
        _wait(pipe, select.POLLOUT, deadline)
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(pipe.fileno(), left) :]


def _read(pipe: Any, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        _wait(pipe, select.POLLIN, deadline)
        part = os.read(pipe.fileno(), min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _wait(pipe: Any, event: int, deadline: float) -> None:
    """Raises ``TimeoutError``. ``select.select`` takes no file above the 1,024th of a process."""
    poll = select.poll()
    poll.register(pipe, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError


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
        return {"error": "MemoryError: the chat template does not fit into the memory of its process"}
    except Exception as error:
        return {"error": str(error)[:2000]}


def _answer(pipe: BinaryIO, answer: bytes) -> None:
    pipe.write(_SIZE.pack(len(answer)) + answer)
    pipe.flush()


def _limit_memory(max_bytes: int) -> None:
    import resource

    with open("/proc/self/statm", encoding="utf-8") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + max_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
