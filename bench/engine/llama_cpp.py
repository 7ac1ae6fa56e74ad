"""llama.cpp beside ours: GGUF files of one model, read through its own server's completions inside this process.

The package ``xllamacpp`` has a build of llama.cpp. Its server object takes token ids and gives logprobs; no request
goes over a socket.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

CONTEXT = 1024  # tokens of a lone sequence
TOGETHER = 256  # of each of several
TYPES = ("BF16", "Q8_0")


def write_gguf(source: Path, path: Path, kind: str) -> Path:
    """The model of ``source`` with the packaged tokenizer and matrices of ``kind``; norms stay float32. Blocks of
    Q4_K and Q6_K are random."""
    from tests.engine.test_gguf import add_tokenizer
    from tests.gguf_files import write_model

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    chosen = partial(_mixed, config["num_hidden_layers"]) if kind == "Q4_K_M" else kind
    part = path.with_suffix(".part")
    write_model(source, part, chosen, lambda writer: add_tokenizer(writer, config["vocab_size"]))
    return part.rename(path)


def _mixed(layers: int, name: str) -> str:
    """llama.cpp's choice for Q4_K_M: Q6_K for the embedding, and for values and ``ffn_down`` of half the layers
    (``use_more_bits`` in its ``llama-quant.cpp``)."""
    if "attn_v" not in name and "ffn_down" not in name:
        return "Q6_K" if "token_embd" in name else "Q4_K"
    layer = int(name.split(".")[1])
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return "Q6_K" if more else "Q4_K"


def system_info() -> str:
    """llama.cpp's own list of the instruction sets and backends that it was built for."""
    import xllamacpp

    return str(xllamacpp.get_system_info())


class LlamaCpp:
    """A model of llama.cpp. ``sequences``: prompts that it computes at once. ``exact``: keys and values of float32,
    else its default of float16. ``flash``: its own attention, else plain products. ``unified``: the sequences share
    one cache. ``tokens``: of each of several sequences, at most."""

    def __init__(
        self,
        path: Path,
        threads: int,
        sequences: int = 1,
        exact: bool = False,
        flash: bool = True,
        unified: bool = False,
        tokens: int = TOGETHER,
    ) -> None:
        import xllamacpp

        wanted = xllamacpp.CommonParams()
        wanted.model.path = str(path)
        wanted.n_ctx = CONTEXT if sequences == 1 else tokens * sequences
        wanted.n_parallel = sequences
        wanted.n_batch = wanted.n_ubatch = 512 if sequences == 1 else 2048
        wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = threads
        wanted.warmup = False
        wanted.kv_unified = unified
        kinds = xllamacpp.llama_flash_attn_type
        on, off = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED, kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
        wanted.flash_attn_type = on if flash and not exact else off
        if exact:
            wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        wanted.cache_ram_mib = 0  # else a call may copy its keys and values
        wanted.verbosity = 0
        self._server = xllamacpp.Server(wanted)

    def top(self, prompts: list[list[int]], count: int) -> list[list[tuple[int, float]]]:
        """For each prompt the next token's ``count`` best candidates, their ids and logprobs."""
        choices = self._complete(prompts, max_tokens=1, logprobs=count)["choices"]
        by_prompt = sorted(choices, key=lambda choice: int(choice["index"]))
        first = [choice["logprobs"]["content"][0]["top_logprobs"] for choice in by_prompt]
        return [[(int(one["id"]), float(one["logprob"])) for one in best] for best in first]

    def say(self, prompts: list[list[int]], tokens: int) -> int:
        """Say ``tokens`` behind each prompt, the likeliest, without their logprobs. Return how many were said."""
        return int(self._complete(prompts, max_tokens=tokens)["usage"]["completion_tokens"])

    def _complete(self, prompts: list[list[int]], **more: Any) -> dict[str, Any]:
        greedy = {"temperature": 0.0, "samplers": ["temperature"]}
        body = {"prompt": prompts, "ignore_eos": True, "cache_prompt": False, **greedy, **more}
        found: dict[str, Any] = self._server.handle_completions(body)
        if "choices" not in found:
            raise RuntimeError(f"llama.cpp answers {found}")
        return found
