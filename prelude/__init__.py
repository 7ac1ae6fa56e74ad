"""Prelude: an inference engine inside your process, for decisions and chat on one set of weights.

Importing this package is quick. torch is imported for a GPU and for several ranks alone.
"""

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
    from prelude.errors import (
        BulkError,
        CalibrationError,
        CheckpointError,
        ConfigError,
        DeadlineExceeded,
        DeviceLost,
        DeviceUnavailable,
        EngineClosed,
        EngineForked,
        ExecutionError,
        ExecutorLost,
        InsufficientMemory,
        InvalidRequest,
        ModelError,
        Overloaded,
        PreludeError,
        PromptTooLong,
        QueueFull,
        RankLost,
        RecipeError,
        RequestCancelled,
        RequestTooLarge,
        TemplateError,
        TraceError,
        UnknownParameter,
        UnsupportedModel,
        WrongUse,
    )
    from prelude.fitting.question import FittedQuestion
    from prelude.loading.open import serve_rank
    from prelude.results import (
        Answer,
        Answers,
        AskedQuestion,
        Chunk,
        Classification,
        Completion,
        Embedding,
        Explanation,
        GuardAnswer,
        GuardResult,
        LoglikelihoodResult,
        PromptLogprobsResult,
        RankedDocument,
        Ranking,
        RequestStats,
        RerankResult,
        RewardResult,
        SampledLogprob,
        TokenClassification,
        TokenLogprob,
    )
    from prelude.runtime.events import Event
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
    from prelude.values.config import EngineConfig
    from prelude.values.options import RequestOptions

_PUBLIC = {
    "prelude.values.config": ("EngineConfig",),
    "prelude.admission.template": ("DecisionTemplate",),
    "prelude.api.base": ("Health", "ModelInfo"),
    "prelude.api.windows": ("Mapped",),
    "prelude.calibration.calibrator": ("Calibrator", "PriorCorrection"),
    "prelude.api.engine": ("AsyncEngine", "Engine"),
    "prelude.errors": (
        "BulkError",
        "CalibrationError",
        "CheckpointError",
        "ConfigError",
        "DeadlineExceeded",
        "DeviceLost",
        "DeviceUnavailable",
        "EngineClosed",
        "EngineForked",
        "ExecutionError",
        "ExecutorLost",
        "InsufficientMemory",
        "InvalidRequest",
        "ModelError",
        "Overloaded",
        "PreludeError",
        "PromptTooLong",
        "QueueFull",
        "RankLost",
        "RecipeError",
        "RequestCancelled",
        "RequestTooLarge",
        "TemplateError",
        "TraceError",
        "UnknownParameter",
        "UnsupportedModel",
        "WrongUse",
    ),
    "prelude.fitting.question": ("FittedQuestion",),
    "prelude.loading.open": ("serve_rank",),
    "prelude.runtime.events": ("Event",),
    "prelude.values.options": ("RequestOptions",),
    "prelude.results": (
        "Answer",
        "Answers",
        "AskedQuestion",
        "Chunk",
        "Classification",
        "Completion",
        "Embedding",
        "Explanation",
        "GuardAnswer",
        "GuardResult",
        "LoglikelihoodResult",
        "PromptLogprobsResult",
        "RankedDocument",
        "Ranking",
        "RequestStats",
        "RerankResult",
        "RewardResult",
        "SampledLogprob",
        "TokenClassification",
        "TokenLogprob",
    ),
    "prelude.tasks": (
        "Choice",
        "Classify",
        "ClassifyTokens",
        "Decide",
        "Embed",
        "Generate",
        "Guard",
        "Loglikelihood",
        "Noul",
        "PromptLogprobs",
        "Rerank",
        "Reward",
        "SamplingParams",
        "Score",
        "YesNo",
    ),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "Answer",
    "Answers",
    "AskedQuestion",
    "AsyncEngine",
    "BulkError",
    "CalibrationError",
    "Calibrator",
    "CheckpointError",
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
    "DeviceLost",
    "DeviceUnavailable",
    "Embed",
    "Embedding",
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "EngineForked",
    "Event",
    "ExecutionError",
    "ExecutorLost",
    "Explanation",
    "FittedQuestion",
    "Generate",
    "Guard",
    "GuardAnswer",
    "GuardResult",
    "Health",
    "InsufficientMemory",
    "InvalidRequest",
    "Loglikelihood",
    "LoglikelihoodResult",
    "Mapped",
    "ModelError",
    "ModelInfo",
    "Noul",
    "Overloaded",
    "PreludeError",
    "PriorCorrection",
    "PromptLogprobs",
    "PromptLogprobsResult",
    "PromptTooLong",
    "QueueFull",
    "RankLost",
    "RankedDocument",
    "Ranking",
    "RecipeError",
    "RequestCancelled",
    "RequestOptions",
    "RequestStats",
    "RequestTooLarge",
    "Rerank",
    "RerankResult",
    "Reward",
    "RewardResult",
    "SampledLogprob",
    "SamplingParams",
    "Score",
    "TemplateError",
    "TokenClassification",
    "TokenLogprob",
    "TraceError",
    "UnknownParameter",
    "UnsupportedModel",
    "WrongUse",
    "YesNo",
    "__version__",
    "serve_rank",
]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'prelude' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
