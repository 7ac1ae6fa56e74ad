"""GGUF files of the ``gguf`` package: values as its dequantizer gives them, answers as transformers gives them over
those values, and the memory that a file takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prelude import default_model
from prelude.cpu.executor import CpuExecutor
from prelude.errors import CheckpointError, ModelError, UnsupportedModel
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.models.gguf.blocks import Blocks
from prelude.models.gguf.config import architecture_of, config_of, model_names
from prelude.models.gguf.directory import GgufDirectory, open_directory
from prelude.models.gguf.reader import TYPES, GgufFile
from prelude.models.packed import PackedLinear
from prelude.models.sentence_transformers import read_embedding
from prelude.readouts.batch import OneShotBatch
from tests.checkpoints import PLAIN, SMALL, write_checkpoint
from tests.engine.test_gguf import add_tokenizer
from tests.execution.helpers import Model, all_logprobs, cpu_executor, prompts, random_ids, run
from tests.gguf_files import BYTES, SCALES, TYPE, dequantized, gguf, quantized, write_model
from tests.models.test_gguf_header import header, tensor, written

SIZES = {**SMALL, "intermediate_size": 128, "tie_word_embeddings": True}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Every row is whole blocks of 256."""
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "qwen3": {"tie_word_embeddings": False, "attention_bias": True},
    "phi3": {**PLAIN["phi3"], "sliding_window": 24}, "gemma": {},
    "gemma2": {
        "sliding_window": 24, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {"sliding_window": 24, "query_pre_attn_scalar": 32, "final_logit_softcapping": 3.0},
}  # fmt: skip


def source(path: Path, family: str, **changes: Any) -> Path:
    return write_checkpoint(path, {**SIZES, **FAMILIES.get(family, {}), **changes}, family=family, scale=0.08)


def opened(path: Path, **options: Any) -> CpuExecutor:
    directory = open_directory(path)
    return cpu_executor(directory, ModelConfig.from_dir(directory), num_blocks=128, block_size=16, **options)


def logprobs(executor: CpuExecutor, ids: np.ndarray) -> np.ndarray:
    readout = all_logprobs(np.arange(len(ids)), executor.limits().vocab_size)
    return run(executor, OneShotBatch(prompts(ids), readout)).outputs[0].logprobs.reshape(len(ids), -1)


NUMBERS = [(family, "F32") for family in FAMILIES]
NUMBERS += [(family, kind) for family in ("llama", "gemma2") for kind in ("F16", "BF16")]


@pytest.mark.parametrize("family, kind", NUMBERS)
def test_numbers_are_those_of_transformers(family: str, kind: str, tmp_path: Path) -> None:
    model = source(tmp_path / "model", family)
    path = write_model(model, tmp_path / "model.gguf", kind)
    oracle = Model(dequantized(path, model, tmp_path / "values"))
    ids = random_ids(1, 60)
    assert np.abs(logprobs(opened(path), ids) - oracle.logprobs(ids)).max() < 1e-4
    assert ModelConfig.from_dir(open_directory(path)).spec == oracle.config.spec


@pytest.mark.parametrize(
    "family, kind, packing",
    [
        ("llama", "Q8_0", "int8"), ("qwen3", "Q8_0", "int8"), ("gemma3_text", "Q8_0", "int8"),
        ("llama", "Q4_K", "q4_k"), ("llama", "Q6_K", "q6_k"),
    ],
)  # fmt: skip
def test_integers_are_computed_as_they_are_stored(family: str, kind: str, packing: str, tmp_path: Path) -> None:
    """Against transformers over the dequantized weights: the difference is the rounding of a product's inputs."""
    model = source(tmp_path / "model", family, **({} if kind == "Q8_0" else WIDE))
    path = write_model(model, tmp_path / "model.gguf", kind)
    oracle = Model(dequantized(path, model, tmp_path / "values"))
    executor = opened(path)
    ids = random_ids(2, 60)
    found, wanted = logprobs(executor, ids), oracle.logprobs(ids)
    assert np.abs(np.exp(found) - np.exp(wanted)).max() < 0.01
    assert executor.limits().quantization == packing
    assert all(linear.packing == packing for linear in executor.weights.linears())
    assert isinstance(executor.weights.embeddings.tokens, PackedLinear)


def test_memory_is_that_of_the_file(tmp_path: Path) -> None:
    """Weights in 8, 6 and 4 bits take no more than they do in the file, but for a byte a scale of 6 bits, whatever is
    beside them; those of 5 bits, and numbers beside blocks, are repacked into 8."""
    model = source(tmp_path / "model", "llama", **WIDE)
    for kind, more in (
        ("Q8_0", 1.01),
        ("Q6_K", 1.01),
        ("Q5_K", 34 / 22 * 1.01),
        ("Q4_K", 148 / 144 * 1.02),
        (lambda name: "Q6_K" if "attn_v" in name else "Q4_K", 148 / 144 * 1.02),
        (lambda name: "F32" if "ffn_up" in name else "Q8_0" if "attn_q" in name else "Q4_K", 148 / 144 * 1.02),
    ):
        path = write_model(model, tmp_path / "model.gguf", kind)
        kept = opened(path).weights.nbytes
        assert kept <= path.stat().st_size * more
        with Checkpoint.open(open_directory(path), ModelConfig.from_dir(open_directory(path))) as checkpoint:
            assert abs(checkpoint.nbytes(4) - kept) < 0.05 * kept


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_blocks_have_the_values_of_the_packages_dequantizer(kind: str) -> None:
    generator = np.random.default_rng(3)
    values = generator.standard_normal((40, 512)).astype(np.float32)
    stored = quantized(values, kind)
    if kind != "Q8_0":  # every bit of scales and values
        stored = generator.integers(0, 256, stored.shape, np.uint8)
        halves = stored.reshape(-1, BYTES[kind])
        for at, _ in SCALES[kind]:
            halves[:, at + 1] &= 0xBF  # no infinities
    blocks = Blocks(kind, (40, 512), stored.view(np.uint8))
    wanted = gguf.quants.dequantize(stored, TYPE[kind])
    assert np.array_equal(blocks.dense(), wanted)
    assert np.array_equal(blocks.dense(7, 9), wanted[7:9])
    order = np.array([5, 0, 39])
    assert np.array_equal(blocks.rows(order).dense(), wanted[order])
    eight = blocks.eight_bits().dense()
    most = np.abs(wanted.reshape(40, -1, 32)).max(axis=2, keepdims=True)
    assert (np.abs((eight - wanted).reshape(40, -1, 32)) <= most * 0.0045 + 5e-6).all()  # of float16's smallest scale
    assert blocks.count_bad() == 0
    halves = blocks.data.reshape(-1, BYTES.get(kind, 34))
    for at, (first, _) in enumerate(SCALES.get(kind, [(0, 1)])):
        halves[at, first : first + 2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
        assert blocks.count_bad() == at + 1


def test_types_that_are_not_computed_are_refused(tmp_path: Path) -> None:
    for kind in set(TYPE) - set(TYPES):
        with pytest.raises(UnsupportedModel, match=f"is of type {kind.name};"):
            GgufFile(written(tmp_path, header([], [tensor(kind=kind)])))
    stored = np.full((1, BYTES["Q5_K"]), 255, np.uint8)
    stored[:, :4] = np.frombuffer(np.array([65504, 0], np.float16).tobytes(), np.uint8)
    with pytest.raises(UnsupportedModel, match="weights of Q5_K above 8"):
        Blocks("Q5_K", (1, 256), stored).eight_bits()


def test_kinds_of_blocks_in_one_projection_are_computed_apart() -> None:
    """Each has the outputs that it has alone, all of them or some, in any company, and keeps its values."""
    generator = np.random.default_rng(6)
    parts, count = [], 0
    for kind, rows in (("Q4_K", 64), ("Q4_K", 40), ("Q6_K", 33), ("Q5_K", 8), ("Q8_0", 70)):
        values = generator.standard_normal((rows, 512)).astype(np.float32)
        parts.append(Blocks(kind, (rows, 512), quantized(values, kind).view(np.uint8)))
        count += rows
    bias = generator.standard_normal(count).astype(np.float32)
    whole = PackedLinear.of_blocks(Blocks.joined(parts), bias)
    assert [part.kind for part in Blocks.joined(parts)] == ["Q4_K", "Q6_K", "Q8_0"]
    x = generator.standard_normal((11, 512)).astype(np.float32)
    found, at = whole(x), 0
    assert found.shape == (11, whole.outputs) == (11, count)
    for part in parts:
        alone = PackedLinear.of_blocks(Blocks.joined([part]))
        outputs = slice(at, at + part.shape[0])
        assert np.array_equal(found[:, outputs], alone(x) + bias[outputs])
        if part.kind in ("Q4_K", "Q6_K"):
            assert np.array_equal(alone.gather(np.arange(part.shape[0])), part.dense())
        near = x @ part.dense().T
        assert np.abs(alone(x) - near).max() < 0.02 * np.abs(near).max()
        at = outputs.stop
    for start, stop in ((0, 64), (32, 104), (64, 130), (0, 180), (32, count), (104, 137), (136, count)):
        assert np.array_equal(whole.rows(start, stop)(x), found[:, start:stop])
    added = found.copy()
    whole.add_to(added, x)
    assert np.allclose(added, 2 * found, rtol=1e-6)
    assert np.array_equal(whole(x[3:4]), found[3:4])


def test_mixed_types_as_q4_k_m_has_them(tmp_path: Path) -> None:
    """Values of 4 and of 6 bits in one projection, numbers beside them."""
    model = source(tmp_path / "model", "llama", **WIDE)

    def kind(name: str) -> str:
        return "Q6_K" if "attn_v" in name or "token_embd" in name else "F16" if "ffn_down" in name else "Q4_K"

    path = write_model(model, tmp_path / "model.gguf", kind)
    oracle = Model(dequantized(path, model, tmp_path / "values"))
    ids = random_ids(4, 50)
    found, wanted = np.exp(logprobs(opened(path), ids)), np.exp(oracle.logprobs(ids))
    assert (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.995


def test_rotary_factors_are_those_of_llama_3(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    model = source(tmp_path / "model", "llama", rope_parameters=rope)
    turns = 1 / 500000.0 ** (torch.arange(0, 32, 2).float() / 32)
    own = ModelConfig.from_dir(model).spec.layers[0].attention.rope
    assert own is not None
    factors = (turns.numpy() / own.frequencies()[0]).astype(np.float32)
    path = write_model(model, tmp_path / "model.gguf", "F32", lambda w: w.add_tensor("rope_freqs.weight", factors))
    ids = random_ids(5, 200)
    assert np.abs(logprobs(opened(path), ids) - Model(model).logprobs(ids)).max() < 1e-4


@pytest.mark.parametrize("turning, attention", [(1.0, {"attention_factor": 1.0}), (0.75, {"attention_factor": 1.5})])
def test_rotary_factors_are_those_of_phi_3(turning: float, attention: dict[str, float], tmp_path: Path) -> None:
    pairs = range(int(8 * turning))
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": turning}
    rope |= attention
    rope |= {"short_factor": [1 + 0.5 * pair for pair in pairs], "long_factor": [1 + 0.75 * pair for pair in pairs]}
    rope["original_max_position_embeddings"] = 256
    model = source(
        tmp_path / "model", "phi3", rope_parameters=rope, original_max_position_embeddings=256, head_dim=16
    )
    path = write_model(model, tmp_path / "model.gguf", "F32")
    assert ModelConfig.from_dir(open_directory(path)).spec == ModelConfig.from_dir(model).spec
    ids = random_ids(5, 200)
    assert np.abs(logprobs(opened(path), ids) - Model(model).logprobs(ids)).max() < 1e-4


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_biases_of_attention_turn_with_their_rows(kv_heads: int, tmp_path: Path) -> None:
    model = source(tmp_path / "model", "llama", attention_bias=True, mlp_bias=True, num_key_value_heads=kv_heads)

    def changed(writer: Any) -> None:
        if kv_heads == 4:  # as many as the queries have, if the file does not say
            writer.kv_data[0].pop("llama.attention.head_count_kv")

    path = write_model(model, tmp_path / "model.gguf", "F32", changed)
    ids = random_ids(6, 60)
    assert np.abs(logprobs(opened(path), ids) - Model(model).logprobs(ids)).max() < 1e-4


@pytest.mark.parametrize("pattern", [None, 2, [False, True, False], [True, True, False]])
def test_windows_and_bases_of_gemma_3(pattern: Any, tmp_path: Path) -> None:
    """Of each layer as the file says, every sixth without a window if it does not; bases of both kinds."""
    kinds = ["sliding_attention"] * 3
    if pattern == 2:
        kinds[1] = "full_attention"
    elif pattern is not None:
        kinds = ["sliding_attention" if one else "full_attention" for one in pattern]
    ropes = {"full_attention": 5e5, "sliding_attention": 3e3}
    rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in ropes.items()}
    model = source(tmp_path / "model", "gemma3_text", layer_types=kinds, rope_parameters=rope, head_dim=32)

    def changed(writer: Any) -> None:
        writer.add_float32("gemma3.rope.freq_base_swa", 3e3)
        if isinstance(pattern, list):
            writer.add_array("gemma3.attention.sliding_window_pattern", pattern)
        elif pattern is not None:
            writer.add_uint32("gemma3.attention.sliding_window_pattern", pattern)

    path = write_model(model, tmp_path / "model.gguf", "F32", changed)
    ids = random_ids(7, 90)
    assert np.abs(logprobs(opened(path), ids) - Model(model).logprobs(ids)).max() < 1e-4


@pytest.mark.parametrize("family, layers, scalar", [("gemma2", 46, 16), ("gemma2", 45, 32), ("gemma3_text", 62, 16)])
def test_scores_of_27_billion_weights_are_scaled_by_another_number(
    family: str, layers: int, scalar: int, tmp_path: Path
) -> None:
    model = source(tmp_path / "model", family, num_hidden_layers=layers, query_pre_attn_scalar=scalar, head_dim=32)
    path = write_model(model, tmp_path / "model.gguf", "F32")
    theirs, ours = (ModelConfig.from_dir(one).spec.attention.scale for one in (model, open_directory(path)))
    assert ours == theirs == scalar**-0.5


LINEAR, YARN = ({"rope.scaling.type": kind, "rope.scaling.factor": 4.0} for kind in ("linear", "yarn"))
METADATA: list[dict[str, Any]] = [
    LINEAR, {"rope.scale_linear": 4.0}, {"rope.scaling.factor": 4.0}, {"rope.scaling.type": "linear"},
    {"rope.scaling.type": "none", "rope.scale_linear": 4.0}, YARN,
    {**YARN, "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.3},
    dict.fromkeys(("rope.freq_base", "attention.key_length", "attention.value_length")),
]  # fmt: skip


@pytest.mark.parametrize("said", METADATA, ids=str)
def test_keys_mean_what_llama_cpp_makes_of_them(said: dict[str, Any], tmp_path: Path) -> None:
    """Keys of other values than the converter writes, and keys that are left out."""
    pytest.importorskip("xllamacpp", reason="the package xllamacpp, a build of llama.cpp, is not installed")
    from bench.engine.llama_cpp import LlamaCpp

    def changed(writer: Any) -> None:
        add_tokenizer(writer)
        for key, value in said.items():
            writer.kv_data[0].pop(f"qwen3.{key}", None)
            if value is not None:
                add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
                add(f"qwen3.{key}", value)

    path = write_model(default_model.path(), tmp_path / "model.gguf", "F32", changed)
    ids = random_ids(200, 200)
    [wanted] = LlamaCpp(path, threads=1, exact=True).top([ids.tolist()], 10)
    found = logprobs(opened(path), ids)[-1]
    assert max(abs(found[token] - logprob) for token, logprob in wanted) < 1e-4


def test_every_id_that_ends_a_text_is_read(tmp_path: Path) -> None:
    def changed(writer: Any) -> None:
        writer.add_eos_token_id(3)
        writer.add_eot_token_id(5)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 4)
        writer.add_bos_token_id(7)
        writer.add_pad_token_id(9)

    path = write_model(source(tmp_path / "model", "llama"), tmp_path / "model.gguf", "F32", changed)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 11}', encoding="utf-8")  # of another model
    found = ModelConfig.from_dir(open_directory(path))
    assert (found.eos_token_ids, found.bos_token_id, found.pad_token_id) == ((3, 5, 4), 7, 9)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_a_weight_of_more_than_one_chunk(kind: str) -> None:
    """Repacked some rows at a time; the chunk is four million values."""
    rows, inputs = 4200, 1024
    generator = np.random.default_rng(5)
    some = quantized(generator.standard_normal((300, inputs)).astype(np.float32), kind)
    stored = np.concatenate([some] * 14)
    blocks = Blocks(kind, (rows, inputs), stored.view(np.uint8))
    wanted = gguf.quants.dequantize(stored[[0, 299, 4095, 4096, 4199]], TYPE[kind])
    found = blocks.eight_bits().rows(np.array([0, 299, 4095, 4096, 4199])).dense()
    assert np.abs(found - wanted).max() <= np.abs(wanted).max() * 0.0045 + 5e-6


NEUTRAL: dict[str, Any] = {
    "attention.shared_kv_layers": 0, "nextn_predict_layers": 0, "leading_dense_block_count": 0,
    "expert_shared_count": 0, "pooling_type": 0, "embedding_length_out": SMALL["hidden_size"], "expert_count": 0,
    "expert_used_count": 0, "expert_feed_forward_length": 0, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0,
}  # fmt: skip


@pytest.mark.parametrize("key, value", [*NEUTRAL.items(), ("embedding_length_out", 0)])
def test_keys_that_change_nothing_are_read_and_others_refused(key: str, value: int, tmp_path: Path) -> None:
    model = source(tmp_path / "model", "qwen3")
    path = write_model(model, tmp_path / "a.gguf", "F32", lambda w: w.add_uint32(f"qwen3.{key}", value))
    assert ModelConfig.from_dir(open_directory(path)).spec == ModelConfig.from_dir(model).spec
    other = write_model(model, tmp_path / "b.gguf", "F32", lambda w: w.add_uint32(f"qwen3.{key}", value + 4))
    with pytest.raises(UnsupportedModel, match=f"qwen3.{key} = {value + 4}"):
        open_directory(other)


@pytest.mark.parametrize("number, pooling", [(1, "mean"), (2, "cls"), (3, "last"), (0, None)])
def test_the_pooling_of_a_file(number: int, pooling: str | None, tmp_path: Path) -> None:
    model = source(tmp_path / "model", "qwen3")
    path = write_model(model, tmp_path / "m.gguf", "F32", lambda w: w.add_uint32("qwen3.pooling_type", number))
    assert read_embedding(open_directory(path)).pooling == pooling
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}', encoding="utf-8")
    assert read_embedding(open_directory(path)).pooling == "max"  # what lies beside a file wins


def test_a_directory_with_one_file(tmp_path: Path) -> None:
    model = source(tmp_path / "model", "llama")
    write_model(model, tmp_path / "a.gguf", "F32")
    assert str(open_directory(tmp_path)) == str(tmp_path / "a.gguf")
    write_model(model, tmp_path / "b.gguf", "F32")
    with pytest.raises(ModelError, match="2 GGUF files"):
        open_directory(tmp_path)


ROPE = "llama.rope.scaling"
CHANGES: dict[str, tuple[Any, str]] = {
    "a key that is not known": (
        lambda w: w.add_uint32("llama.new_kind_of_attention", 7),
        "new_kind_of_attention = 7",
    ),
    "experts": (lambda w: w.add_expert_count(8), "expert_count = 8"),
    "a window": (lambda w: w.add_sliding_window(16), "sliding_window = 16"),
    "later tokens": (lambda w: w.add_causal_attention(False), "attention.causal = False"),
    "part of heads turn": (lambda w: w.add_rope_dimension_count(8), "rope.dimension_count = 8"),
    "a factor of attention": (lambda w: w.add_rope_scaling_attn_factors(1.5), "rope.scaling.attn_factor = 1.5"),
    "a rotary scaling": (lambda w: w.add_string("llama.rope.scaling.type", "longrope"), "longrope"),
    "values of another width": (lambda w: w.add_value_length(8), "attention.value_length = 8, heads have"),
    "factors beside a scaling": (
        lambda w: (w.add_tensor("rope_freqs.weight", np.ones(8, np.float32)), w.add_string(f"{ROPE}.type", "yarn")),
        "rope.scaling.type = 'yarn'",
    ),
    "a part of a model": (lambda w: w.add_uint16("split.count", 3), "llama-gguf-split"),
    "an adapter": (lambda w: w.add_type("adapter"), "general.type"),
    "a tensor of no kind": (lambda w: w.add_tensor("output", np.zeros(3, np.float32)), "tensor 'output' is not part"),
    "a tensor that is not known": (lambda w: w.add_tensor("blk.0.new.weight", np.zeros(3, np.float32)), "blk.0.new"),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_field_that_would_change_every_answer_is_refused(name: str, tmp_path: Path) -> None:
    change, said = CHANGES[name]
    path = write_model(source(tmp_path / "model", "llama"), tmp_path / "model.gguf", "F32", change)
    with pytest.raises(UnsupportedModel, match=said):
        opened(path)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = write_model(source(tmp_path / "model", "llama"), tmp_path / "model.gguf")
    tensor = next(one for one in gguf.GGUFReader(path).tensors if one.name == "blk.1.ffn_up.weight")
    data = bytearray(path.read_bytes())
    data[tensor.data_offset : tensor.data_offset + 2] = np.float16("inf").tobytes()
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"up_proj.weight: 1 blocks hold NaN or infinite values"):
        opened(path)


def test_config_json_beside_a_file_is_not_read(tmp_path: Path) -> None:
    path = write_model(source(tmp_path / "model", "llama"), tmp_path / "model.gguf", "F32")
    (tmp_path / "config.json").write_text(json.dumps({**PLAIN, "model_type": "bert"}), encoding="utf-8")
    assert ModelConfig.from_dir(open_directory(path)).model_type == "llama"


KEYS = ["context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"]
KEYS += ["attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length", "rope.freq_base"]
KEYS += ["attention.sliding_window", "attention.sliding_window_pattern", "rope.scaling.type", "rope.scaling.factor"]
KEYS += ["attn_logit_softcapping", "final_logit_softcapping", "rope.scaling.original_context_length", "vocab_size"]
VALUES: list[Any] = [
    0, -1, 1 << 63, 7, 0.0, 1e308, float("nan"), float("inf"), True, "x", "yarn", "linear", [], [1], ["x"], None,
]  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text"])
def test_metadata_of_other_values_and_types_are_refused(family: str, tmp_path: Path) -> None:
    """A ``ModelError`` that names the file, or a model whose tensors fit; nothing else."""
    path = write_model(source(tmp_path / "model", family), tmp_path / "model.gguf", "F32")
    with GgufFile(path) as file:
        architecture = file.metadata["general.architecture"]
        good = dict(file.metadata)
        for key in [*KEYS, "general.architecture", "general.type", "split.count"]:
            name = key if key.startswith(("general", "split")) else f"{architecture}.{key}"
            for value in VALUES:
                file.metadata = {**good, name: value}
                try:
                    directory = GgufDirectory(tmp_path, False, "", path, {}, config_of(file, architecture_of(file)))
                    config = ModelConfig.from_dir(directory)
                    Checkpoint.open(directory, config).close()
                except ModelError as refused:
                    assert str(path) in str(refused) and "config.json" not in str(refused), (key, value)


QK = {"attention.key_length": None, "attention.value_length": None}
YARN_ONE: dict[str, Any] = {"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0, "rope.scaling.attn_factor": 1.5}
READ: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("qwen3", {"vocab_size": 7, "mm.tokens_per_image": 9, "attention.causal": True}, {}),
    ("qwen3", {"tensor_data_layout": "reference", "rope.scaling.finetuned": False}, {}),
    ("llama", {"tensor_data_layout": "Meta AI original pth", "rope.scaling.finetuned": True}, {}),
    ("qwen3", {"attention.head_count_kv": None}, {"num_key_value_heads": SMALL["num_attention_heads"]}),
    ("qwen3", {**QK, "attention.head_count": 1}, {"num_attention_heads": 1, "head_dim": SMALL["hidden_size"]}),
    ("qwen3", {"rope.freq_base": 1e30}, {"rope_theta": 1e30}),
    ("qwen3", {"rope.freq_base": None}, {"rope_theta": 10000.0}),
    ("qwen3", {"attention.layer_norm_rms_epsilon": 9.999999974752427e-07}, {"rms_norm_eps": 1e-6}),
    ("qwen3", {"rope.scaling.attn_factor": 1.0}, {}),
    ("qwen3", {"rope.scaling.type": "linear"}, {}),
    ("qwen3", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    ("qwen3", {"rope.scale_linear": 4.0}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("qwen3", {"rope.scale_linear": 4.0, "rope.scaling.factor": 2.0},
     {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("qwen3", YARN_ONE, {"rope_scaling": {"rope_type": "yarn", "factor": 1.0, "attention_factor": 1.5}}),
    ("phi3", {"attention.sliding_window": 0}, {"sliding_window": None}),
    ("phi3", {"rope.dimension_count": 1}, {"partial_rotary_factor": 1 / 16}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None},
     {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    ("gemma2", {"block_count": 46, "attention.head_count": 0}, {"num_hidden_layers": 46, "num_attention_heads": 0}),
    ("gemma2", {"block_count": 46, "attention.head_count": 1},
     {"num_hidden_layers": 46, "num_attention_heads": 1, "query_pre_attn_scalar": SMALL["hidden_size"]}),
    ("gemma2", {"block_count": 62}, {"num_hidden_layers": 62}),
    ("gemma3_text", {"final_logit_softcapping": 0.0}, {"final_logit_softcapping": None}),
    ("gemma3_text", {"rope.freq_base_swa": 3e3}, {"rope_local_base_freq": 3e3}),
    ("gemma3_text", {"attention.sliding_window_pattern": 2}, {"sliding_window_pattern": 2}),
]  # fmt: skip
NOT_READ: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3", {"context_length": None}, "metadata qwen3.context_length is missing"),
    ("qwen3", {"rope.freq_base": 2e30}, "rope.freq_base is 2e.30: a number from -1e.30 to 1e.30"),
    ("qwen3", {"rope.freq_base": -2e30}, "a number from -1e.30"),
    ("qwen3", {"rope.freq_base": True}, "rope.freq_base is True: a number"),
    ("qwen3", {"attention.head_count_kv": [2, 2]}, "head_count_kv by layer"),
    ("qwen3", {**QK, "attention.head_count": 0}, "head_count is 0: it must divide embedding_length"),
    ("qwen3", {**QK, "attention.head_count": 5}, "head_count is 5: it must divide embedding_length"),
    ("qwen3", {**QK, "attention.head_count": 2.0}, "head_count is 2.0: it must divide embedding_length"),
    ("qwen3", {"rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor = 1.5"),
    ("phi3", {"rope.dimension_count": 0}, "rope.dimension_count is 0: heads have 16 values"),
    ("phi3", {"rope.dimension_count": 17}, "rope.dimension_count is 17: heads have 16 values"),
    ("phi3", {"rope.dimension_count": 8.0}, "rope.dimension_count is 8.0"),
    ("phi3", {"attention.value_length": 8}, "attention.value_length = 8, heads have 16 values"),
    ("gemma2", {"attention.sliding_window": None}, "gemma2.attention.sliding_window is missing"),
]  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gemma2", "gemma3_text"])
def test_the_config_of_a_file_is_that_of_its_keys(family: str, tmp_path: Path) -> None:
    """One key changed in a file's metadata changes the config where it says so, and nothing else."""
    path = write_model(source(tmp_path / "model", family, head_dim=16), tmp_path / "model.gguf", "F32")
    with GgufFile(path) as file:
        name, good = architecture_of(file), dict(file.metadata)
        plain = config_of(file, name)

        def say(changes: dict[str, Any]) -> None:
            told = {**good, **{f"{name}.{key}": value for key, value in changes.items()}}
            file.metadata = {key: value for key, value in told.items() if value is not None}

        for changes, wanted in ((one[1], one[2]) for one in READ if one[0] == family):
            say(changes)
            assert config_of(file, name) == {**plain, **wanted}, changes
        for changes, said in ((one[1], one[2]) for one in NOT_READ if one[0] == family):
            say(changes)
            with pytest.raises(ModelError, match=said):
                config_of(file, name)


@pytest.mark.parametrize(
    "architecture, names, error, said",
    [
        (
            "llama",
            ["blk.0.attn_q.weight", "blk.00.attn_q.weight"],
            CheckpointError,
            "'blk.00.attn_q.weight' are both",
        ),
        ("llama", ["blk.1000000.attn_q.weight"], UnsupportedModel, "'blk.1000000.attn_q.weight' is not part of"),
        (
            "llama",
            ["rope_factors_long.weight"],
            UnsupportedModel,
            "'rope_factors_long.weight' is not part of a llama",
        ),
        ("phi3", ["blk.0.attn_q.weight"], UnsupportedModel, "'blk.0.attn_q.weight' is not part of a phi3"),
        ("gemma", ["blk.0.post_ffw_norm.weight"], UnsupportedModel, "'blk.0.post_ffw_norm.weight' is not part of"),
    ],
)
def test_names_of_tensors_that_are_refused(
    architecture: str, names: list[str], error: type[ModelError], said: str
) -> None:
    with pytest.raises(error, match=said):
        model_names(names, architecture, "here")
