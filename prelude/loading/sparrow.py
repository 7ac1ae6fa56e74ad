"""From a ``*.sparrow`` file to a running engine."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prelude.errors import ConfigError, ModelError
from prelude.values.config import EngineConfig

if TYPE_CHECKING:
    from prelude.admission.preparer import Preparer
    from prelude.runtime.core import EngineCore

log = logging.getLogger("prelude.engine")


def load_sparrow(
    model: str | os.PathLike[str], device: str, dtype: str, config: EngineConfig
) -> tuple[EngineCore, Preparer, Path, float]:
    """As ``loading.Parts``. Raises ``ModelError`` for the file, ``ConfigError`` for a setting that such a model does
    not have."""
    from prelude.admission.preparer import Preparer
    from prelude.cpu.sparrow import SparrowExecutor
    from prelude.models.sparrow import read_sparrow
    from prelude.runtime.assembly import make_core
    from prelude.runtime.core import EngineCore
    from prelude.tokenizer import Tokenizer
    from prelude.tokenizer.errors import TokenizerError

    began = time.perf_counter()
    if device == "cuda" or dtype == "bfloat16" or config.quantization is not None or config.threads is not None:
        raise ConfigError(
            f"{model}: computed on a CPU in float32 by numpy; leave device={device!r}, dtype={dtype!r}, "
            f"quantization={config.quantization!r} and threads={config.threads!r} at their defaults"
        )
    if config.tensor_parallel > 1:
        raise ConfigError(f"{model}: a model of this size is not divided; leave tensor_parallel at 1")
    found = read_sparrow(model)
    executor = SparrowExecutor(found)
    path = Path(os.path.abspath(os.fspath(model)))
    try:
        tokenizer = Tokenizer.from_str(found.tokenizer_json())
    except TokenizerError as failure:
        raise ModelError(f"{model}: tokenizer.json: {failure}") from failure
    preparer = Preparer(tokenizer, executor.limits(), config, options=found.settings(), model=str(path))
    core = make_core(EngineCore, executor, config)
    seconds = time.perf_counter() - began
    log.info("loaded %s (%s) in %.3f s: float32 on cpu", os.fspath(model), found.name, seconds)
    return core, preparer, path, seconds
