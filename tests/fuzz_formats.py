"""Small files of every format, changed with structure and read as a user's program reads them.

    python -m tests.fuzz_formats --minutes 10 [--seed N] [--only gguf,calibrator]
    python -m tests.fuzz_formats --files 20 --seed 1        # the same 20 files of each format in every run

A change puts another type, a huge number, another sign, an integer of 401 digits, null, an empty or a nested value in
the place of a field, cuts, doubles or drops a part, or turns bytes. Found is:

- an exception that is no ``PreludeError``, or one that does not name the file;
- memory of Python and numpy beyond ``MULTIPLE`` times the file and ``BESIDE`` bytes, on top of what the good file
  takes; for a ``*.sparrow`` archive, which is compressed, beyond ``ARCHIVE`` bytes;
- an allocation past ``ADDRESSES``, or the end of the process.

``SECURITY.md`` states these bounds. ``tests.fuzz_tokenizer_files`` has the files of tokenizers.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.changed_files import CHANGES

MULTIPLE, BESIDE, ARCHIVE = 48, 16 << 20, 1200 << 20
ADDRESSES = 4 << 30
Read = Callable[[Path], object]


@dataclass(frozen=True)
class Format:
    """``folder``: good files, of which ``changed`` is one. ``read`` takes ``read_from`` in the folder. ``kind``: of
    ``CHANGES``."""

    folder: Path
    changed: str
    kind: str
    read: Read
    read_from: str = ""
    most: Callable[[int], int] = lambda size: MULTIPLE * size + BESIDE


# ------------------------------------------------------------------ good files
def load(path: Path) -> None:
    from prelude import Engine, EngineConfig, ExpertConfig

    Engine.from_pretrained(path, config=EngineConfig(expert=ExpertConfig(kv_blocks=16))).close()


def read_calibrator(path: Path) -> None:
    from prelude.calibration import Calibrator

    found = Calibrator.load(path)
    shares = found.probabilities([0.7, 0.2, 0.1], found.labels)
    if not abs(float(shares.sum()) - 1) < 1e-6:
        raise ValueError(f"probabilities {shares}")


def read_prior(path: Path) -> None:
    import math

    from prelude.calibration import PriorCorrection
    from prelude.results import Answer

    found = PriorCorrection.load(path)
    shares = dict.fromkeys(found.labels, 1 / len(found.labels))
    logs = {label: math.log(share) for label, share in shares.items()}
    answer = found.apply(Answer(found.labels[0], 0, found.labels, shares, logs, 1.0, shares[found.labels[0]]))
    if not abs(sum(answer.probabilities.values()) - 1) < 1e-6:
        raise ValueError(f"probabilities {answer.probabilities}")


def read_journal(path: Path) -> None:
    from prelude.bulk.journal import Journal, row_key

    with Journal(path, "a hash", {"model": "m"}) as journal:
        results = journal.results()
        for at in (3, 1, 0, 2, 9):
            results.get(row_key({"row": at}, None))


def read_messages(path: Path) -> None:
    from prelude.execution.dump import decoded

    decoded(bytearray(path.read_bytes()))


def write_calibrators(folder: Path) -> None:
    from prelude.calibration import Calibrator, PriorCorrection

    Calibrator("temperature", {"temperature": 1.5}, facts={"rows": 9}).save(folder / "temperature.json")
    platt = {"slope": 1.1, "offsets": [0.5, -0.5, 0.0]}
    Calibrator("platt", platt, ("a", "b", "c")).save(folder / "platt.json")
    Calibrator("isotonic", {"x": [0.1, 0.5, 0.9], "y": [0.0, 0.5, 1.0]}).save(folder / "isotonic.json")
    PriorCorrection(("a", "b"), (0.3, 0.7), (0.5, 0.5)).save(folder / "prior.json")
    rows = [{"state": "s", "question": "q", "labels": ["a", "b"], "label": "a"}]
    rows += [{"state": "s", "question": "q", "levels": ["low", "high"], "label": "1"}]
    rows += [{"probabilities": {"a": 0.7, "b": 0.3}, "label": "b"}, {"logprobs": {"a": -0.4, "b": -1}, "label": "a"}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_encoder_files(folder: Path) -> None:
    """Those of sentence-transformers, beside an encoder."""
    import torch
    from safetensors.torch import save_file

    from tests.encoders import write_encoder
    from tests.option_models import save_tokenizer

    write_encoder(folder, family="bert", vocab_size=300)
    hidden = json.loads((folder / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    save_tokenizer(folder / "tokenizer.json", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    names = ["Transformer", "Pooling", "Dense"]
    paths = ["", "1_Pooling", "2_Dense"]
    kinds = [f"sentence_transformers.models.{name}" for name in names]
    modules = [{"idx": i, "name": str(i), "path": paths[i], "type": kinds[i]} for i in range(3)]
    dense = {"in_features": hidden, "out_features": 4, "bias": True}
    dense["activation_function"] = "torch.nn.modules.activation.Tanh"
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True},
        "2_Dense/config.json": dense,
        "config_sentence_transformers.json": {"prompts": {"q": "query: "}, "default_prompt_name": "q"},
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "tokenizer_config.json": {"model_max_length": 64},
        "recipe.json": {"verb": "rerank", "name": "r", "yes": 5, "no": 6, "parts": ["{query} {document}"]},
        "decision_template.json": {"question": "{question} {labels}", "label": " {label}"},
    }
    for name, value in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    save_file(
        {"linear.weight": torch.ones(4, hidden), "linear.bias": torch.zeros(4)}, folder / "2_Dense/model.safetensors"
    )


def write_guard(folder: Path) -> None:
    field = {"name": "safety", "before": "Safety: ", "labels": ["Safe", "Unsafe"], "joiner": ", ", "none": ""}
    told = {"verb": "guard", "name": "g", "fields": [field], "safe": ["Safe"], "marks": ["x"], "end": "\n"}
    (folder / "guard.json").write_text(json.dumps(told), encoding="utf-8")


def read_recipe_file(path: Path) -> None:
    from prelude.recipes import read_recipe

    read_recipe(path.read_bytes(), str(path))


def write_message(path: Path) -> None:
    import numpy as np

    from prelude.execution.dump import encoded
    from prelude.readouts.batch import OneShotBatch
    from tests.execution.helpers import all_logprobs, prompts, random_ids

    ids = random_ids(1, 20)
    path.write_bytes(encoded(OneShotBatch(prompts(ids), all_logprobs(np.arange(20)))))


def formats(root: Path) -> dict[str, Format]:
    """The good files, written below ``root``."""
    from prelude.calibration.rows import read_rows
    from prelude.scheduling.cost import CostModel
    from prelude.simulation.traces import read_trace
    from prelude.tools.convert import convert
    from tests.checkpoints import make_checkpoint

    made: dict[str, Format] = {}
    small = root / "small"
    small.mkdir()
    write_calibrators(small)
    write_guard(small)
    CostModel().save(small / "cost.json")
    arrival = {"at": 0.5, "parts": [["a", 9], [None, 4]], "questions": [3], "labels": 2, "task": "decide"}
    (small / "trace.jsonl").write_text(f"{json.dumps(arrival)}\n" * 3, encoding="utf-8")
    write_message(small / "message.bin")
    for kind in ("temperature", "platt", "isotonic"):
        made[f"calibrator-{kind}"] = Format(small, f"{kind}.json", "json", read_calibrator)
    made["prior"] = Format(small, "prior.json", "json", read_prior)
    made["rows"] = Format(small, "rows.jsonl", "lines", read_rows)
    made["recipe"] = Format(small, "guard.json", "json", read_recipe_file)
    made["cost"] = Format(small, "cost.json", "json", CostModel.load)
    made["trace"] = Format(small, "trace.jsonl", "lines", lambda path: list(read_trace(path)))
    made["message"] = Format(small, "message.bin", "length-and-json", read_messages)
    journal(small / "out.journal")
    made["journal"] = Format(small, "out.journal", "journal", read_journal)

    decoder = make_checkpoint(root / "decoder", family="llama")
    write = (decoder / "generation_config.json").write_text
    write(json.dumps({"eos_token_id": [0, 1]}), encoding="utf-8")
    made["config"] = Format(decoder, "config.json", "json", load, ".")
    made["generation"] = Format(decoder, "generation_config.json", "json", load, ".")
    made["safetensors"] = Format(decoder, "model.safetensors", "length-and-json", load, ".")
    convert(decoder, root / "converted", "float32")
    made["converted"] = Format(root / "converted", "packed.safetensors", "length-and-json", load, ".")
    shards = make_checkpoint(root / "shards", family="gemma3_text", shard="600KB")
    made["index"] = Format(shards, "model.safetensors.index.json", "json", load, ".")
    made["config-gemma3"] = Format(shards, "config.json", "json", load, ".")
    encoder = root / "encoder"
    write_encoder_files(encoder)
    for path in sorted(encoder.rglob("*.json")):
        name = path.relative_to(encoder).as_posix()
        if name not in ("tokenizer.json", "special_tokens_map.json"):
            made[f"encoder-{name}"] = Format(encoder, name, "json", load, ".")
    made["dense"] = Format(encoder, "2_Dense/model.safetensors", "length-and-json", load, ".")
    option_heads(made, root)
    sparrow(root)
    made["sparrow"] = Format(root, "tiny.sparrow", "archive", load, most=lambda size: ARCHIVE)
    made["gguf"] = Format(root / "gguf", "model.gguf", "gguf", load)
    gguf(root / "gguf", decoder)
    return made


def option_heads(made: dict[str, Format], root: Path) -> None:
    """Of the formats whose weights need no recorded data."""
    from tests.option_models import write_opendecider, write_pointer

    for name, write in (("opendecider", write_opendecider), ("pointer_head", write_pointer)):
        folder = write(root / name)
        made[name] = Format(folder, f"{name}.json", "json", load, ".")
        made[f"{name}-config"] = Format(folder, "config.json", "json", load, ".")
    for folder, head in (("opendecider", "head"), ("pointer_head", "pointer_head")):
        made[f"{folder}-head"] = Format(root / folder, f"{head}.safetensors", "length-and-json", load, ".")


def journal(path: Path) -> None:
    from prelude.bulk.journal import Journal, row_key

    with Journal(path, "a hash", {"model": "m"}) as kept:
        for at in range(4):
            kept.append(row_key({"row": at}, None), {"label": "a", "probability": 0.5})


def sparrow(root: Path) -> None:
    from tests.engine.test_sparrow import arrays, config, write

    write(root / "tiny.sparrow", arrays(True), config(True))


def gguf(folder: Path, source: Path) -> None:
    from tests.engine.test_gguf import add_tokenizer
    from tests.gguf_files import write_model

    folder.mkdir()
    write_model(source, folder / "model.gguf", "Q8_0", add_tokenizer)


# ------------------------------------------------------------------ one file
def wrong_with(format: Format, data: bytes, base: int) -> str | None:
    """What is wrong with reading ``data`` in the place of the good file. ``base``: bytes of memory that a good one
    takes."""
    from prelude.errors import PreludeError

    path = format.folder / format.changed
    path.write_bytes(data)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        format.read(format.folder / (format.read_from or format.changed))
    except PreludeError as error:
        if format.folder.name not in str(error) and format.kind != "length-and-json":
            return f"the error does not name the file: {error}"
    except Exception as error:
        if format.read is read_messages:  # the rank that got it raises RankLost for all
            return f"{error!r}" if isinstance(error, MemoryError) else None
        return "".join(traceback.format_exception(error)[-4:])
    taken, most = tracemalloc.get_traced_memory()[1] - before, base + format.most(len(data))
    return f"{taken:,} bytes of memory for a file of {len(data):,}; the bound is {most:,}" if taken > most else None


def run(root: Path, chosen: dict[str, Format], seed: int, files: int, found: Path) -> tuple[int, list[str]]:
    """(files tried, findings)."""
    told: list[str] = []
    tried = 0
    tracemalloc.start()
    for name, format in chosen.items():
        rng = random.Random(f"{seed} {name}")
        path = format.folder / format.changed
        good = path.read_bytes()
        wrong = wrong_with(format, good, 1 << 40)
        if wrong:
            raise AssertionError(f"{name}: the good file: {wrong}")
        base = tracemalloc.get_traced_memory()[1]
        for at in range(files):
            data = CHANGES[format.kind](rng, good)
            (found / "tried").write_bytes(data)
            if wrong := wrong_with(format, data, base):
                kept = found / f"{name.replace('/', '-')}-{seed}-{at}"
                shutil.copy(found / "tried", kept)
                told.append(f"{name}, {kept}: {wrong}")
            tried += 1
        path.write_bytes(good)
    tracemalloc.stop()
    return tried, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--files", type=int, default=None, help="of each format, in place of --minutes")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help="formats, by how their names begin, with commas between")
    parser.add_argument("--folder", type=Path, default=None, help="where files that were found are kept")
    args = parser.parse_args()
    logging.disable()
    found = args.folder or Path(tempfile.mkdtemp(prefix="found-"))
    with tempfile.TemporaryDirectory(prefix="formats-") as made:
        root = Path(made)
        chosen = {name: one for name, one in formats(root).items() if name.startswith(tuple(args.only.split(",")))}
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + ADDRESSES, taken + ADDRESSES))
        began, tried, wrong, seed = time.monotonic(), 0, 0, args.seed
        while seed == args.seed or (args.files is None and time.monotonic() - began < args.minutes * 60):
            count, told = run(root, chosen, seed, args.files or 20, found)
            tried, wrong, seed = tried + count, wrong + len(told), seed + 1
            print(*told, sep="\n", end="\n" if told else "", flush=True)
    spent = (time.monotonic() - began) / 60
    print(f"{tried} files of {len(chosen)} formats in {spent:.1f} minutes from seed {args.seed}, {wrong} found")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
