"""The memory of a prompt's token, by form of the forward pass.

    python -m bench memory [--shapes 0.6B 4B] [--json FILE] [--plot FILE]
    python -m bench memory --times 8192 16384 [--pairs 5] [--json FILE]

    transformers                its forward without a cache, the states of the last layer
    Prelude, full KV, float32   layers over all tokens at once, keys and values of every layer kept
    whole layers                the same, nothing kept
    hybrid                      Prelude as it is: chunks of 256 tokens into memory made once, queries of one run;
                                nothing kept

Random float32 weights of the real widths in three layers. The peak is the process's own, at 1,024 and 2,048 tokens;
bytes of a token are the difference. Keys and values of the other layers are added by their size. Answers are compared
first: Prelude's three forms are equal to the bit, transformers' to 1e-4.

``--times``: instead, the time of hybrid prompts of so many tokens beside whole layers, in turns, in the default mode,
at the first shape.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, paired, ratio, three
from prelude import Embed, Engine, EngineConfig, default_model
from prelude.cpu.profile import peak_bytes
from prelude.execution.memory_plan import TOKEN_CHUNK

LAYERS = 3
SHORT, LONG = 1024, 2048
SHAPES: dict[str, dict[str, int]] = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "layers": 28},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "layers": 36},
}
FULL_KV = "Prelude, full KV, float32"
FORMS = ((FULL_KV, 1 << 30, "always"), ("whole layers", 1 << 30, "never"), ("hybrid", 256, "never"))
AIMS = {"0.6B": 2.0, "4B": 3.5}
AIM_KV = 8.0
AIM_TIME = 1.05
POSITIONS = 32_768


def checkpoint(folder: Path, shape: dict[str, int]) -> Any:
    """A Qwen3 of the shape's widths with the packaged tokenizer; transformers' model of it."""
    import torch
    from transformers import Qwen3Config, Qwen3Model

    sizes = {name: value for name, value in shape.items() if name != "layers"}
    torch.manual_seed(0)
    config = Qwen3Config(
        **sizes,
        num_hidden_layers=LAYERS,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=4096,
        max_position_embeddings=POSITIONS,
    )
    model = Qwen3Model(config).eval()
    model.save_pretrained(folder)
    shutil.copy(default_model.path() / "tokenizer.json", folder / "tokenizer.json")
    return model


def bytes_of_a_token(run: Any) -> float:
    """Of ``run(tokens)``."""
    run(64)
    peaks = {}
    for tokens in (SHORT, LONG):
        peak = peak_bytes(lambda tokens=tokens: run(tokens))  # type: ignore[misc]
        if peak is None:
            raise SystemExit("this system does not count the memory of a process")
        peaks[tokens] = peak
    return (peaks[LONG] - peaks[SHORT]) / (LONG - SHORT)


def measure(report: Report, name: str) -> None:
    shape = SHAPES[name]
    layers = shape["layers"]
    kv_layer = 2 * 8 * 128 * 4
    draw = np.random.default_rng(0)
    prompts = {n: draw.integers(8, 4000, n).tolist() for n in (64, SHORT, LONG)}
    with tempfile.TemporaryDirectory() as folder:
        theirs = checkpoint(Path(folder), shape)
        vectors: dict[str, Any] = {}
        costs: dict[str, float] = {}

        def run_theirs(tokens: int) -> None:
            import torch

            with torch.inference_mode():
                made = theirs(torch.tensor([prompts[tokens]]), use_cache=False).last_hidden_state[0, -1].numpy()
                vectors["transformers"] = made / np.linalg.norm(made)

        costs["transformers"] = bytes_of_a_token(run_theirs)
        for form, chunk, cache in FORMS:
            with Engine.from_pretrained(folder, config=EngineConfig(deterministic=True, kv_bytes=1 << 29)) as engine:
                engine._core.executor.decoder.token_chunk = chunk

                def run(tokens: int, form: str = form, cache: Any = cache, engine: Engine = engine) -> None:
                    vectors[form] = np.asarray(engine.run(Embed(prompts[tokens], pooling="last", cache=cache)))

                cost = bytes_of_a_token(run)
                costs[form] = cost + (kv_layer * (layers - LAYERS) if cache == "always" else 0)
    if not all(np.array_equal(vectors["hybrid"], vectors[form]) for form, _, _ in FORMS):
        raise SystemExit("the forms differ")
    if np.abs(vectors["hybrid"] - vectors["transformers"]).max() > 1e-4:
        raise SystemExit("transformers' vectors differ")
    for form, cost in costs.items():
        report.add(f"{name}, {form}", "bytes of a token", (cost / 1024,) * 3, "KiB")
    for form, aim in (("whole layers", AIMS[name]), (FULL_KV, AIM_KV), ("transformers", 0.0)):
        more = costs[form] / costs["hybrid"]
        report.add(name, f"{form} over hybrid, bytes of a token", (more,) * 3, "x", f">= {aim:g}" if aim else "")


def times(report: Report, name: str, lengths: list[int], pairs: int) -> None:
    """Seconds of a prompt by form, and what hybrid takes more, pair by pair; of processor time as well."""
    draw = np.random.default_rng(0)
    config = EngineConfig(kv_bytes=1 << 20, prefix_cache=False)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder), SHAPES[name])
        with Engine.from_pretrained(folder, config=config) as engine:
            decoder = engine._core.executor.decoder
            for tokens in lengths:
                prompt = draw.integers(8, 4000, tokens).tolist()
                spent: dict[str, list[float]] = {"hybrid": [], "whole layers": []}

                def run(form: str, chunk: int, prompt: Any = prompt, spent: Any = spent) -> None:
                    decoder.token_chunk = chunk
                    began = time.process_time()
                    engine.run(Embed(prompt, pooling="last"))
                    spent[form].append(time.process_time() - began)

                forms = {
                    "hybrid": partial(run, "hybrid", TOKEN_CHUNK),
                    "whole layers": partial(run, "whole layers", 1 << 30),
                }
                measured = paired(forms, pairs)
                load = f"{name}, {LAYERS} layers, {tokens:,} tokens"
                for form, one in measured.items():
                    report.add(f"{load}, {form}", "time", three(one.seconds), "s")
                more = ratio(measured["hybrid"], measured["whole layers"])
                report.add(load, "hybrid over whole layers, time", more, "x", f"<= {AIM_TIME}")
                both = zip(spent["hybrid"][1:], spent["whole layers"][1:])  # the first ones warmed up
                more = three([hybrid / whole for hybrid, whole in both])
                report.add(load, "hybrid over whole layers, processor time", more, "x", f"<= {AIM_TIME}")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--times", type=int, nargs="+", default=[], metavar="TOKENS", help="lengths that are timed")
    parser.add_argument("--pairs", type=int, default=5)
    add_outputs(parser)
    options = parser.parse_args()
    if options.times:
        report = Report("Time of hybrid prefilling beside whole layers", facts=machine_facts())
        times(report, options.shapes[0], options.times, options.pairs)
        return report.finish(options)
    report = Report("Bytes of a prompt's token", facts=machine_facts())
    for name in options.shapes:
        measure(report, name)
    report.finish(options)


if __name__ == "__main__":
    main()
