"""The engine's time over a bare forward: a tiny model, 16 tokens in, one token out, alone and 64 at once.

    python -m bench tiny [--json FILE] [--quick]

The bare forward is the least that a user could write in torch for this one model: lengths that are equal, no cache,
no masks but the causal one, the LM head on the last position alone, argmax. One thread, CPU time. Both sides draw the
same tokens, or nothing is reported; they are timed in turn, and their difference is the row.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.common import Report, machine_facts, run_alone, use_threads
from prelude import Engine, EngineConfig, Generate, SamplingParams

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "initializer_range": 0.12,
}
TOKENS = 16
PARAMS = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
Ids = npt.NDArray[np.int64]


def write_model(path: Path) -> None:
    """131,520 random parameters, and a tokenizer of 512 bytes and pairs of them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SIZES)).save_pretrained(path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=alphabet)
    draw = np.random.default_rng(0)
    texts = [" ".join(map(str, draw.integers(0, 1000, 50))) for _ in range(200)]
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(path)


def bare_forward(path: Path) -> Callable[[Ids], list[int]]:
    """[rows, tokens] ids to one greedy token each."""
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file

    weights = load_file(path / "model.safetensors")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    heads, kv, size = SIZES["num_attention_heads"], SIZES["num_key_value_heads"], SIZES["head_dim"]
    eps = config["rms_norm_eps"]
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    angles = torch.outer(torch.arange(TOKENS), 1.0 / theta ** (torch.arange(0, size, 2) / size)).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    embedding = weights["model.embed_tokens.weight"]
    layers = []
    for layer in range(SIZES["num_hidden_layers"]):
        part = {name.split(f".{layer}.", 1)[1]: w for name, w in weights.items() if f"layers.{layer}." in name}
        joined = torch.cat([part[f"self_attn.{name}_proj.weight"] for name in "qkv"])
        gated = torch.cat([part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"]])
        layers.append((part, joined, gated))

    def norm(x: Any, weight: Any) -> Any:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def turned(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(ids: Ids) -> list[int]:
        with torch.inference_mode():
            rows = len(ids)
            x = embedding[torch.from_numpy(ids)]
            for part, joined, gated in layers:
                qkv = F.linear(norm(x, part["input_layernorm.weight"]), joined).view(rows, TOKENS, -1, size)
                q, k, v = qkv.transpose(1, 2).split([heads, kv, kv], 1)
                q = turned(norm(q, part["self_attn.q_norm.weight"]))
                k = turned(norm(k, part["self_attn.k_norm.weight"]))
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                x = x + F.linear(mixed.transpose(1, 2).reshape(rows, TOKENS, -1), part["self_attn.o_proj.weight"])
                gate, up = F.linear(norm(x, part["post_attention_layernorm.weight"]), gated).chunk(2, -1)
                x = x + F.linear(F.silu(gate) * up, part["mlp.down_proj.weight"])
            drawn: list[int] = F.linear(norm(x[:, -1], weights["model.norm.weight"]), embedding).argmax(-1).tolist()
            return drawn

    return forward


class Bench:
    def __init__(self, quick: bool) -> None:
        self.requests = 600 if quick else 4000  # of each batch size, but for the least number of repeats
        self.report = Report("Over a bare forward, end to end", facts=machine_facts())
        self.us: dict[str, float] = {}
        self.draw = np.random.default_rng(0)

    def run(self, path: Path) -> None:
        bare = bare_forward(path)
        with Engine.from_pretrained(path, device="cpu", config=EngineConfig(max_length=1024)) as engine:
            for rows, reach in ((1, 60), (64, 10)):
                self.compare(engine, bare, rows, reach)

    def compare(self, engine: Engine, bare: Callable[[Ids], list[int]], rows: int, reach: float) -> None:
        times: dict[str, list[float]] = {"engine": [], "bare": []}
        for repeat in range(max(60, self.requests // rows) + 5):
            ids = self.draw.integers(3, 512, (rows, TOKENS))
            tasks = [Generate(prompt, PARAMS) for prompt in ids.tolist()]
            began = time.thread_time()
            results = [engine.run(tasks[0])] if rows == 1 else engine.run_many(tasks)
            took = time.thread_time() - began
            began = time.thread_time()
            drawn = bare(ids)
            plain = time.thread_time() - began
            if [result.token_ids[0] for result in results] != drawn:
                raise SystemExit("the engine and the bare forward draw different tokens; nothing is timed")
            if repeat >= 5:
                for name, value in (("engine", took), ("bare", plain)):
                    times[name].append(value / rows * 1e6)
        low = {name: float(np.percentile(values, 10)) for name, values in times.items()}
        over = [e - b for e, b in zip(times["engine"], times["bare"])]
        load = f"16 tokens, batch {rows}"
        labels = {"engine": "engine", "bare": "bare forward in torch"}
        for name, label in labels.items():
            values = (low[name], low[name], float(np.percentile(times[name], 90)))
            self.report.add(load, label, values, "us", note=f"median {np.median(times[name]):.1f}")
            self.us[f"{name}_b{rows}"] = low[name]
        self.us[f"over_b{rows}"] = low["engine"] - low["bare"]
        value = self.us[f"over_b{rows}"]
        spread = (value, float(np.percentile(over, 10)), float(np.percentile(over, 90)))
        self.report.add(load, "over the bare forward", spread, "us", reach=f"{reach:g}", note="of 10th percentiles")


def measured(quick: bool) -> Bench:
    use_threads(1)
    bench = Bench(quick)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        bench.run(Path(folder))
    return bench


def main() -> None:
    run_alone(__doc__, measured, "end_to_end_us")


if __name__ == "__main__":
    main()
