"""Classifiers of single tokens: ``…ForTokenClassification``, and ``…ForProcessRewardModel``, which reads the token
behind each step of a solution."""

from __future__ import annotations

from dataclasses import replace

from prelude.models.families import Family, SpecRequest
from prelude.models.families.modernbert import MODERNBERT
from prelude.models.fields import Fields
from prelude.models.spec import Classifier, ModelSpec, Projection


def token_spec(family: Family, fields: Fields, labels: int, head: str) -> ModelSpec:
    """Return the family's network with a classifier of ``labels`` rows for every token."""
    if family is MODERNBERT:  # the head's dense part and norm stand before the classifier in all of its classes
        spec = family.build(fields, SpecRequest(family.model_type, "classifier", labels))
        return spec if spec.classifier is None else _with(spec, replace(spec.classifier, pooling="tokens"))
    spec = family.build(fields, SpecRequest(family.model_type, "none"))
    width = spec.hidden
    if head == "steps":
        dense, out = (
            Projection((f"score.{at}",), (rows,), width, bias=True) for at, rows in ((0, width), (2, labels))
        )
        return _with(spec, Classifier(out, "tokens", dense, "relu"))
    name = "classifier" if spec.bidirectional else "score"
    return _with(spec, Classifier(Projection((name,), (labels,), width, bias=True), "tokens"))


def _with(spec: ModelSpec, classifier: Classifier) -> ModelSpec:
    longer = None if spec.longer is None else replace(spec.longer, classifier=classifier)
    return replace(spec, classifier=classifier, longer=longer)
