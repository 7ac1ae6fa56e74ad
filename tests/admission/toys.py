"""A small byte-level tokenizer, a toy chat template, and a function of token ids in place of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import tokenizers
from prelude.tokenizer import Tokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from prelude.admission.prepared import Admitted, Outcome, TokenTree
from prelude.admission.preparer import Preparer
from prelude.execution.executor import ExecutorLimits
from prelude.readouts.batch import LogprobOutput, LogprobRows, SampleOutput
from prelude.results import RequestStats
from prelude.runtime.handover import BlockingSink
from prelude.scheduling.postprocess import end_with
from prelude.scheduling.request import Request
from prelude.values.config import EngineConfig, ExpertConfig

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CORPUS = [
    "The quick brown fox jumps over the lazy dog. Question: Is this polite? Options: yes, no Answer: yes",
    "Question: Which language is it? Options: English, French, German Answer: English",
    "New York, New Delhi, Newark and York. user: hello assistant: hi there system: be kind",
    "1 2 3 4 5 6 7 8 9 10, one two three four five.\n\nA paragraph.\n\nAnother one!\n",
] * 4


def train(before: Sequence[str] = (), after: Sequence[str] = (), added: Sequence[str] = ()) -> Tokenizer:
    """Ids 0, 1, 2 are control tokens. The post-processor puts ``before`` and ``after`` around a text."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[END, START, STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    if added:
        made.add_tokens(list(added))
    if before or after:
        around = [(name, made.token_to_id(name)) for name in {*before, *after}]
        made.post_processor = processors.TemplateProcessing(
            single=" ".join([*before, "$A", *after]), special_tokens=around
        )
    return Tokenizer.from_str(made.to_str())


plain_tokenizer = lru_cache(train)


def chat(messages: Sequence[Any], add_generation_prompt: bool) -> list[tuple[str, bool]]:
    """A template in the style of ChatML."""
    segments = []
    for message in messages:
        if message["role"] not in ("system", "user", "assistant"):
            raise ValueError(f"unknown role {message['role']}")
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part["text"] for part in content)
        segments += [(f"{START}{message['role']}\n", True), (content, False), (f"{STOP}\n", True)]
    if add_generation_prompt:
        segments.append((f"{START}assistant\n", True))
    return segments


def stripping_chat(messages: Sequence[Any], add_generation_prompt: bool) -> list[tuple[str, bool]]:
    return chat([{**message, "content": message["content"].strip()} for message in messages], add_generation_prompt)


LIMITS = ExecutorLimits(
    vocab_size=428,  # 8 rows more than the tokenizer has ids
    max_positions=256,
    hidden_size=16,
    num_labels=0,
    block_size=16,
    num_blocks=32,
    kv_bytes_per_token=64,
    logits_chunk_rows=64,
    weight_bytes=0,
    device="cpu",
    dtype="float32",
)


def make(tokenizer: Any = None, **options: Any) -> Preparer:
    """Options of ``ExecutorLimits``, ``EngineConfig`` and ``Preparer`` in one; ``eos_ids`` is [0] by default."""
    limits = {name: options.pop(name) for name in list(options) if name in ExecutorLimits.__slots__}
    known = {*EngineConfig.__slots__, *ExpertConfig.__slots__}
    config = {name: options.pop(name) for name in list(options) if name in known}
    options["eos_ids"] = frozenset(options.get("eos_ids", [0]))
    return Preparer(
        tokenizer or plain_tokenizer(), replace(LIMITS, **limits), EngineConfig().changed(**config), **options
    )


# ------------------------------------------------------------------ outcomes
@lru_cache(maxsize=1 << 14)
def row_of(prefix: tuple[int, ...], vocab: int = LIMITS.vocab_size) -> Any:
    """float64[vocab]: log-softmax of pseudo-random logits after ``prefix``."""
    logits = np.random.default_rng([len(prefix), *prefix]).normal(size=vocab) * 3
    return logits - np.logaddexp.reduce(logits)


def sequences(tree: TokenTree) -> list[tuple[int, ...]]:
    """For every token of the tree the ids from its root up to itself."""
    found: list[tuple[int, ...]] = []
    ends: list[tuple[int, ...]] = []
    for start, end, parent in zip(tree.starts[:-1].tolist(), tree.starts[1:].tolist(), tree.parents.tolist()):
        prefix = ends[parent] if parent >= 0 else ()
        for token in tree.token_ids[start:end].tolist():
            prefix = (*prefix, token)
            found.append(prefix)
        ends.append(prefix)
    for prefix, position in zip(found, tree.positions.tolist()):
        assert len(prefix) == position + 1
    return found


def outputs(admitted: Admitted, row: Callable[[tuple[int, ...]], Any] = row_of) -> LogprobOutput | None:
    """An executor's output for a LogprobRows readout."""
    readout = admitted.prepared.readout
    if readout is None:
        return None
    assert isinstance(readout, LogprobRows)
    assert len(set(readout.rows.tolist())) == len(readout.rows)
    prefixes = sequences(admitted.prepared.tree)
    table = [row(prefixes[index]) for index in admitted.prepared.rows.tolist()]
    order = [np.argsort(-values, kind="stable") for values in table]
    pairs = list(zip(readout.target_rows.tolist(), readout.targets.tolist()))
    logprobs = np.array([table[r][t] for r, t in pairs])
    ranks = np.array([1 + int(np.flatnonzero(order[r] == t)[0]) for r, t in pairs], dtype=np.int32)
    ids = best = None
    if readout.top:
        ids = np.array([o[: readout.top] for o in order], dtype=np.int32)
        best = np.array([t[o[: readout.top]] for t, o in zip(table, order)], dtype=np.float32)
    return LogprobOutput(logprobs, ranks if readout.ranks else None, ids, best)


def finish(admitted: Admitted, output: Any = None, token_ids: tuple[int, ...] = ()) -> Any:
    """``token_ids``, or the tokens of ``output``, are drawn and meet the engine's stop rule."""
    request, stats, kept = Request(admitted.prepared, BlockingSink(None)), RequestStats(), ()
    drawn = output.token_ids.tolist() if isinstance(output, SampleOutput) else token_ids
    for token in drawn:
        in_text, stats.finish_reason = end_with(request, token)
        request.output = kept = (*kept, token) if in_text else kept
    return admitted.finish(Outcome(output, kept, stats))


def run(preparer: Preparer, task: Any) -> Any:
    """The public result of a task that reads logprobs."""
    admitted = preparer.prepare(task)
    return finish(admitted, outputs(admitted))


def sampled(*ids: int) -> SampleOutput:
    return SampleOutput(np.array(ids, dtype=np.int32))


def joint(prefix: Sequence[int], ids: Sequence[int]) -> float:
    """Brute force: the logprob of ``ids`` after ``prefix``, one token at a time."""
    total, seen = 0.0, tuple(int(i) for i in prefix)
    for token in ids:
        total += float(row_of(seen)[token])
        seen = (*seen, int(token))
    return total
