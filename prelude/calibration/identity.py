"""The question, template and model that a calibrator was fitted on, and whether an answer is of the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prelude.errors import CalibrationError, shown
from prelude.models.identity import known_hash
from prelude.results import Answer

_SAID = {
    "question": "question",
    "descriptions": "descriptions of labels",
    "template": "hash of the template",
    "length_norm": "length_norm",
    "model": "hash of the model",
}


def asked_of(answer: Answer) -> dict[str, Any]:
    """The values of ``answer.asked`` that are known, as a file keeps them. The model is the hash of its files."""
    asked = answer.asked
    if asked is None:
        return {}
    found: dict[str, Any] = {"question": asked.question, "template": asked.template, "length_norm": asked.length_norm}
    if asked.template:  # of an answer that an engine gave
        found["descriptions"] = dict(zip(asked.labels, asked.notes))
        found["model"] = known_hash(asked.model)
    return {name: value for name, value in found.items() if value != "" or name == "question"}


def common_asked(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the values that are the same for all answers."""
    first = asked_of(answers[0])
    for asked in {id(answer.asked): answer for answer in answers}.values():
        other = asked_of(asked)
        first = {name: value for name, value in first.items() if name in other and other[name] == value}
    return first


def check_asked(of: str, labels: Sequence[str] | None, asked: Mapping[str, Any], answer: Answer) -> None:
    """Raise ``CalibrationError`` if ``answer`` differs from the answers that a calibrator or prior is of."""
    if labels is not None and sorted(answer.labels) != sorted(labels):
        raise CalibrationError(f"labels {shown(answer.labels)}; this {of} is of {shown(labels)}")
    if not asked:
        return
    found = asked_of(answer)
    for name, said in _SAID.items():
        if name in asked and name in found and asked[name] != found[name]:
            raise CalibrationError(
                f"{said} {shown(found[name])}; this {of} is of {shown(asked[name])}; fit one on answers of this kind"
            )
