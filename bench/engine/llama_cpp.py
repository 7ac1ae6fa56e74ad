"""llama.cpp beside ours: GGUF files of one model, read through its own server's completions inside this process.

The package ``xllamacpp`` has a build of llama.cpp. Its server object takes token ids and gives logprobs; no request
goes over a socket.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol


class Said(Protocol):
    """A decoder that says ``tokens`` tokens after each prompt, the best candidates."""

    def __call__(self, prompts: list[list[int]], tokens: int = 1) -> list[float]:
        """The logprob of each first token."""


CONTEXT = 1024  # tokens of a sequence
TYPES = ("BF16", "Q8_0")


def write_gguf(source: Path, path: Path, kind: str) -> Path:
    """The model of ``source`` with the packaged tokenizer and matrices of ``kind``; norms stay float32."""
    from tests.engine.test_gguf import add_tokenizer
    from tests.gguf_files import write_model

    vocab = json.loads((source / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    part = path.with_suffix(".part")
    write_model(source, part, kind, lambda writer: add_tokenizer(writer, vocab))
    return part.rename(path)


class LlamaCpp:
    """A model of llama.cpp. ``sequences``: prompts that it computes at once. ``exact``: keys and values of float32
    and attention by plain products; else its defaults, float16 and its flash attention."""

    def __init__(self, path: Path, threads: int, sequences: int = 1, exact: bool = False) -> None:
        import xllamacpp

        wanted = xllamacpp.CommonParams()
        wanted.model.path = str(path)
        wanted.n_ctx = CONTEXT * sequences
        wanted.n_parallel = sequences
        wanted.n_batch = wanted.n_ubatch = 512 if sequences == 1 else 2048
        wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = threads
        wanted.warmup = False
        if exact:
            wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
            wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        wanted.verbosity = 0
        self._server = xllamacpp.Server(wanted)

    def top(self, prompts: list[list[int]], count: int, tokens: int = 1) -> list[list[tuple[int, float]]]:
        """For each prompt the next token's ``count`` best candidates, their ids and logprobs. ``tokens`` are said."""
        body = {
            "prompt": prompts,
            "max_tokens": tokens,
            "ignore_eos": True,
            "logprobs": count,
            "temperature": 0.0,
            "cache_prompt": False,
        }
        found = self._server.handle_completions(body)
        by_prompt = sorted(found["choices"], key=lambda choice: int(choice["index"]))
        tokens = [choice["logprobs"]["content"][0]["top_logprobs"] for choice in by_prompt]
        return [[(int(one["id"]), float(one["logprob"])) for one in best] for best in tokens]

    def say(self, prompts: list[list[int]], tokens: int = 1) -> list[float]:
        return [best[0][1] for best in self.top(prompts, 1, tokens)]
