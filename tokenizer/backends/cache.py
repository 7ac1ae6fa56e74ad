"""The tables of loaded files, kept in the user's cache directory: the next load reads them instead of making them.

    FOLDER/key          32 random bytes, the key of the digests: no other user can prepare a file
    FOLDER/DIGEST       the tables of the tokenizer.json whose content has this digest, written by this build

A file is used when it belongs to this user, no other user may write it, and the digest of its contents is the one
that its header says; anything else is a reason to load the tokenizer.json, and to write the file anew. Files are
written under another name and then renamed, so that a reader sees a whole one or none. A failure here costs the
time of a load from the tokenizer.json and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core import CoreTokenizer

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
        return _known(Path(os.fspath(cache)))
    named = os.environ.get("PRELUDE_TOKENIZER_CACHE", "")
    if named == "off":
        return None
    if named:
        return _known(Path(named))
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    try:
        base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return _known(base / "prelude" / "tokenizers")


_caches: dict[Path, TableCache] = {}


def _known(folder: Path) -> TableCache:
    return _caches.setdefault(folder, TableCache(folder))


class TableCache:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key: bytes | None = None

    def of_file(self, path: Path) -> CoreTokenizer | None:
        """Return the tables of the tokenizer.json at ``path``, if they are here; its bytes are only digested."""
        from .. import _core

        try:
            if path.stat().st_size < LEAST:
                return None
            key = self._secret()
            with path.open("rb", buffering=0) as file:
                digest = _core.digest_file(file.fileno(), key)
        except (OSError, ValueError) as error:
            _log.debug("no cached tables for %s: %s", path, error)
            return None
        return self._read(digest, key)

    def of_bytes(self, data: bytes) -> CoreTokenizer | None:
        from .. import _core

        if len(data) < LEAST:
            return None
        try:
            key = self._secret()
        except (OSError, ValueError) as error:
            _log.debug("no cached tables: %s", error)
            return None
        return self._read(_core.digest(data, key), key)

    def keep(self, data: bytes, core: CoreTokenizer) -> None:
        """Write the tables that ``core`` has made of ``data``."""
        from .. import _core

        if len(data) < LEAST:
            return
        try:
            key = self._secret()
            digest = _core.digest(data, key)
            self._write(digest.hex(), core.tables(key, digest))
            self._thin_out()
        except (OSError, ValueError) as error:
            _log.debug("tables not cached: %s", error)

    # ---- files

    def _read(self, digest: bytes, key: bytes) -> CoreTokenizer | None:
        from .. import _core

        path = self._folder / digest.hex()
        try:
            file = os.open(path, _OPEN)
        except OSError:
            return None
        try:
            return _core.CoreTokenizer.from_tables(file, _own(os.fstat(file)), key, digest)
        except (OSError, ValueError, MemoryError) as error:
            _log.debug("cached tables %s are not used: %s", path, error)
            return None
        finally:
            os.close(file)

    def _write(self, name: str, content: bytes, keep: bool = False) -> None:
        """``keep``: a file that exists is kept."""
        import tempfile

        file, temporary = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            with os.fdopen(file, "wb", buffering=0) as out:
                view = memoryview(content)
                while view:
                    view = view[out.write(view) or 0 :]
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
            from .. import _core

            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _own(os.stat(self._folder, follow_symlinks=False), folder=True)
            path = self._folder / "key"
            random = _secret_of(path)
            if random is None:
                self._write("key", os.urandom(32), keep=not os.path.lexists(path))
                random = _secret_of(path)
            if random is None:
                raise ValueError(f"{path} is not ours, or not a key")
            build = hashlib.blake2b(random, digest_size=64).digest()
            with open(_core.__file__, "rb", buffering=0) as extension:
                made_by = _core.digest_file(extension.fileno(), build)
            self._key = hashlib.blake2b(made_by, key=random, digest_size=64).digest()
        return self._key


def _secret_of(path: Path) -> bytes | None:
    try:
        file = os.open(path, _OPEN)
    except OSError:
        return None
    try:
        _own(os.fstat(file), secret=True)
        content = os.read(file, 64)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    return content if len(content) == 32 else None


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
