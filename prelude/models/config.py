"""``config.json`` as one typed, checked value.

Everything that later code relies on is established here, before a single byte of weights is
touched: types, ranges, the relations between sizes, and that the file asks for nothing that is
not implemented. A feature we do not have is an ``UnsupportedModel`` that names it; code that came
with the model is never imported.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.classifier import read_activation, read_labels
from prelude.models.families import ARCHITECTURES, FAMILIES, Family
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory, Where
from prelude.models.rope import MAX_POSITIONS, RopeScaling, inverse_frequencies, parse_rope, stretched_positions

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

CONFIG_LIMIT = 4 << 20
"""Bytes of a configuration file; real ones have a few thousand."""

CLASSIFIER = "ForSequenceClassification"
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCABULARY = 1 << 24
DTYPES = ("float32", "bfloat16", "float16", "float64")

# Keys that change the computation. A file that sets one to anything but these values asks for
# something we would silently not do.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "compression_config": (None,),
    "dual_chunk_attention_config": (None,),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "is_causal": (None, True),
    "use_bidirectional_attention": (None, False),
    "text_config": (None,),
    "vision_config": (None,),
}

# Keys of other families, which transformers' classes of these families do not read: a file that has them means the
# same without them.
_IGNORED: dict[str, tuple[Any, ...]] = {
    "attention_chunk_size": (None,),
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "attention_multiplier": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
}


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Sizes are positive and consistent; nothing here needs checking again."""

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    dtype: str = "float32"
    """The torch name of the type the weights were saved in; files may still mix types."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    qk_norm: bool = False
    attention_bias: bool = False
    """On the query, key and value projections."""
    output_bias: bool = False
    """On the attention's output projection."""
    mlp_bias: bool = False
    lm_head: bool = True
    """False for a bare body, such as an embedding model saved without its head, and for a classifier."""
    labels: tuple[str, ...] = ()
    """Of the classification head, in the order of its rows; empty where there is none."""
    activation: str | None = None
    """What the head's logits go through: "none", "sigmoid", "softmax", or a name in the file that is none of them."""

    @classmethod
    def from_dir(cls, where: Where) -> ModelConfig:
        """Read ``config.json``, and ``generation_config.json`` where there is one."""
        directory = ModelDirectory.of(where)
        raw = directory.object("config.json", CONFIG_LIMIT)
        generation = None
        if directory.has("generation_config.json"):
            generation = directory.object("generation_config.json", CONFIG_LIMIT)
        return cls.from_dict(raw, generation, where=str(directory.path / "config.json"))

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, *, where: str = "config.json"
    ) -> ModelConfig:
        """Check ``raw`` and, for the ids that end a text, ``generation``."""
        if not isinstance(raw, Mapping):
            raise ModelError(f"{where}: holds a {type(raw).__name__}, an object is needed")
        family, architecture = _family(raw, where)
        fields = Fields(raw, where, family.defaults)
        _refuse_unsupported(fields, family)
        vocab_size = fields.integer("vocab_size", 1, MAX_VOCABULARY)
        num_layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
        hidden, heads, kv_heads, head_dim = _attention_sizes(fields)
        max_positions = fields.integer("max_position_embeddings", 1, MAX_POSITIONS)
        theta, scaling = parse_rope(fields, max_positions)
        max_positions = stretched_positions(fields, scaling, max_positions)
        _refuse_windows(fields, family, num_layers, max_positions)
        bias = _switch(fields, "attention_bias", family.attention_bias)
        labels = read_labels(fields) if architecture.endswith(CLASSIFIER) else ()
        return cls(
            architecture=architecture,
            model_type=family.model_type,
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size", 1, MAX_WIDTH),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_positions=max_positions,
            rms_eps=fields.number("rms_norm_eps", 0.0, 0.1),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=fields.boolean("tie_word_embeddings"),
            hidden_act=_activation(fields),
            dtype=_dtype(fields),
            eos_token_ids=_eos(fields, generation, vocab_size),
            bos_token_id=fields.token_id("bos_token_id", vocab_size),
            pad_token_id=fields.token_id("pad_token_id", vocab_size),
            qk_norm=family.qk_norm,
            attention_bias=bias,
            output_bias=bias if family.output_bias is None else family.output_bias,
            mlp_bias=_switch(fields, "mlp_bias", family.mlp_bias),
            lm_head=family.architectures[architecture],
            labels=labels,
            activation=read_activation(fields, len(labels)) if labels else None,
        )

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes

    def num_parameters(self) -> int:
        """Weights, a tied head counted once."""
        return sum(math.prod(shape) for shape in expected_tensors(self).values())

    def inverse_frequencies(self) -> tuple[torch.Tensor, float]:
        """Rotary frequencies with the scaling applied, and the factor on cosine and sine."""
        return inverse_frequencies(self.rope_theta, self.head_dim, self.rope_scaling)

    def check_vocabulary(self, highest_token_id: int) -> None:
        """Raise unless every id of a tokenizer has a row in the embeddings."""
        if highest_token_id >= self.vocab_size:
            raise ModelError(
                f"the tokenizer has token id {highest_token_id:,}, but vocab_size is {self.vocab_size:,}: "
                "this tokenizer.json does not belong to this config.json"
            )


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight ``config`` implies, named as in a causal language model."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.attention_bias),
        "self_attn.k_proj": (keys, hidden, config.attention_bias),
        "self_attn.v_proj": (keys, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, (rows, columns, bias) in linears.items():
        layer[f"{name}.weight"] = (rows, columns)
        if bias:
            layer[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (config.head_dim,)
    layer["post_attention_layernorm.weight"] = (hidden,)
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        tensors.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    tensors["model.norm.weight"] = (hidden,)
    if config.lm_head and not config.tie_word_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, hidden)
    if config.labels:
        tensors["score.weight"] = (len(config.labels), hidden)
    return tensors


def _family(raw: Mapping[str, Any], where: str) -> tuple[Family, str]:
    named = raw.get("architectures")
    model_type = raw.get("model_type")
    if named is None and model_type is None:
        raise ModelError(f"{where}: architectures and model_type are both missing; is this a model directory?")
    if model_type is not None and not isinstance(model_type, str):
        raise ModelError(f"{where}: model_type is {shown(model_type)}, a string is needed")
    supported = ", ".join(sorted(ARCHITECTURES))
    if named is None:
        if model_type not in FAMILIES:
            raise UnsupportedModel(f"{where}: unsupported: model_type {shown(model_type)}; supported: {supported}")
        family = FAMILIES[model_type]
        return family, next(name for name, head in family.architectures.items() if head)
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


def _refuse_unsupported(fields: Fields, family: Family) -> None:
    for key, neutral in _NEUTRAL.items():
        value = fields.get(key, None)
        if not _is_one_of(value, neutral):
            method = value.get("quant_method") if isinstance(value, dict) else None
            raise UnsupportedModel(f"{fields.where}: unsupported: {key} ({shown(method or value)})")
    ignored = [key for key, neutral in _IGNORED.items() if not _is_one_of(fields.get(key, None), neutral)]
    for key, fixed in (("attention_bias", family.attention_bias), ("mlp_bias", family.mlp_bias)):
        if fixed is not None and fields.get(key, fixed) not in (fixed, None):
            ignored.append(key)
    if ignored:
        log.warning(
            "%s: %s not read by a %s model, here and in transformers; the weights decide",
            fields.where,
            ", ".join(f"{key} {shown(fields.get(key))}" for key in ignored)
            + (" is" if len(ignored) == 1 else " are"),
            family.model_type,
        )
    if fields.get("auto_map", None) is not None:
        log.warning(
            "%s: auto_map names code that came with the model; it is not imported, the built-in %s is used",
            fields.where,
            family.model_type,
        )


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value is item or (item is not None and value == item) for item in allowed)


def _refuse_windows(fields: Fields, family: Family, num_layers: int, max_positions: int) -> None:
    """Raise where a layer would attend to a part of its context. A window that no layer uses, or that is as long as
    the longest context, changes nothing."""
    window = fields.get("sliding_window", family.defaults.get("sliding_window"))
    switched = fields.get("use_sliding_window", None) is not None and fields.boolean("use_sliding_window")
    kinds = fields.get("layer_types", None)
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != num_layers):
        raise fields.wrong("layer_types", f"a list of {num_layers} names, one a layer, is needed")
    harmless = window is None or (type(window) is int and window >= max_positions)
    for kind in kinds or ():
        if kind != "full_attention" and not (kind == "sliding_attention" and switched and harmless):
            raise UnsupportedModel(f"{fields.where}: unsupported: layer_types with {shown(kind)}")
    if harmless:
        return
    if family.window_switch:
        first = fields.integer("max_window_layers", 0, 1 << 20, 28)  # the first layer with a window
        if switched and kinds is None and first < num_layers:
            raise UnsupportedModel(
                f"{fields.where}: unsupported: use_sliding_window from layer {first} of {num_layers} on"
            )
    elif family.windows:
        said = "" if "sliding_window" in fields.values else f", which a {family.model_type} config without it means"
        raise UnsupportedModel(f"{fields.where}: unsupported: sliding_window {shown(window)}{said}")


def _attention_sizes(fields: Fields) -> tuple[int, int, int, int]:
    """``(hidden, heads, kv_heads, head_dim)``."""
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    heads = fields.integer("num_attention_heads", 1, 4096)
    kv_heads = heads
    if fields.get("num_key_value_heads") is not None:
        kv_heads = fields.integer("num_key_value_heads", 1, 4096)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"it must divide num_attention_heads = {heads}")
    if fields.get("head_dim") is not None:
        head_dim = fields.integer("head_dim", 2, 1024)
    else:
        head_dim, rest = divmod(hidden, heads)
        if rest:
            raise fields.wrong(
                "hidden_size", f"without head_dim it must be a multiple of num_attention_heads = {heads}"
            )
    if head_dim % 2 or not head_dim:
        raise ModelError(f"{fields.where}: head_dim is {head_dim}, rotary embeddings need an even number")
    return hidden, heads, kv_heads, head_dim


def _switch(fields: Fields, key: str, fixed: bool | None) -> bool:
    return fields.boolean(key) if fixed is None else fixed


def _activation(fields: Fields) -> str:
    name = fields.text("hidden_act")
    if name not in ("silu", "swish"):
        raise UnsupportedModel(f"{fields.where}: unsupported: hidden_act {shown(name)}; supported: silu")
    return "silu"


def _dtype(fields: Fields) -> str:
    """The name under either spelling; float32 where the file says nothing."""
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


def _eos(fields: Fields, generation: Mapping[str, Any] | None, vocab_size: int) -> tuple[int, ...]:
    if generation is not None:
        found = Fields(generation, "generation_config.json").token_ids("eos_token_id", vocab_size)
        if found:
            return found
    return fields.token_ids("eos_token_id", vocab_size)
