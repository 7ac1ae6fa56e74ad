"""Many rows: ``engine.map`` and ``prelude score`` against the calls that a caller would write.

python -m bench bulk [--rows 100000] [--repeats 5] [--json FILE] [--quick]

rubric      rows under one rubric of 2,000 tokens: tokens computed over the rows' own, on the default CPU model
map         ``map`` and hand-written batches of ``run_many``, rows a second, on a tiny model: the host's share is
            largest there. Results are equal first
memory      resident memory between a tenth and all of ten times ``--rows`` rows of the tiny model
journal     a file by ``prelude score``, on the default CPU model: processor time of the journal over all other
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.command_line import options_parser
from bench.common import Report, add_outputs, machine_facts, paired, ratio, three
from prelude import Engine, EngineConfig, Loglikelihood
from prelude.bulk.files import Table
from prelude.bulk.form import Form
from prelude.bulk.journal import Journal
from prelude.bulk.run import BulkRun

RUBRIC, TAIL, WINDOW = 2000, 20, 1024
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


def rubric(report: Report, rows: int) -> None:
    draw = np.random.default_rng(0)
    with Engine.from_pretrained(config=EngineConfig(max_step_tokens=1 << 14)) as engine:
        most = engine.tokenizer.get_vocab_size() - 8
        shared = draw.integers(8, most, RUBRIC)

        def task(number: int) -> Loglikelihood:
            own = np.random.default_rng(number).integers(8, most, TAIL)
            return Loglikelihood(np.concatenate([shared, own]), [9])

        computed = sum(one.get().stats.computed_tokens for one in engine.map(task, range(rows), progress=True))
    share = computed / (rows * TAIL)  # the continuation is read, and not computed
    report.add("rubric", f"computed over own tokens, {rows:,} rows", (share, share, share), "x", "<= 1.02")


def tiny_task(number: int) -> Loglikelihood:
    return Loglikelihood([3 + number % 500, 7, 3 + number // 500 % 500, 11, 5, 13, 17, 19], [9], cache="never")


def by_hand(engine: Engine, rows: int) -> list[float]:
    found: list[float] = []
    for at in range(0, rows, WINDOW):
        tasks = [tiny_task(number) for number in range(at, min(at + WINDOW, rows))]
        found += [result.total for result in engine.run_many(tasks)]
    return found


def mapped(engine: Engine, rows: int) -> list[float]:
    return [one.get().total for one in engine.map(tiny_task, range(rows), window=WINDOW)]


def beside_run_many(report: Report, engine: Engine, rows: int, repeats: int) -> None:
    assert mapped(engine, rows) == by_hand(engine, rows), "the two give different numbers"
    measured = paired({"hand": lambda: by_hand(engine, rows), "map": lambda: mapped(engine, rows)}, repeats)
    report.add(
        "map", "rows a second over hand-written run_many", ratio(measured["hand"], measured["map"]), "x", ">= 0.97"
    )
    rates = [rows / seconds for seconds in measured["map"].seconds]
    report.add("map", "rows a second", (float(np.median(rates)), min(rates), max(rates)), "/s")


def memory(report: Report, engine: Engine, rows: int) -> None:
    process = psutil.Process()
    sizes: list[float] = []
    for one in engine.map(tiny_task, range(rows), window=WINDOW):
        if one.index % (rows // 10) == rows // 10 - 1:
            sizes.append(process.memory_info().rss / 2**20)
    report.add("memory", f"growth over the last 9/10 of {rows:,} rows", (sizes[-1] - sizes[0],) * 3, "MiB", "<= 0")


class Timed(Journal):
    """A journal that adds up the processor time of its own work."""

    spent = 0.0

    def append(self, key: str, columns: Any) -> None:
        began = time.thread_time()
        super().append(key, columns)
        self.spent += time.thread_time() - began

    def flush(self, sync: bool = False) -> None:
        began = time.thread_time()
        super().flush(sync)
        self.spent += time.thread_time() - began


def journal(report: Report, folder: Path, rows: int, repeats: int) -> None:
    """The journal's share is measured within a run: between two runs the processor's time differs by more."""
    source = folder / "rows.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        for at in range(rows):
            file.write(json.dumps({"id": at, "text": f"Note {at * 7919 % 10007}: the parcel did not arrive."}) + "\n")
    form = Form({"state": "{text}", "questions": {"personal": {"question": "Does it contain personal data?"}}})
    config = EngineConfig(deterministic=True, default_cache="never")
    costs = []
    with Engine.from_pretrained(config=config) as engine:
        run = BulkRun(engine, form, Table.of(str(source)), Table.of(str(folder / "out.jsonl")), WINDOW)
        for number in range(repeats + 1):  # the first one warms up
            began = time.process_time()
            with Timed(folder / f"{number}.journal", "c", {}) as kept:
                run.compute(kept)
                own = kept.spent
            costs.append(100 * own / (time.process_time() - began - own))
    report.add("journal", "processor time added", three(costs[1:]), "%", "<= 2")


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", default="map,memory,journal,rubric")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    add_outputs(parser)
    chosen = parser.parse_args()
    rows = max(2000, chosen.rows // 100) if chosen.quick else chosen.rows
    report = Report("Many rows", facts=machine_facts())
    parts = chosen.part.split(",")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder, "tiny"))
        with Engine.from_pretrained(Path(folder, "tiny")) as engine:
            if "map" in parts:
                beside_run_many(report, engine, min(rows, 20_000), chosen.repeats)
            if "memory" in parts:
                memory(report, engine, 10 * rows)
        if "journal" in parts:
            journal(report, Path(folder), min(rows, 4000), chosen.repeats)
    if "rubric" in parts:
        rubric(report, rows)
    report.finish(chosen)


if __name__ == "__main__":
    main()
