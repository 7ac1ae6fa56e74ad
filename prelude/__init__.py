"""Prelude: an inference engine inside your process, for decisions and chat on one set of weights.

Importing this package is quick. torch is imported for a GPU and for several ranks alone."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

# A checkout on sys.path must not hide the built parts of an installed wheel.
__path__ = pkgutil.extend_path(__path__, __name__)

__version__ = "0.1.0"  # the one place: the package metadata and `prelude --version` read it

if TYPE_CHECKING:
    from prelude.admission.template import DecisionTemplate
    from prelude.api.base import Health, ModelInfo
    from prelude.api.engine import AsyncEngine, Engine
    from prelude.api.windows import Mapped
    from prelude.calibration.calibrator import Calibrator, PriorCorrection
    from prelude.errors import *  # noqa: F403
    from prelude.errors import (
        ConfigError,
        DeadlineExceeded,
        EngineClosed,
        ExecutionError,
        InvalidRequest,
        ModelError,
        PreludeError,
        QueueFull,
    )
    from prelude.fitting.question import FittedQuestion
    from prelude.loading.open import serve_rank
    from prelude.results import *  # noqa: F403
    from prelude.results import Answer, Answers, Chunk, Classification, Completion, Embedding, RequestStats
    from prelude.runtime.events import Event
    from prelude.tasks import *  # noqa: F403
    from prelude.tasks import (
        Choice,
        Classify,
        ClassifyTokens,
        Decide,
        Embed,
        Generate,
        Guard,
        Loglikelihood,
        Noul,
        PromptLogprobs,
        Rerank,
        Reward,
        SamplingParams,
        Score,
        YesNo,
    )
    from prelude.values.config import EngineConfig, ExpertConfig
    from prelude.values.options import RequestOptions

_PUBLIC = {
    "prelude.values.config": ("EngineConfig", "ExpertConfig"),
    "prelude.admission.template": ("DecisionTemplate",),
    "prelude.api.base": ("Health", "ModelInfo"),
    "prelude.api.windows": ("Mapped",),
    "prelude.calibration.calibrator": ("Calibrator", "PriorCorrection"),
    "prelude.api.engine": ("AsyncEngine",),
    "prelude.api.sync": ("Engine",),
    "prelude.fitting.question": ("FittedQuestion",),
    "prelude.loading.open": ("serve_rank",),
    "prelude.runtime.events": ("Event",),
    "prelude.values.options": ("RequestOptions",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
_WHOLE = ("prelude.errors", "prelude.results", "prelude.tasks")  # modules whose every class is a name of this one

__all__ = [
    "Answer",
    "Answers",
    "AsyncEngine",
    "Calibrator",
    "Choice",
    "Chunk",
    "Classification",
    "Classify",
    "ClassifyTokens",
    "Completion",
    "ConfigError",
    "DeadlineExceeded",
    "Decide",
    "DecisionTemplate",
    "Embed",
    "Embedding",
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "Event",
    "ExecutionError",
    "ExpertConfig",
    "FittedQuestion",
    "Generate",
    "Guard",
    "Health",
    "InvalidRequest",
    "Loglikelihood",
    "Mapped",
    "ModelError",
    "ModelInfo",
    "Noul",
    "PreludeError",
    "PriorCorrection",
    "PromptLogprobs",
    "QueueFull",
    "RequestOptions",
    "RequestStats",
    "Rerank",
    "Reward",
    "SamplingParams",
    "Score",
    "YesNo",
    "__version__",
    "serve_rank",
]


def __getattr__(name: str) -> Any:
    for module in (_HOME[name],) if name in _HOME else _WHOLE if name[:1].isupper() else ():
        value = getattr(importlib.import_module(module), name, None)
        if name in _HOME or (isinstance(value, type) and value.__module__.startswith("prelude.")):
            globals()[name] = value
            return value
    raise AttributeError(f"module 'prelude' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
