"""Which backend serves a file: the native core, the native core over the ``regex`` package, or HF ``tokenizers``.

The first that can serve the file exactly is taken. A backend that cannot raises ``UnsupportedFeature`` and the
next is tried; the meaning of a file is never changed to make it fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from .._core import CoreTokenizer, UnsupportedFeature
from ..errors import TokenizerError, TokenizerFileError
from .files import TOKENIZER_LIMIT, read_plain
from .reference import ReferenceCore

if TYPE_CHECKING:
    from .cache import TableCache

    Core = CoreTokenizer | ReferenceCore

_log = logging.getLogger("prelude.tokenizer")


def load(
    data: bytes | Path, cache: TableCache | None = None, convert: Callable[[], bytes] | None = None
) -> tuple[Core, str]:
    """(core, backend name) for a tokenizer.json, its bytes or its path; a log line when it is not the native backend.

    ``convert`` makes the tokenizer.json if ``data`` is not one but says all that goes into it: kept tables are
    found by ``data``.
    """
    if cache is not None:
        known = cache.of_file(data) if isinstance(data, Path) else cache.of_bytes(data)
        if known is not None:
            return known, "native"
    if isinstance(data, Path):
        data = read_plain(data, TOKENIZER_LIMIT)
    core, backend, reason = _load(data if convert is None else convert())
    if backend != "native":
        _log.info("backend %s: %s", backend, reason)
    elif cache is not None:
        cache.keep(data, cast(CoreTokenizer, core))
    return core, backend


def _load(data: bytes) -> tuple[Core, str, str]:
    try:
        return CoreTokenizer.from_json(data), "native", ""
    except UnsupportedFeature as error:
        reason = f"{error.feature} at {error.path}"
        if error.kind == "regex":
            served = _over_regex(data)
            if served is not None:
                return served, "native+regex", reason
        return ReferenceCore(data, reason), "reference", reason


def _over_regex(data: bytes) -> Core | None:
    from .. import _core as native
    from .splitter import matcher

    try:
        core: Core = CoreTokenizer.from_json(data, matcher(native))
    except TokenizerFileError:
        raise  # a malformed file is malformed for every backend
    except (ImportError, TokenizerError) as error:
        _log.debug("not over the regex package: %s", error)
        return None
    return core
