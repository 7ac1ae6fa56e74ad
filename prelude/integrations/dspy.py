"""DSPy: ``dspy.configure(lm=PreludeDecisions(engine))``.

Fields of type bool, ``Literal`` and ``dspy.experimental.Score`` are decisions; every output field of a signature has
to be one.

pip install 'prelude-engine[dspy]' (dspy 3.4; decision requests are marked experimental there).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from dspy.adapters.types.base_type import CUSTOM_TYPE_END_IDENTIFIER, CUSTOM_TYPE_START_IDENTIFIER
from dspy.clients.base_lm import record_history
from dspy.dsp.utils.settings import settings
from dspy.utils.callback import with_callbacks
from dspy.utils.inspect_history import pretty_print_history

from prelude.admission.conversation import content_of
from prelude.admission.messages import MAX_DEPTH, written
from prelude.errors import InvalidRequest, shown
from prelude.systemone.adapter import system_one

_PRIVATE = frozenset(["type", "choice", "score", "legend"])
_TYPED = re.compile(f"{CUSTOM_TYPE_START_IDENTIFIER}(.*?){CUSTOM_TYPE_END_IDENTIFIER}", re.DOTALL)


class PreludeDecisions:
    """The object that DSPy takes for a decision service, over an engine of either kind: calls are seen by callbacks,
    usage trackers and histories, as those of DSPy's own client. Any number of threads and loops may use it. An engine
    is no part of a saved program: set the lm again after ``load``."""

    supports_decision_requests = True

    def __init__(self, engine: Any, *, callbacks: Sequence[Any] | None = None, **options: Any) -> None:
        self._engine, self._options = engine, options
        self._one = system_one(engine, **options)
        self.callbacks: list[Any] = list(callbacks or [])
        self.history: list[Any] = []

    @property
    def model(self) -> str:
        return self._one.name

    def copy(self, **options: Any) -> PreludeDecisions:
        """One over the same engine with an empty history. ``options`` are those of ``SystemOne``."""
        return type(self)(self._engine, **{"callbacks": self.callbacks, **self._options, **options})

    def __deepcopy__(self, memo: Any) -> PreludeDecisions:
        return self.copy()

    def dump_state(self) -> None:
        """Return None: DSPy loads no class of another library."""

    def inspect_history(self, n: int = 1, file: TextIO | None = None) -> None:
        pretty_print_history(self.history, n, file=file)

    @with_callbacks
    def __call__(self, state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
        request = {"state": _plain(state, "state"), "questions": questions}
        return self._finished(request, self._one.answer(request))

    @with_callbacks
    async def acall(self, state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
        request = {"state": _plain(state, "state"), "questions": questions}
        return self._finished(request, await self._one.aanswer(request))

    def _finished(self, request: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        answers = _answers(body)
        tokens = body["usage"]
        usage = {"prompt_tokens": tokens["input_tokens"], "completion_tokens": tokens["output_tokens"]}
        if settings.usage_tracker:
            settings.usage_tracker.add_usage(self.model, usage)
        if not settings.disable_history:
            entry = {
                "request": copy.deepcopy({"model": self.model, **request}),
                "response": copy.deepcopy({"model": self.model, "usage": usage, "answers": answers}),
                "usage": usage,
                "cache_hit": False,
                "messages": None,
                "prompt": json.dumps(request, ensure_ascii=False),
                "outputs": [json.dumps(answers)],
            }
            record_history(self, entry)
        return answers


def _plain(value: Any, path: Any, depth: int = MAX_DEPTH) -> Any:
    """Add the text of DSPy's own types, such as ``dspy.Image``, which come as parts in a string. Other parts are
    refused. ``path``: a chain as ``messages.written`` takes it."""
    if isinstance(value, str):
        return _TYPED.sub(lambda found: _typed_text(found[1], written(path)), value)
    if depth and isinstance(value, Mapping):
        return {key: _plain(item, (path, key), depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_plain(item, (path, at), depth - 1) for at, item in enumerate(value)]
    return value  # the engine refuses one that is too deep


def _typed_text(parts: str, field: str) -> str:
    try:
        read = json.loads(parts)
    except (ValueError, RecursionError):
        said = f"the mark of DSPy's types stands around {shown(parts)}, which is no JSON; leave the mark out"
        raise InvalidRequest(said, field=field) from None
    return content_of(read, field)


def _answers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return probabilities and confidence: labels, cuts and thresholds are DSPy's."""
    found = {}
    for name, answer in body["answers"].items():
        kept = {key: value for key, value in answer.items() if key not in _PRIVATE and not key.startswith("x_")}
        if answer["type"] == "score":
            kept["probabilities"] = {int(level): share for level, share in answer["probabilities"].items()}
        found[name] = kept
    return found
