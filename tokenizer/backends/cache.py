"""The tables of loaded files, kept in the user's cache directory: the next load reads them instead of making them.

``FOLDER/key`` has the 32 random bytes that key the digests, so that no other user can prepare a file;
``FOLDER/DIGEST`` the tables, written by this build, of the tokenizer.json of that digest. A file is used if it
belongs to this user, no other user may write it, and the digest of its contents is the one in its header; else the
tokenizer.json is loaded and the file written anew. A reader sees a whole file or none. A failure here costs time and
nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .._core import CoreTokenizer, digest, digest_file

_log = logging.getLogger("prelude.tokenizer")

LEAST = 512 << 10  # smaller files load fast enough
_MOST_BYTES = 512 << 20  # of all files in the folder; the oldest go first
_LARGEST = 1 << 30
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_OPEN |= getattr(os, "O_NONBLOCK", 0)  # a pipe in a file's place has no reader at its other end


def at(cache: bool | str | os.PathLike[str]) -> TableCache | None:
    """Return the cache for the argument ``cache`` of the loaders: a folder, True for the user's, False for none.

    ``PRELUDE_TOKENIZER_CACHE`` names another folder, or is ``off``.
    """
    if cache is False:
        return None
    if cache is not True:
        return _cache_in(Path(os.fspath(cache)))
    named = os.environ.get("PRELUDE_TOKENIZER_CACHE", "")
    if named == "off":
        return None
    if named:
        return _cache_in(Path(named))
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    try:
        base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return _cache_in(base / "prelude" / "tokenizers")


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """Log a failure, which costs time alone."""
    try:
        yield
    except (OSError, ValueError, MemoryError) as error:
        _log.debug("%s: %s", what, error)


class TableCache:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key: bytes | None = None

    def of_file(self, path: Path) -> CoreTokenizer | None:
        """Return the tables of the tokenizer.json at ``path``, if they are here; its bytes are only digested."""
        with _said("no cached tables"):
            if path.stat().st_size >= LEAST:
                key = self._secret()
                with path.open("rb", buffering=0) as file:
                    return self._read(digest_file(file.fileno(), key), key)
        return None

    def of_bytes(self, data: bytes) -> CoreTokenizer | None:
        with _said("no cached tables"):
            if len(data) >= LEAST:
                key = self._secret()
                return self._read(digest(data, key), key)
        return None

    def keep(self, data: bytes, core: CoreTokenizer) -> None:
        """Write the tables that ``core`` has made of ``data``."""
        with _said("tables not cached"):
            if len(data) >= LEAST:
                key = self._secret()
                name = digest(data, key)
                self._write(name.hex(), core.tables(key, name))
                self._thin_out()

    # ---- files

    def _read(self, name: bytes, key: bytes) -> CoreTokenizer | None:
        try:
            file = os.open(self._folder / name.hex(), _OPEN)
        except OSError:
            return None
        try:
            return CoreTokenizer.from_tables(file, _own(os.fstat(file)), key, name)
        finally:
            os.close(file)

    def _write(self, name: str, content: bytes, keep: bool = False) -> None:
        """``keep``: a file that exists is kept."""
        file, temporary = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            with os.fdopen(file, "wb") as out:
                out.write(content)
            if keep:
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, self._folder / name)
                os.unlink(temporary)
            else:
                os.replace(temporary, self._folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _thin_out(self) -> None:
        entries = [entry for entry in os.scandir(self._folder) if len(entry.name) == 32]
        room = _MOST_BYTES
        for entry in sorted(entries, key=lambda e: -e.stat(follow_symlinks=False).st_mtime_ns):
            room -= entry.stat(follow_symlinks=False).st_size
            if room < 0:
                os.unlink(entry.path)

    def _secret(self) -> bytes:
        """Return the key of the digests: this user's, of this build. Made at the first use."""
        if self._key is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _own(os.stat(self._folder, follow_symlinks=False), folder=True)
            path = self._folder / "key"
            missing = not os.path.lexists(path)
            if (random := _secret_of(path)) is None:
                self._write("key", os.urandom(32), keep=missing)
                random = _secret_of(path)
            if random is None:
                raise ValueError(f"{path} is not ours, or not a key")
            build = hashlib.blake2b(random, digest_size=64).digest()
            with open(str(sys.modules[CoreTokenizer.__module__].__file__), "rb", buffering=0) as extension:
                made_by = digest_file(extension.fileno(), build)
            self._key = hashlib.blake2b(made_by, key=random, digest_size=64).digest()
        return self._key


def _secret_of(path: Path) -> bytes | None:
    def opener(name: str, _: int) -> int:
        return os.open(name, _OPEN)

    with contextlib.suppress(OSError, ValueError), open(path, "rb", buffering=0, opener=opener) as file:
        _own(os.fstat(file.fileno()), secret=True)
        content = file.read(64)
        return content if len(content) == 32 else None
    return None


def _own(status: os.stat_result, folder: bool = False, secret: bool = False) -> int:
    """Return the size of a file that this user alone may write; ValueError for any other, or for no plain file."""
    if not (stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode)):
        raise ValueError("neither a plain file nor a folder where one is expected")
    if hasattr(os, "geteuid"):
        if status.st_uid != os.geteuid():
            raise ValueError("it belongs to another user")
        if status.st_mode & (0o077 if secret else 0o022):
            raise ValueError("others may change it" if not secret else "others may read it")
    if status.st_size > _LARGEST:
        raise ValueError("too large")
    return status.st_size


_cache_in = functools.cache(TableCache)
