"""DSPy: ``dspy.configure(lm=PreludeDecisions(engine))``.

Fields of type bool, ``Literal`` and ``dspy.experimental.Score`` are decisions; every output field of a signature has
to be one.

pip install 'prelude-engine[dspy]' (dspy 3.4; decision requests are marked experimental there). This module imports
no dspy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prelude.integrations.engines import system_one

_PRIVATE = frozenset(["type", "choice", "score", "legend"])


class PreludeDecisions:
    """The object that DSPy takes for a decision service, over an engine of either kind. Any number of threads and
    loops may use it. ``history`` stays empty: DSPy's own callbacks see the calls."""

    supports_decision_requests = True

    def __init__(self, engine: Any, **options: Any) -> None:
        self._one = system_one(engine, **options)
        self.callbacks: list[Any] = []
        self.history: list[Any] = []

    @property
    def model(self) -> str:
        return self._one.name

    def __call__(self, state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
        return _answers(self._one.answer({"state": state, "questions": questions}))

    async def acall(self, state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
        return _answers(await self._one.aanswer({"state": state, "questions": questions}))


def _answers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Probabilities and confidence: labels, cuts and thresholds are DSPy's."""
    found = {}
    for name, answer in body["answers"].items():
        kept = {key: value for key, value in answer.items() if key not in _PRIVATE and not key.startswith("x_")}
        if answer["type"] == "score":
            kept["probabilities"] = {int(level): share for level, share in answer["probabilities"].items()}
        found[name] = kept
    return found
