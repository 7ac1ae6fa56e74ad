"""Prelude's peers, each in several ways; a load takes the fastest of those that are right.

A peer has variants: a graph, an attention, a cache. Each takes token ids of texts, computes them at once and gives a
row a text. Several texts are fed one by one, in twos, fours and eights sorted by length, and all at once; prompts of
a decoder one by one, in fours and all at once.

llama.cpp is the package ``xllamacpp``. Its wheel is built for AVX2; for the processor at hand build its source
package, which has llama.cpp in it (cmake and a C++ compiler). No BLAS is in it:

    CMAKE_ARGS="-DLLAMA_LLGUIDANCE=OFF -DLLAMA_BUILD_BORINGSSL=OFF" pip install --no-binary xllamacpp xllamacpp

GGML_NATIVE is on in such a build; the result file has llama.cpp's own list of its instruction sets, and those that
are found in the library. GCC 12
drops the shapes of ggml's AMX tiles, and the first product ends in an illegal instruction: take another compiler, or
put ``asm volatile("" : : "r"(&tc) : "memory");`` before ``_tile_loadconfig(&tc)`` in ``ggml-cpu/amx/mmq.cpp``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine import llama_cpp
from prelude import Embed, Engine, EngineConfig, Generate, SamplingParams

Way = Callable[[list[list[int]]], np.ndarray]
"""An encoder's: token ids of texts to the mean of each one's last hidden states, at length 1."""
Likeliest = list[dict[int, float]]
"""For each prompt so many next tokens, the likeliest first, with their logprobs."""
Said = Callable[[list[list[int]], int, int], Any]
"""A decoder's: prompts, tokens to say and how many are told, to ``Likeliest`` of one token. Of more tokens it is how
many were said behind all prompts, without logprobs."""
OURS = {
    "prelude auto": ("auto", None),
    "prelude float32": ("float32", None),
    "prelude bfloat16": ("bfloat16", None),
    "prelude int8": ("auto", "int8"),
}
"""``dtype`` and ``quantization`` of our sides."""


def installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


# ------------------------------------------------------------------ how several texts are fed


def in_batches(run: Callable[..., Any], size: int) -> Callable[..., Any]:
    """By length, in batches, as sentence-transformers does it."""

    def way(texts: list[list[int]], *more: int) -> Any:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        parts = [order[at : at + size] for at in range(0, len(order), size)]
        made = [run([texts[at] for at in part], *more) for part in parts]
        if not isinstance(made[0], (np.ndarray, list)):
            return sum(made)
        rows = dict(zip(order, (row for part in made for row in part)))
        found = [rows[at] for at in range(len(texts))]
        return np.stack(found) if isinstance(made[0], np.ndarray) else found

    return way


def fed(variants: dict[str, Any], count: int, together: Sequence[int]) -> dict[str, Any]:
    """Each variant in each way of feeding it so many texts; ``together``: how many of them, sorted, at once."""
    if count == 1:
        return {f"{name}, alone": run for name, run in variants.items()}
    sizes = {"one by one": 1, **{f"sorted, {size} at once": size for size in together}, "all at once": count}
    return {f"{name}, {how}": in_batches(run, size) for name, run in variants.items() for how, size in sizes.items()}


def padded(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask, int64."""
    longest = max(map(len, ids))
    table, mask = (np.zeros((len(ids), longest), np.int64) for _ in range(2))
    for row, one in enumerate(ids):
        table[row, : len(one)], mask[row, : len(one)] = one, 1
    return table, mask


# ------------------------------------------------------------------ encoders


def pooled(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    weights = mask.astype(np.float32)[..., None]
    means = (states * weights).sum(axis=1) / weights.sum(axis=1)
    vectors: np.ndarray = means / np.linalg.norm(means, axis=1, keepdims=True)
    return vectors


def our_encoder(engine: Engine) -> Way:
    def run(texts: list[list[int]]) -> np.ndarray:
        return np.stack(engine.run_many([Embed(ids, pooling="mean", normalize=True) for ids in texts]))

    return run


def transformers_encoders(path: Path) -> dict[str, Way]:
    import torch
    from transformers import AutoModel

    def of(attention: str) -> Way:
        model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation=attention).eval()

        def run(texts: list[list[int]]) -> np.ndarray:
            ids, mask = padded(texts)
            with torch.inference_mode():
                given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
                return pooled(model(**given).last_hidden_state.numpy(), mask)

        return run

    found = {"eager attention": of("eager")}
    try:
        return {"sdpa attention": of("sdpa"), **found}
    except ValueError:  # a family without it
        return found


def exported(path: Path) -> Path:
    """The network as ONNX; here and below a file that is there is taken."""
    file = path / "model.onnx"
    if file.exists():
        return file
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids, axes = torch.ones(2, 17, dtype=torch.long), {0: "texts", 1: "tokens"}
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(
        Plain(),
        (ids, torch.ones_like(ids)),
        str(file),
        input_names=names,
        output_names=["states"],
        dynamic_axes=dict.fromkeys([*names, "states"], axes),
        opset_version=17,
        dynamo=False,
    )
    return file


def fused(file: Path) -> Path:
    """The graph of ONNX Runtime's optimizer for transformers: normalisation and GELU are one operation, and so is the
    attention of BERT's kind, but not that of ModernBERT, whose heads turn."""
    made = file.with_name("fused.onnx")
    if made.exists():
        return made
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(file.parent)
    graph = optimize_model(str(file), "bert", config.num_attention_heads, config.hidden_size)
    graph.save_model_to_file(str(made))
    return made


def onnx_graphs(path: Path) -> dict[str, Path]:
    """The exported graph and the fused one."""
    plain = exported(path)
    return {"exported graph": plain, "fused graph": fused(plain)}


def onnx_int8(graphs: dict[str, Path]) -> dict[str, Path]:
    """Dynamic int8 of each graph behind ONNX Runtime's pre-processing, a scale a channel and a scale a weight. Signed
    weights of 8 bits may saturate without VNNI; those of 7 bits and unsigned ones do not. Further
    variants multiply blocks of 32 weights, each with a scale, by rows of int8."""
    from onnx import TensorProto, load
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.shape_inference import quant_pre_process

    types = {"DefaultTensorType": TensorProto.FLOAT}  # of what a fused operation gives
    kinds = {
        "8 bits": (QuantType.QInt8, False),
        "7 bits": (QuantType.QInt8, True),
        "unsigned": (QuantType.QUInt8, False),
    }
    found = {}
    for name, file in graphs.items():
        prepared = file.with_name(f"{file.stem}-prepared.onnx")
        for scales, (bits, (kind, less)) in product(("channel", "weight"), kinds.items()):
            made = file.with_name(f"{file.stem}-{scales}-{bits.replace(' ', '')}.onnx")
            found[f"{name}, a scale a {scales}, {bits}"] = made
            if made.exists():
                continue
            # Symbolic shapes do not go through these graphs.
            quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
            options = {"per_channel": scales == "channel", "reduce_range": less, "weight_type": kind}
            quantize_dynamic(str(prepared), str(made), extra_options=types, **options)
        blocks = found[f"{name}, blocks of 32, 8 bits"] = file.with_name(f"{file.stem}-blocks.onnx")
        if not blocks.exists():
            quantizer = MatMulNBitsQuantizer(load(file), 8, 32, is_symmetric=True, accuracy_level=4)
            quantizer.process()
            quantizer.model.save_model_to_file(str(blocks))
    return found


def onnx_way(file: Path, threads: int) -> Way:
    """ONNX Runtime's defaults but for the threads: they go on spinning after a run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(texts: list[list[int]]) -> np.ndarray:
        ids, mask = padded(texts)
        return pooled(session.run(None, {"input_ids": ids, "attention_mask": mask})[0], mask)

    return run


def encoder_peers(path: Path, threads: int) -> Iterator[tuple[str, Callable[[], dict[str, Way]]]]:
    """Peers and what makes their variants, which raises for a network that a peer does not take."""
    yield "transformers", lambda: transformers_encoders(path)
    graphs: dict[str, Path] = {}

    def float32() -> dict[str, Way]:
        graphs.update(onnx_graphs(path))
        return {name: onnx_way(file, threads) for name, file in graphs.items()}

    yield "ONNX Runtime", float32
    yield "ONNX Runtime int8", lambda: {name: onnx_way(file, threads) for name, file in onnx_int8(graphs).items()}


# ------------------------------------------------------------------ decoders


def our_decoder(engine: Engine) -> Said:
    def say(prompts: list[list[int]], tokens: int, count: int) -> Any:
        logprobs = count if tokens == 1 else None
        params = SamplingParams(max_tokens=tokens, temperature=0.0, logprobs=logprobs, ignore_eos=True)
        found = engine.run_many([Generate(ids, params) for ids in prompts])
        if tokens > 1:
            return sum(len(one.token_ids) for one in found)
        return [dict(one.logprobs[0].top) for one in found]

    return say


def transformers_decoders(path: Path) -> dict[str, Said]:
    """bfloat16 with sdpa attention. A text is said with a cache that grows, and with one of a fixed size."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="sdpa").eval()

    def said(cache: str) -> Said:
        def say(prompts: list[list[int]], tokens: int, count: int) -> Any:
            ids, mask = map(torch.from_numpy, padded(prompts))
            with torch.inference_mode():
                if tokens > 1:  # of one prompt, which has no padding
                    made = model.generate(
                        ids,
                        attention_mask=mask,
                        max_new_tokens=tokens,
                        min_new_tokens=tokens,
                        do_sample=False,
                        cache_implementation=cache,
                    )
                    return made.shape[1] - ids.shape[1]
                states = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
                logits = model.lm_head(states[torch.arange(len(ids)), mask.sum(dim=1) - 1]).float()
                best = logits.log_softmax(dim=1).topk(count)
            return [dict(zip(*row)) for row in zip(best.indices.tolist(), best.values.tolist())]

        return say

    return {"growing cache": said("dynamic"), "cache of a fixed size": said("static")}


def llama_decoders(file: Path, threads: int) -> dict[str, Said]:
    """With and without its flash attention, and with it on one cache of all prompts. Servers for lone prompts and for
    sixteen are made when used."""

    def said(**settings: bool) -> Said:
        servers: dict[int, llama_cpp.LlamaCpp] = {}

        def say(prompts: list[list[int]], tokens: int, count: int) -> Any:
            at_once = 1 if len(prompts) == 1 else 16
            if at_once not in servers:
                servers[at_once] = llama_cpp.LlamaCpp(file, threads, sequences=at_once, **settings)
            if tokens > 1:
                return servers[at_once].say(prompts, tokens)
            return [dict(best) for best in servers[at_once].top(prompts, count)]

        return say

    found = {"flash attention": said(flash=True), "plain attention": said(flash=False)}
    return found | {"flash attention, one cache": said(flash=True, unified=True)}


def gguf_files(path: Path, made: Path, chosen: Callable[[str], bool]) -> dict[str, Path]:
    """The decoder in each type of GGUF that a chosen side reads."""
    types = (*llama_cpp.TYPES, "Q4_K_M")
    kinds = [kind for kind in types if chosen(f"llama.cpp {kind}") or chosen(f"prelude {kind}")]
    files = {kind: made / f"{kind}.gguf" for kind in kinds}
    return {kind: file if file.exists() else llama_cpp.write_gguf(path, file, kind) for kind, file in files.items()}


def decoder_peers(
    path: Path, threads: int, files: dict[str, Path]
) -> Iterator[tuple[str, Callable[[], dict[str, Said]]]]:
    yield "transformers bfloat16", lambda: transformers_decoders(path)
    for kind, file in files.items():
        yield f"llama.cpp {kind}", lambda file=file: llama_decoders(file, threads)  # type: ignore[misc]


def our_engines(
    path: Path, files: dict[str, Path], decodes: bool, chosen: Callable[[str], bool]
) -> dict[str, Engine]:
    """Our sides, those of GGUF files of a few bits too."""
    sizes: dict[str, Any] = {"kv_bytes": 512 << 20} if decodes else {}
    sides = {side: (path, *options) for side, options in OURS.items() if decodes or side != "prelude auto"}
    sides |= {f"prelude {kind}": (file, "auto", None) for kind, file in files.items() if kind == "Q4_K_M"}
    return {
        side: Engine.from_pretrained(
            where, dtype=dtype, config=EngineConfig(default_cache="never", quantization=quantization, **sizes)
        )
        for side, (where, dtype, quantization) in sides.items()
        if chosen(side)
    }
