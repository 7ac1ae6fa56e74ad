"""``config.json`` as one typed, checked value.

Everything that later code relies on is established here, before a single byte of weights is
touched: types, ranges, the relations between sizes, and that the file asks for nothing that is
not implemented. A feature we do not have is an ``UnsupportedModel`` that names it; code that came
with the model is never imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.families import ARCHITECTURES, FAMILIES, Family, SpecRequest
from prelude.models.families.base import is_one_of
from prelude.models.families.modernbert import MODERNBERT
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory, Where
from prelude.models.options import OptionModel, option_model
from prelude.models.spec import Classifier, ModelSpec, Projection
from prelude.records import dataclass, replace

log = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16", "float64")
MAX_LABELS = 1 << 16
_PROBLEMS = {"regression": "none", "multi_label_classification": "sigmoid", "single_label_classification": "softmax"}
_TORCH = {"Sigmoid": "sigmoid", "Identity": "none", "Softmax": "softmax"}
"""Classes of ``torch.nn`` that sentence-transformers writes as the activation of a cross-encoder."""

# Keys that change the computation. A file that sets one to anything but these values asks for
# a computation that we would silently not do.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "compression_config": (None,),
    "dual_chunk_attention_config": (None,),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "text_config": (None,),
    "vision_config": (None,),
}


_OF_ALL_PARTS = (
    *("tie_word_embeddings", "dtype", "torch_dtype", "quantization_config"),
    *("eos_token_id", "bos_token_id", "pad_token_id"),
)
"""Keys of a model with several parts that count for its text model too."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The settings of a model directory. Sizes are positive and consistent; nothing here needs checking
    again."""

    architecture: str
    model_type: str
    spec: ModelSpec
    dtype: str = "float32"
    """The torch name of the type the weights were saved in; files may still mix types."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    labels: tuple[str, ...] = ()
    """Labels of the classification head, in the order of its rows; empty if there is none."""
    activation: str | None = None
    """The activation of the head's logits: "none", "sigmoid", "softmax", or a name in the file that is none of
    them."""
    beside: tuple[tuple[str, str], ...] = ()
    """Weight files beside the usual ones, each with the prefix of its tensors' names."""

    @property
    def vocab_size(self) -> int:
        return self.spec.embeddings.vocab

    @property
    def hidden_size(self) -> int:
        return self.spec.hidden

    @property
    def max_positions(self) -> int:
        return self.spec.max_positions

    @classmethod
    def from_dir(cls, where: Where) -> ModelConfig:
        """Read ``config.json``, and ``generation_config.json`` if there is one."""
        directory = ModelDirectory.of(where)
        head = option_model(directory)
        if head is not None:
            return cls._of_option_model(directory, head)
        config = directory.fields("config.json")
        generation = directory.fields("generation_config.json", needed=False)
        return cls.from_dict(config.values, generation.values, where=config.where)

    @classmethod
    def _of_option_model(cls, directory: ModelDirectory, model: OptionModel) -> ModelConfig:
        network = model.network(directory)
        pad = network.config.token_id("pad_token_id", network.spec.embeddings.vocab)
        return cls(model.name, model.name.lower(), network.spec, pad_token_id=pad, beside=network.beside)

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, *, where: str = "config.json"
    ) -> ModelConfig:
        """Check ``raw`` and, for the ids that end a text, ``generation``."""
        if not isinstance(raw, Mapping):
            raise ModelError(f"{where}: holds a {type(raw).__name__}, an object is needed")
        family, architecture = _family(raw, where)
        beside = f"{where.removesuffix('config.json')}generation_config.json"
        if family.nested is not None:
            raw, where = _text_config(raw, family.nested, where), f"{where}: {family.nested}"
        fields = Fields(raw, where, family.defaults)
        _refuse_unsupported(fields, family)
        head = family.architectures[architecture]
        labels = read_labels(fields) if head in ("classifier", "tokens", "steps") else ()
        if head in ("tokens", "steps"):
            spec = token_spec(family, fields, len(labels), head)
        else:
            spec = family.build(fields, SpecRequest(family.model_type, head, len(labels), family.nested is not None))
        vocab_size = spec.embeddings.vocab
        return cls(
            architecture=architecture,
            model_type=family.model_type,
            spec=spec,
            dtype=_dtype(fields),
            eos_token_ids=_eos(fields, None if generation is None else Fields(generation, beside), vocab_size),
            bos_token_id=fields.token_id("bos_token_id", vocab_size),
            pad_token_id=fields.token_id("pad_token_id", vocab_size),
            labels=labels,
            activation=read_activation(fields, len(labels)) if labels else None,
        )

    def reaching(self, length: int | None) -> ModelConfig:
        """Return the model for contexts of ``length`` tokens if that is another one; None for the usual length."""
        longer = self.spec.longer
        if longer is None:
            return self
        if length is None or length <= self.max_positions:
            log.info(
                "contexts of more than %d tokens, up to %d, rotate all tokens otherwise; max_length asks for them",
                self.max_positions,
                longer.max_positions,
            )
            return self
        return replace(self, spec=longer)

    def check_vocabulary(self, highest_token_id: int, where: str) -> None:
        """``ModelError`` unless every id of the tokenizer of ``where`` has a row in the embeddings."""
        if highest_token_id >= self.vocab_size:
            raise ModelError(
                f"{where}: the tokenizer has token id {highest_token_id:,}, but vocab_size is {self.vocab_size:,}: "
                "this tokenizer.json does not belong to this config.json"
            )


def _family(raw: Mapping[str, Any], where: str) -> tuple[Family, str]:
    named = raw.get("architectures")
    model_type = raw.get("model_type")
    if named is None and model_type is None:
        raise ModelError(f"{where}: architectures and model_type are both missing; is this a model directory?")
    if model_type is not None and not isinstance(model_type, str):
        raise ModelError(f"{where}: model_type is {shown(model_type)}, a string is needed")
    own = FAMILIES.get(model_type or "")
    supported = ", ".join(own.architectures) if own else f"models of the families {', '.join(sorted(FAMILIES))}"
    if named is None:
        if model_type not in FAMILIES:
            raise UnsupportedModel(f"{where}: unsupported: model_type {shown(model_type)}; supported: {supported}")
        family = FAMILIES[model_type]
        return family, next(iter(family.architectures))
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise ModelError(f"{where}: architectures is {shown(named)}, a list of one name is needed")
    if named[0] not in ARCHITECTURES:
        raise UnsupportedModel(f"{where}: unsupported: architecture {shown(named[0])}; supported: {supported}")
    family = ARCHITECTURES[named[0]]
    if model_type is not None and model_type != family.model_type:
        raise ModelError(
            f"{where}: model_type is {shown(model_type)}, but the architecture {named[0]} "
            f"belongs to {shown(family.model_type)}"
        )
    return family, named[0]


def _text_config(raw: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return the text model's config out of a larger model's, with the larger one's settings of both."""
    text = raw.get(key)
    if not isinstance(text, dict):
        raise ModelError(f"{where}: {key} is {shown(text)}, an object is needed: the config of the text model")
    return {**text, **{shared: raw[shared] for shared in _OF_ALL_PARTS if raw.get(shared) is not None}}


def _refuse_unsupported(fields: Fields, family: Family) -> None:
    for key, neutral in _NEUTRAL.items():
        value = fields.get(key, None)
        if not is_one_of(value, neutral):
            method = value.get("quant_method") if isinstance(value, dict) else None
            raise UnsupportedModel(f"{fields.where}: unsupported: {key} ({shown(method or value)})")
    if fields.get("auto_map", None) is not None:
        log.warning(
            "%s: auto_map names code that came with the model; it is not imported, the built-in %s is used",
            fields.where,
            family.model_type,
        )


def _dtype(fields: Fields) -> str:
    """Return the name under either spelling; float32 if the file says nothing."""
    named: set[str] = set()
    for key in ("dtype", "torch_dtype"):
        if fields.get(key, None) is None:
            continue
        name = fields.text(key).removeprefix("torch.")
        if name not in DTYPES:
            raise UnsupportedModel(f"{fields.where}: unsupported: {key} {shown(name)}; one of {', '.join(DTYPES)}")
        named.add(name)
    if len(named) > 1:
        raise fields.wrong("dtype", f"but torch_dtype is {shown(fields.get('torch_dtype'))}")
    return named.pop() if named else "float32"


def _eos(fields: Fields, generation: Fields | None, vocab_size: int) -> tuple[int, ...]:
    if generation is not None and (found := generation.token_ids("eos_token_id", vocab_size)):
        return found
    return fields.token_ids("eos_token_id", vocab_size)


# ------------------------------------------------------------------ classification heads


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
    labels = tuple(label for i in range(len(order)) if isinstance(label := order.get(str(i)), str))
    if len(labels) < len(order):
        raise fields.wrong("id2label", f"an object with the keys 0 to {len(order) - 1} and text for each")
    return labels


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
    """Return the family's network with a classifier of ``labels`` rows for every token; with the head "steps", of
    ``…ForProcessRewardModel``, one that reads the token behind each step."""
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
