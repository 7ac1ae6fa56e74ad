"""Prelude and its peers on real shapes: encoders from token ids to vectors, decoders from prompts to text."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine import llama_cpp
from bench.engine.encoders import Side, installed, onnx_side, our_side, padded, pooled, transformers_side
from prelude import Engine, EngineConfig, Generate, SamplingParams, default_model

QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
OURS = {
    "prelude auto": ("auto", None),
    "prelude float32": ("float32", None),
    "prelude bfloat16": ("bfloat16", None),
    "prelude int8": ("auto", "int8"),
}
"""``dtype`` and ``quantization`` of a decoder's sides."""
LeftOut = Callable[[str, str], None]
"""Told of a peer, with the reason."""


def random_decoder(folder: Path) -> Path:
    if (folder / "Qwen3-0.6B").exists():
        return folder / "Qwen3-0.6B"
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        Qwen3ForCausalLM(Qwen3Config(**QWEN3, dtype="bfloat16")).save_pretrained(folder / "Qwen3-0.6B")
    finally:
        torch.set_default_dtype(before)
    shutil.copy(default_model.path() / "tokenizer.json", folder / "Qwen3-0.6B" / "tokenizer.json")
    return folder / "Qwen3-0.6B"


# ------------------------------------------------------------------ encoders


def sentence_transformers_side(path: Path) -> Side:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device="cpu")

    def side(texts: list[list[int]]) -> np.ndarray:
        ids, mask = padded(texts)
        with torch.inference_mode():
            made = model({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)})
        vectors: np.ndarray = torch.nn.functional.normalize(made["sentence_embedding"]).numpy()
        return vectors

    return side


def onnx_int8_side(path: Path, threads: int) -> Side:
    """Dynamic int8 of the network that ``onnx_side`` has exported."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = path / "int8.onnx"
    quantize_dynamic(str(path / "model.onnx"), str(file), weight_type=QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def side(texts: list[list[int]]) -> np.ndarray:
        ids, mask = padded(texts)
        return pooled(session.run(None, {"input_ids": ids, "attention_mask": mask})[0], mask)

    return side


def encoder_sides(path: Path, threads: int, peers: bool, left_out: LeftOut) -> tuple[dict[str, Side], list[Engine]]:
    engines = {
        side: Engine.from_pretrained(path, config=EngineConfig(default_cache="never", quantization=quantization))
        for side, quantization in (("prelude float32", None), ("prelude int8", "int8"))
    }
    found = {side: our_side(engine) for side, engine in engines.items()}
    needed: dict[str, tuple[tuple[str, ...], Callable[[], Side]]] = {
        "transformers": (("transformers",), lambda: transformers_side(path)),
        "ONNX Runtime": (("onnxruntime", "onnx"), lambda: onnx_side(path, threads)),
        "ONNX Runtime int8": (("onnxruntime", "onnx"), lambda: onnx_int8_side(path, threads)),
    }
    if (path / "modules.json").exists():
        needed["sentence-transformers"] = (("sentence_transformers",), lambda: sentence_transformers_side(path))
    for peer, (packages, make) in needed.items() if peers else ():
        try:
            if not all(map(installed, packages)):
                raise ImportError("not installed")
            found[peer] = make()
        except Exception as failure:  # a peer that is not there, or a network that it does not take
            left_out(peer, type(failure).__name__)
    return found, list(engines.values())


# ------------------------------------------------------------------ decoders


def our_decoder(engine: Engine) -> llama_cpp.Said:
    def say(prompts: list[list[int]], tokens: int = 1) -> list[float]:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, logprobs=1, ignore_eos=True)
        found = engine.run_many([Generate(ids, params) for ids in prompts])
        assert all(len(one.token_ids) == tokens for one in found)
        return [one.logprobs[0].logprob for one in found]

    return say


def transformers_decoder(path: Path) -> llama_cpp.Said:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()

    def say(prompts: list[list[int]], tokens: int = 1) -> list[float]:
        ids, mask = map(torch.from_numpy, padded(prompts))
        with torch.inference_mode():
            if tokens > 1:  # of one prompt, which has no padding
                made = model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=tokens,
                    min_new_tokens=tokens,
                    do_sample=False,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
                logits = made.logits[0].float()
            else:
                states = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
                logits = model.lm_head(states[torch.arange(len(ids)), mask.sum(dim=1) - 1]).float()
        best: list[float] = logits.log_softmax(dim=1).amax(dim=1).tolist()
        return best

    return say


def llama_decoders(path: Path, made: Path, threads: int) -> dict[str, llama_cpp.Said]:
    """A side for each type of GGUF file. Lone prompts and several at once have servers of their own."""

    def side(file: Path) -> llama_cpp.Said:
        alone, many = llama_cpp.LlamaCpp(file, threads), llama_cpp.LlamaCpp(file, threads, sequences=16)
        return lambda prompts, tokens=1: (alone if len(prompts) == 1 else many).say(prompts, tokens)

    found = {}
    for kind in llama_cpp.TYPES:
        file = made / f"{kind}.gguf"
        if not file.exists():
            llama_cpp.write_gguf(path, file, kind)
        found[f"llama.cpp {kind}"] = side(file)
    return found


def decoder_sides(
    path: Path, made: Path, threads: int, peers: bool, left_out: LeftOut
) -> tuple[dict[str, llama_cpp.Said], list[Engine]]:
    engines = {}
    for side, (dtype, quantization) in OURS.items():
        config = EngineConfig(default_cache="never", kv_bytes=512 << 20, quantization=quantization)
        engines[side] = Engine.from_pretrained(path, dtype=dtype, config=config)
    sides = {side: our_decoder(engine) for side, engine in engines.items()}
    if peers:
        sides["transformers bfloat16"] = transformers_decoder(path)
        if installed("xllamacpp") and installed("gguf"):
            sides |= llama_decoders(path, made, threads)
        else:
            left_out("llama.cpp", "xllamacpp or gguf is not installed")
    return sides, list(engines.values())
