"""The ``config.json`` that a GGUF file's metadata and tensors describe, and the names of its tensors.

A key of the architecture that is not known could change every answer, so it is refused by name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any

from prelude.errors import CheckpointError, ModelError, UnsupportedModel, shown
from prelude.models.gguf.reader import GgufFile
from prelude.models.rope import get_mscale
from prelude.records import dataclass, field

_CLASSES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "phi3": ("phi3", "Phi3ForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_SPECIAL = {"bos_token_id": "bos_token_id", "padding_token_id": "pad_token_id"}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    "rope.scaling.finetuned": (True, False),
    "attention.shared_kv_layers": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "expert_shared_count": (0,),
    "expert_feed_forward_length": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
}
"""Keys whose value is already the default."""
_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}  # by llama.cpp's number; 0 is none, 4 a score
_LOCAL_BASE = 10000.0
_LARGEST = 1e30  # the largest number of the metadata; float32 holds it
_MOST_FACTORS = 1 << 16  # of the pairs of a head that turn
_ORIGINAL = "rope.scaling.original_context_length"
_GEMMA2_27B, _GEMMA3_27B = 46, 62
"""Layers of the sizes whose scores are scaled by another number than the width of a head."""


def plain(value: float) -> float:
    """Return the shortest decimal number that is ``value`` in float32: files say 1e-6 as 9.999999974752427e-07."""
    found = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((one for one in found if struct.pack("<f", one) == struct.pack("<f", value)), float(value))


@dataclass(frozen=True, slots=True)
class _Keys:
    """The metadata of one architecture; it records the keys that were read."""

    file: GgufFile
    architecture: str
    known: set[str] = field(default_factory=set)

    def get(self, key: str) -> Any:
        self.known.add(key)
        return self.file.metadata.get(f"{self.architecture}.{key}")

    def needed(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.file.path}: metadata {self.architecture}.{key} is missing")
        return value

    def number(self, key: str, default: float | None = None) -> float | None:
        value = self.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not -_LARGEST <= value <= _LARGEST:
            raise self.wrong(key, f"a number from {-_LARGEST:g} to {_LARGEST:g} is needed")
        return plain(value)

    def wrong(self, key: str, why: str) -> ModelError:
        return ModelError(f"{self.file.path}: {self.architecture}.{key} is {shown(self.get(key))}: {why}")

    def unsupported(self, key: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.file.path}: unsupported: metadata {self.architecture}.{key} = {shown(self.get(key))}"
        )

    def check_all_known(self) -> None:
        begins = f"{self.architecture}."
        for name, value in self.file.metadata.items():
            key = name.removeprefix(begins)
            if not name.startswith(begins) or key in self.known:
                continue
            if value not in _NEUTRAL.get(key, ()):
                raise UnsupportedModel(f"{self.file.path}: unsupported: metadata {name} = {shown(value)}")


def architecture_of(file: GgufFile) -> str:
    """``general.architecture``, which is supported; a file that is whole and holds a model."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"{file.path}: general.architecture is {shown(name)}, a text is needed")
    if name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{file.path}: unsupported: general.architecture {shown(name)}; supported: {', '.join(ARCHITECTURES)}"
        )
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{file.path}: unsupported: general.type {shown(kind)}; a model is needed")
    parts = file.metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise UnsupportedModel(
            f"{file.path}: unsupported: one of {shown(parts)} files of a model; merge them: llama-gguf-split --merge"
        )
    return name


def config_of(file: GgufFile, architecture: str) -> dict[str, Any]:
    """Return the unchecked config: ``ModelConfig.from_dict`` checks it as it does any other."""
    keys = _Keys(file, architecture)
    model_type, name = _CLASSES[architecture]
    config: dict[str, Any] = {"model_type": model_type, "architectures": [name], "dtype": "float32"}
    config |= {ours: keys.needed(theirs) for theirs, ours in _SIZES.items()}
    config["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon")
    heads = config["num_attention_heads"]
    kv_heads = keys.get("attention.head_count_kv")
    if isinstance(kv_heads, list):
        raise UnsupportedModel(f"{file.path}: unsupported: {architecture}.attention.head_count_kv by layer")
    config["num_key_value_heads"] = heads if kv_heads is None else kv_heads
    config["head_dim"] = _head_dim(keys, config)
    keys.get("vocab_size")
    if "token_embd.weight" not in file:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    config["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file
    biased = "blk.0.attn_q.bias" in file
    if architecture == "llama":
        config |= {"attention_bias": biased, "mlp_bias": "blk.0.ffn_up.bias" in file}
    elif architecture == "qwen3":
        config["attention_bias"] = biased
    if architecture in GEMMAS:
        config |= _gemma(keys, config)
    else:
        window = keys.get("attention.sliding_window")
        config["sliding_window"] = window or None
        if window and architecture != "phi3":
            raise UnsupportedModel(
                f"{file.path}: unsupported: {architecture}.attention.sliding_window = {shown(window)}"
            )
    config |= _rope(keys, config)
    config |= _tokens(file)
    keys.get("mm.tokens_per_image")  # of the pictures of a larger model
    if keys.get("embedding_length_out") not in (None, 0, config["hidden_size"]):
        raise keys.unsupported("embedding_length_out")
    pooling = keys.get("pooling_type")
    if pooling not in (None, 0, *_POOLINGS):
        raise keys.unsupported("pooling_type")
    keys.check_all_known()
    return config


def pooling_of(metadata: dict[str, Any]) -> str | None:
    """Return how the file's vectors are pooled, as sentence-transformers names it."""
    return _POOLINGS.get(metadata.get(f"{metadata['general.architecture']}.pooling_type", 0))


def _head_dim(keys: _Keys, config: dict[str, Any]) -> Any:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    length = keys.get("attention.key_length")
    if length is None:
        if type(width) is not int or type(heads) is not int or heads < 1 or width % heads:
            raise keys.wrong("attention.head_count", f"it must divide embedding_length = {shown(width)}")
        length = width // heads
    # Of Phi-3 a part of each head may turn: ``_rope``.
    same = ("attention.value_length", *(("rope.dimension_count",) if keys.architecture != "phi3" else ()))
    for key in same:
        if keys.get(key) not in (None, length):
            raise UnsupportedModel(
                f"{keys.file.path}: unsupported: {keys.architecture}.{key} = {shown(keys.get(key))}, heads have "
                f"{shown(length)} values"
            )
    return length


def _gemma(keys: _Keys, config: dict[str, Any]) -> dict[str, Any]:
    if keys.architecture == "gemma":
        return {}
    found: dict[str, Any] = {"sliding_window": keys.needed("attention.sliding_window")}
    whole = config["num_hidden_layers"] == (_GEMMA2_27B if keys.architecture == "gemma2" else _GEMMA3_27B)
    width, heads = config["hidden_size"], config["num_attention_heads"]
    divided = whole and type(width) is type(heads) is int and heads > 0
    found["query_pre_attn_scalar"] = width / heads if divided else config["head_dim"]
    if keys.architecture == "gemma2":
        found["attn_logit_softcapping"] = keys.number("attn_logit_softcapping", 50.0)
        found["final_logit_softcapping"] = keys.number("final_logit_softcapping", 30.0)
        return found
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        found["layer_types"] = ["sliding_attention" if one else "full_attention" for one in pattern]
    elif pattern is not None:
        found["sliding_window_pattern"] = pattern
    cap = keys.number("final_logit_softcapping")
    found["final_logit_softcapping"] = cap or None
    found["rope_local_base_freq"] = keys.number("rope.freq_base_swa", _LOCAL_BASE)
    return found


def _rope(keys: _Keys, config: dict[str, Any]) -> dict[str, Any]:
    """Base and scaling. Llama 3's scaling is a tensor of factors."""
    found: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", 10000.0)}
    kind = keys.get("rope.scaling.type")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear"))
    original = keys.get(_ORIGINAL)
    attention = keys.number("rope.scaling.attn_factor")
    turning = keys.get("rope.dimension_count")
    if keys.architecture == "phi3" and turning is not None:
        width = config["head_dim"]
        if type(turning) is not int or type(width) is not int or not 0 < turning <= width:
            raise keys.wrong("rope.dimension_count", f"heads have {shown(width)} values")
        found["partial_rotary_factor"] = turning / width
    if keys.architecture == "phi3" and (SHORT_FACTORS in keys.file or LONG_FACTORS in keys.file):
        return {**found, **_phi3_factors(keys, attention)}
    if attention not in (None, 1.0) and kind != "yarn":
        raise keys.unsupported("rope.scaling.attn_factor")
    if kind == "none" or (kind in (None, "linear") and not factor):  # as llama.cpp: linear if no type is said
        kind, factor = None, None
    if ROPE_FACTORS in keys.file:
        if kind is not None or factor is not None:
            raise keys.unsupported("rope.scaling.factor" if kind is None else "rope.scaling.type")
        factors = _factors(keys.file, ROPE_FACTORS)
        scaling = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        scaling["original_max_position_embeddings"] = config["max_position_embeddings"]
    elif kind in (None, "linear"):
        if factor is None:
            return found
        scaling = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        scaling = {"rope_type": "yarn", "factor": factor}
        scaling |= {} if original is None else {"original_max_position_embeddings": original}
        if attention is not None and factor and factor >= 1.0:  # on top of the usual one
            scaling["attention_factor"] = attention * get_mscale(factor)
    else:
        raise UnsupportedModel(f"{keys.file.path}: unsupported: rope.scaling.type {shown(kind)}")
    return {**found, "rope_scaling": scaling}


def _phi3_factors(keys: _Keys, attention: float | None) -> dict[str, Any]:
    """Factors of longrope, as a Phi-3's config has them; the attention's factor is 1 if the file does not say, as in
    llama.cpp."""
    kind, file = keys.get("rope.scaling.type"), keys.file
    if kind not in (None, "none", "longrope"):
        raise UnsupportedModel(f"{file.path}: unsupported: {SHORT_FACTORS} with rope.scaling.type {shown(kind)}")
    scaling: dict[str, Any] = {"rope_type": "longrope", "attention_factor": 1.0 if attention is None else attention}
    for ours, theirs in (("short_factor", SHORT_FACTORS), ("long_factor", LONG_FACTORS)):
        scaling[ours] = _factors(file, theirs)
    return {"rope_scaling": scaling, "original_max_position_embeddings": keys.needed(_ORIGINAL)}


def _factors(file: GgufFile, name: str) -> list[float]:
    info = file.tensors.get(name)
    if info is None or info.dtype != "F32" or len(info.shape) != 1 or info.shape[0] > _MOST_FACTORS:
        told = "missing" if info is None else f"{info.dtype} {list(info.shape)}"
        raise ModelError(f"{file.path}: tensor {name} is {told}, at most {_MOST_FACTORS:,} values of F32 are needed")
    found: list[float] = file.tensor(name).tolist()
    return found


def _tokens(file: GgufFile) -> dict[str, Any]:
    found = {ours: file.metadata.get(f"tokenizer.ggml.{theirs}") for theirs, ours in _SPECIAL.items()}
    ends = [file.metadata.get(f"tokenizer.ggml.{key}") for key in _ENDS]
    return {**found, "eos_token_id": list(dict.fromkeys(one for one in ends if one is not None)) or None}


_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMED_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms of Gemma 2 and 3."""
_PHI3 = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each inverse frequency: rotary scaling of Llama 3.1 and later."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""The same of Phi-3, for contexts up to the original length and beyond it."""
_PART = re.compile(r"(?:blk\.(\d{1,6})\.)?([a-z_]+)\.(weight|bias)")

GEMMAS = ("gemma", "gemma2", "gemma3")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", *GEMMAS)


def model_names(names: Iterable[str], architecture: str, where: str) -> dict[str, str]:
    """Return the name that transformers gives each tensor. Tensors that are no weights are left out."""
    layer = {**_LAYER, **(_NORMED_AFTER if architecture in ("gemma2", "gemma3") else {})}
    others = {ROPE_FACTORS}
    if architecture == "phi3":
        joined = ("attn_q", "attn_k", "attn_v", "ffn_gate")
        layer = {name: mapped for name, mapped in layer.items() if name not in joined} | _PHI3
        others |= {SHORT_FACTORS, LONG_FACTORS}
    found: dict[str, str] = {}
    for name in names:
        if name in others:
            continue
        match = _PART.fullmatch(name)
        index, part, kind = match.groups() if match else (None, name, "")
        mapped = _OUTER.get(part) if index is None else layer.get(part)
        if mapped is None or not kind:
            raise UnsupportedModel(f"{where}: unsupported: tensor {shown(name)} is not part of a {architecture}")
        full = f"{mapped}.{kind}" if index is None else f"model.layers.{int(index)}.{mapped}.{kind}"
        if full in found:
            raise CheckpointError(f"{where}: tensors {shown(found[full])} and {shown(name)} are both {full}")
        found[full] = name
    return found


def rotated_heads(name: str, architecture: str, heads: int, kv_heads: int) -> int:
    """How many heads the rows of a tensor are whose halves lie interleaved, as llama.cpp writes those of Llama; 0 for
    other tensors."""
    if architecture != "llama":
        return 0
    return heads if ".attn_q." in name else kv_heads if ".attn_k." in name else 0


def counts_from_one(name: str, architecture: str) -> bool:
    """Return whether a norm's gain is written with the one that transformers adds to it."""
    return architecture in GEMMAS and name.endswith("norm.weight")
