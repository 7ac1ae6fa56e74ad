"""pydantic-ai: ``Agent(PreludeModel(engine), output_type=YourModel)`` fills the fields of ``YourModel`` by decisions.

pip install 'prelude-engine[pydantic-ai]' (pydantic-ai-slim 2.68 or newer).
"""

from __future__ import annotations

from typing import Any

from pydantic_ai.models.decision import (
    ChoiceAnswer,
    DecisionModel,
    DecisionModelSettings,
    DecisionRequest,
    DecisionResponse,
    NoulAnswer,
    ScoreAnswer,
)
from pydantic_ai.usage import RequestUsage

from prelude.errors import InvalidRequest
from prelude.systemone.adapter import system_one
from prelude.systemone.request import MAX_LEVELS, MAX_OPTIONS, MAX_QUESTIONS


class PreludeModel(DecisionModel[None]):
    """Answers by an engine of either kind; ``name`` and further keywords are those of ``SystemOne``. The setting
    ``timeout`` is the deadline of a request. Settings of sampling, and ``max_retries``, say nothing about a
    decision."""

    unsupported_settings = DecisionModel.unsupported_settings | {"max_retries"}
    max_questions = MAX_QUESTIONS
    max_choice_options = MAX_OPTIONS
    max_score_levels = MAX_LEVELS

    def __init__(self, engine: Any, *, settings: Any = None, profile: Any = None, **options: Any) -> None:
        self._one = system_one(engine, **options)
        super().__init__(settings=settings, profile=profile)

    @property
    def model_name(self) -> str:
        return self._one.name

    @property
    def system(self) -> str:
        return "prelude"

    @property
    def base_url(self) -> str | None:
        return None

    async def decide(self, request: DecisionRequest, model_settings: DecisionModelSettings) -> DecisionResponse:
        if request.images:
            raise InvalidRequest("this model reads text only; leave out images", field="images")
        for name in ("extra_body", "extra_headers"):
            if model_settings.get(name):
                raise InvalidRequest("no HTTP request is made, so there is no place for it; leave it out", field=name)
        timeout = model_settings.get("timeout")
        seconds = getattr(timeout, "read", timeout)  # a number, or httpx.Timeout
        questions = {name: _question(question) for name, question in request.questions.items()}
        asked = {"state": request.state, "questions": questions}
        body = await self._one.aanswer(asked, deadline=seconds)
        return DecisionResponse(
            answers={name: _answer(answer) for name, answer in body["answers"].items()},
            model_name=body["model"],
            usage=RequestUsage(
                input_tokens=body["usage"]["input_tokens"], cache_read_tokens=body["usage"]["x_cached_tokens"]
            ),
        )


def _question(question: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": question.type, "instructions": question.instructions}
    if question.type != "noul":
        found["criteria"] = question.criteria
    elif question.criteria is not None:
        sides = {"true": question.criteria.true, "false": question.criteria.false}
        found["criteria"] = {side: text for side, text in sides.items() if text is not None}
    return found


def _answer(body: dict[str, Any]) -> Any:
    if body["type"] == "noul":
        return NoulAnswer(noul=body["noul"])
    if body["type"] == "choice":
        return ChoiceAnswer(choice=body["choice"], confidence=body["confidence"], probabilities=body["probabilities"])
    return ScoreAnswer(
        score=body["score"],
        confidence=body["confidence"],
        probabilities={int(level): share for level, share in body["probabilities"].items()},
        legend={int(level): text for level, text in body["legend"].items()},
    )
