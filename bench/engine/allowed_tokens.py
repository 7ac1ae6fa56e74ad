"""What ``SamplingParams.allowed_tokens_fn`` costs a token, by the number of ids that the caller returns.

    python -m bench allowed_tokens [--repeats 15] [--tokens 64] [--json FILE]

The same greedy text with and without the function, in turn, in processor time of the whole process; a figure of 1.05
says that a token takes 1.05 times as long with it. The function returns the same list at each step, or "lists in
turn": two lists whose integers are different objects, so that none of them is the list of the step before. Every list
contains the ids of the text without it, so that both sides compute the same tokens, or nothing is reported. The list
of one id is the next token's.

Two models: the packaged one with 4,096 ids, and a random one of the same layers with 32,768 ids, since 10,000 ids
need a vocabulary that has them. Other lists are Python's and numpy's (int32, int64).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, three, use_threads
from prelude import Engine, SamplingParams, default_model

PROMPT = [11, 12, 13, 14, 15, 16, 17, 18]
COUNTS = {"packaged": (1, 100, 4_000), "random, 32,768 ids": (1, 100, 10_000)}


def in_turn(ids: list[int]) -> list[int]:
    """A list of integers of its own."""
    return [int(one) for one in np.array(ids)]


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "lists in turn": in_turn,
    "int32": lambda ids: np.array(ids, np.int32),
    "int64": lambda ids: np.array(ids, np.int64),
}


def write_wide(path: Path, vocabulary: int = 32_768) -> Path:
    """The packaged model's layers with random weights and a larger vocabulary, and the packaged tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(default_model.path(), vocab_size=vocabulary)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    shutil.copy(default_model.path() / "tokenizer.json", path / "tokenizer.json")
    return path


def lists(text: Sequence[int], count: int, vocabulary: int, kind: Callable[[list[int]], Any]) -> Callable[..., Any]:
    """A function that allows ``count`` ids, those of ``text`` among them; of one id, the next one of ``text``."""
    if count == 1:
        each = [kind([token]) for token in text]
        return lambda output: each[len(output)]
    others = np.random.default_rng(count).permutation(vocabulary).tolist()
    chosen = set(text)
    for token in others:
        if len(chosen) >= count:
            break
        chosen.add(token)
    first, second = kind(sorted(chosen)), kind(sorted(chosen))
    if kind is in_turn:
        return lambda output: second if len(output) % 2 else first
    return lambda output: first


def seconds(run: Callable[[], Any]) -> float:
    """Of all threads of this process: other load on the machine changes it little."""
    began = time.process_time()
    run()
    return time.process_time() - began


def measure(report: Report, name: str, engine: Engine, tokens: int, repeats: int) -> None:
    free = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    text = engine.complete(PROMPT, free).token_ids
    vocabulary = engine.model_info.vocab_size
    for count in COUNTS[name]:
        for kind, make in KINDS.items():
            chosen = lists(text, count, vocabulary, make)
            with_it = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, allowed_tokens_fn=chosen)
            if engine.complete(PROMPT, with_it).token_ids != text:
                raise SystemExit(f"{name}, {count} ids, {kind}: another text than without the function")
            pairs = []
            for _ in range(repeats):
                without = seconds(lambda: engine.complete(PROMPT, free))
                pairs.append((without, seconds(lambda: engine.complete(PROMPT, with_it))))  # noqa: B023
            load = f"{name}, {count:,} ids, {kind}"
            report.add(load, "a token, times without it", three([b / a for a, b in pairs]), "x", reach="<= 1.1")
            report.add(load, "added to a token", three([b - a for a, b in pairs], 1e6 / tokens), "us")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=64)
    add_outputs(parser)
    chosen = parser.parse_args()
    use_threads(1)
    report = Report(
        "allowed_tokens_fn, with and without",
        facts=machine_facts([("tokens", chosen.tokens), ("repeats", chosen.repeats), ("threads", 1)]),
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in COUNTS:
            path = None if name == "packaged" else write_wide(Path(folder))
            with Engine.from_pretrained(path) as engine:
                measure(report, name, engine, chosen.tokens, chosen.repeats)
    report.finish(chosen)


if __name__ == "__main__":
    main()
