"""A small byte-level tokenizer behind the API that admission uses, and toy outputs in place of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from prelude.admission.prepared import Admitted, Outcome
from prelude.admission.preparer import Preparer
from prelude.batch import LogprobOutput, LogprobRows
from prelude.config import EngineConfig
from prelude.execution.executor import ExecutorLimits
from prelude.results import RequestStats

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Question: Is this polite? Options: yes, no Answer: yes",
    "Question: Which language is it? Options: English, French, German Answer: English",
    "New York, New Delhi, Newark and York. user: hello assistant: hi there system: be kind",
    "1 2 3 4 5 6 7 8 9 10, one two three four five.\n\nA paragraph.\n\nAnother one!\n",
] * 4
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


class ToyTokenizer:
    """``tokenizers`` with control tokens that can be switched off per call."""

    def __init__(self, *, bos: bool = False, eos: bool = False) -> None:
        self.full = tokenizers.Tokenizer(models.BPE())
        self.full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.full.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        self.full.train_from_iterator(CORPUS, trainer)
        if bos or eos:
            single = f"{'<|endoftext|> ' if bos else ''}$A{' <|im_end|>' if eos else ''}"
            self.full.post_processor = processors.TemplateProcessing(
                single=single, special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)]
            )
        self.plain = tokenizers.Tokenizer(models.BPE())
        self.plain = tokenizers.Tokenizer.from_str(self.full.to_str())
        self.plain.encode_special_tokens = True
        self.calls = 0

    def _encode(self, text: str, special: bool, parse_special: bool) -> tokenizers.Encoding:
        self.calls += 1
        return (self.full if parse_special else self.plain).encode(text, add_special_tokens=special)

    def encode_array(self, text: str, add_special_tokens: bool = True, *, parse_special: bool = True) -> Any:
        return np.array(self._encode(text, add_special_tokens, parse_special).ids, dtype=np.int32)

    def encode_with_offsets(self, text: str, add_special_tokens: bool = True, *, parse_special: bool = True) -> Any:
        found = self._encode(text, add_special_tokens, parse_special)
        return np.array(found.ids, dtype=np.int32), np.array(found.offsets, dtype=np.int32).reshape(-1, 2)

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return self.full.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        return self.full.id_to_token(token_id)

    def get_vocab_size(self) -> int:
        return self.full.get_vocab_size()


def toy_chat(messages: Any, add_generation_prompt: bool) -> list[tuple[str, bool]]:
    segments = []
    for message in messages:
        segments += [(f"<|im_start|>{message['role']}\n", True), (message["content"], False), ("<|im_end|>\n", True)]
    if add_generation_prompt:
        segments.append(("<|im_start|>assistant\n", True))
    return segments


@pytest.fixture(scope="session")
def tokenizer() -> ToyTokenizer:
    return ToyTokenizer()


@pytest.fixture(scope="session")
def bos_tokenizer() -> ToyTokenizer:
    return ToyTokenizer(bos=True, eos=True)


@pytest.fixture(scope="session")
def limits(tokenizer: ToyTokenizer) -> ExecutorLimits:
    """8 rows more than the tokenizer has ids."""
    return ExecutorLimits(
        vocab_size=tokenizer.get_vocab_size() + 8,
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


@pytest.fixture
def make(tokenizer: ToyTokenizer, limits: ExecutorLimits) -> Callable[..., Preparer]:
    """``make(num_labels=3, max_length=64, chat=..., ...)``: a Preparer; names of limits, config and Preparer mix."""

    def build(tok: Any = None, **options: Any) -> Preparer:
        mine = {name: options.pop(name) for name in list(options) if name in ExecutorLimits.__slots__}
        config = {name: options.pop(name) for name in list(options) if name in EngineConfig.__slots__}
        options.setdefault("eos_ids", [0])
        return Preparer(tok or tokenizer, replace(limits, **mine), EngineConfig(**config), **options)

    return build


@pytest.fixture
def preparer(make: Callable[..., Preparer]) -> Preparer:
    return make()


@pytest.fixture
def chat_preparer(make: Callable[..., Preparer]) -> Preparer:
    return make(chat=toy_chat)


# ------------------------------------------------------------------ a model in miniature


def toy_row(prefix: tuple[int, ...], vocab: int) -> Any:
    """Log-softmax over the vocabulary after ``prefix``: any function will do."""
    rng = np.random.default_rng([len(prefix), *prefix[-12:], sum(prefix)])
    logits = rng.normal(size=vocab) * 3
    return logits - np.logaddexp.reduce(logits)


def sequences(tree: Any) -> list[tuple[int, ...]]:
    """For every token of the tree, the ids from its root up to itself."""
    found: list[tuple[int, ...]] = []
    ends: list[tuple[int, ...]] = []
    for start, end, parent in zip(tree.starts[:-1], tree.starts[1:], tree.parents):
        prefix = ends[parent] if parent >= 0 else ()
        for token in tree.token_ids[start:end].tolist():
            prefix = (*prefix, token)
            found.append(prefix)
        ends.append(prefix)
    return found


def toy_logprobs(admitted: Admitted, vocab: int) -> LogprobOutput:
    """What an executor would give for a LogprobRows readout."""
    readout = admitted.prepared.readout
    assert isinstance(readout, LogprobRows)
    prefixes = sequences(admitted.prepared.tree)
    table = [toy_row(prefixes[row], vocab) for row in readout.rows]
    order = [np.argsort(-row, kind="stable") for row in table]
    logprobs = np.array([table[r][t] for r, t in zip(readout.target_rows, readout.targets)])
    ranks = np.array(
        [1 + int(np.flatnonzero(order[r] == t)[0]) for r, t in zip(readout.target_rows, readout.targets)]
    )
    top_ids = top_logprobs = None
    if readout.top:
        top_ids = np.array([row[: readout.top] for row in order], dtype=np.int32)
        top_logprobs = np.array([t[o[: readout.top]] for t, o in zip(table, order)], dtype=np.float32)
    return LogprobOutput(logprobs, ranks.astype(np.int32) if readout.ranks else None, top_ids, top_logprobs)


def finished(admitted: Admitted, output: Any = None, token_ids: tuple[int, ...] = ()) -> Any:
    return admitted.finish(Outcome(output, token_ids, RequestStats()))


@pytest.fixture
def run_toy(limits: ExecutorLimits) -> Callable[..., Any]:
    """``run_toy(preparer, task)``: the public result, with the toy model's logprobs."""

    def run(preparer: Preparer, task: Any) -> Any:
        admitted = preparer.prepare(task)
        output = None if admitted.prepared.readout is None else toy_logprobs(admitted, limits.vocab_size)
        return finished(admitted, output)

    return run
