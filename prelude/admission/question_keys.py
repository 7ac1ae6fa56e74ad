"""The native keys of decisions, made with the classes of questions."""

from __future__ import annotations

from prelude._native.core import QuestionKeys
from prelude.admission.structured import Owned
from prelude.admission.template import DecisionTemplate
from prelude.tasks import Choice, Noul, Score

QUESTION_KEYS = QuestionKeys(Choice, Noul, Score, (dict, Owned), DecisionTemplate)
