"""Classification heads: labels and activation in ``config.json``, and classifiers of single tokens
(``…ForTokenClassification``, and ``…ForProcessRewardModel``, which reads the token behind each step)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prelude.models.families import Family, SpecRequest
from prelude.models.families.modernbert import MODERNBERT
from prelude.models.fields import Fields
from prelude.models.spec import Classifier, ModelSpec, Projection

MAX_LABELS = 1 << 16
_PROBLEMS = {"regression": "none", "multi_label_classification": "sigmoid", "single_label_classification": "softmax"}
_TORCH = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}
"""Classes of ``torch.nn`` that sentence-transformers writes as the activation of a cross-encoder."""


def read_labels(fields: Fields) -> tuple[str, ...]:
    """``id2label`` in the order of its ids, which must be 0, 1, 2 ... without a gap; ``num_labels`` alone gives
    ``LABEL_0`` and so on, as transformers names them."""
    named = fields.get("id2label", None)
    if named is None:
        count = fields.integer("num_labels", 1, MAX_LABELS, 2)
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(named, dict) or not 1 <= len(named) <= MAX_LABELS:
        raise fields.wrong("id2label", f"an object of 1 to {MAX_LABELS} labels")
    order = {str(key): value for key, value in named.items()}
    labels = tuple(order.get(str(i)) for i in range(len(order)))
    if any(not isinstance(label, str) for label in labels):
        raise fields.wrong("id2label", f"an object with the keys 0 to {len(order) - 1} and text for each")
    return tuple(label for label in labels if isinstance(label, str))


def read_activation(fields: Fields, labels: int) -> str:
    """The activation of sentence-transformers or of transformers' text-classification pipeline: "none", "sigmoid" or
    "softmax". A name that is none of them is returned as it stands in the file."""
    named = named_activation(fields)
    if named is not None:
        return named
    problem = fields.get("problem_type", None)
    if problem is None or problem == "single_label_classification":
        return "sigmoid" if labels == 1 else "softmax"
    if not isinstance(problem, str) or problem not in _PROBLEMS:
        raise fields.wrong("problem_type", f"one of {', '.join(_PROBLEMS)} is needed")
    return _PROBLEMS[problem]


def named_activation(fields: Fields) -> str | None:
    """Return the activation that sentence-transformers has written into ``config.json``."""
    ours = fields.get("sentence_transformers", None)
    named = ours.get("activation_fn") if isinstance(ours, dict) else None
    if named is not None:
        return activation_name(fields, "sentence_transformers", named)
    key = "sbert_ce_default_activation_function"
    return activation_name(fields, key, fields.get(key, None))


def activation_name(fields: Fields, key: str, named: Any) -> str | None:
    """The name of a class of torch, such as ``torch.nn.modules.activation.Sigmoid``; another name as it stands."""
    if named is None:
        return None
    if not isinstance(named, str):
        raise fields.wrong(key, "with the name of a class as its activation_fn")
    package, _, name = named.rpartition(".")
    return _TORCH.get(name, named) if package.startswith("torch.nn") else named


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
