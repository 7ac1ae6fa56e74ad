"""Reading a file that another user may have put there: a plain file, of bounded size, without waiting for a pipe.

Opening some devices has effects, so the kind of the file is looked at before it is opened, and again on the open
descriptor, because the file may have been replaced in between.
"""

from __future__ import annotations

import errno
import os
import stat

TOKENIZER_LIMIT = 256 << 20
"""Bytes of a tokenizer.json or of a rank file; the largest that we know has 34 MB."""
SETTINGS_LIMIT = 16 << 20
"""Bytes of a tokenizer_config.json or a special_tokens_map.json; the largest that we know has 1 MB."""
TEMPLATE_LIMIT = 1 << 20
"""Bytes of a chat_template.jinja; the largest that we know has 50 KB."""

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_plain(path: str | os.PathLike[str]) -> int:
    """A descriptor on ``path``, owned by the caller. ``OSError`` if it is no plain file or cannot be opened."""
    _require_plain(os.stat(path), path)
    descriptor = os.open(path, _FLAGS)
    try:
        _require_plain(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of the plain file ``path``. ``OSError`` if it has more than ``limit`` bytes, too."""
    with open(open_plain(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than the limit of {limit:,} bytes", os.fspath(path))
    return data


def _require_plain(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory, not a regular file", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
