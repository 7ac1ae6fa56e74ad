"""Which backend serves a file: the native core or, if it raises ``UnsupportedFeature``, HF ``tokenizers``.

The meaning of a file is never changed to make it fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .._core import CoreTokenizer, UnsupportedFeature
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
    made = data if convert is None else convert()
    try:
        core = CoreTokenizer.from_json(made)
    except UnsupportedFeature as error:
        reason = f"{error.feature} at {error.path}"
        _log.info("backend reference: %s", reason)
        return ReferenceCore(made, reason), "reference"
    if cache is not None:
        cache.keep(data, core)
    return core, "native"
