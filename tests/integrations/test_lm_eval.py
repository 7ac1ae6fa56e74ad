"""lm-eval on the engine against lm-eval on transformers: likelihoods, perplexity and text of one checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lm_eval.models.huggingface import HFLM

from prelude import Engine, EngineConfig, SamplingParams
from prelude.errors import ConfigError, InvalidRequest
from prelude.integrations.lm_eval import PreludeLM
from tests.checkpoints import make_checkpoint

CONTEXTS = ("The harbour was quiet that morning.", "Question: which is a fruit?\nAnswer:", "Two boats", "")
CONTINUATIONS = (" two", " an apple and a pear", " lay at the quay ", "x")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("lm-eval"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def ours(directory: Path) -> Iterator[PreludeLM]:
    with Engine.from_pretrained(directory, dtype="float32", config=EngineConfig(kv_bytes=1 << 22)) as engine:
        yield PreludeLM(engine=engine)


@pytest.fixture(scope="module")
def theirs(directory: Path) -> Any:
    return HFLM(pretrained=str(directory), dtype="float32", device="cpu", batch_size=4)


def asked(*rows: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=row) for row in rows]


def test_multiple_choice_is_that_of_the_hf_backend(ours: PreludeLM, theirs: Any) -> None:
    rows = asked(*[(context, continuation) for context in CONTEXTS for continuation in CONTINUATIONS])
    mine, other = (one.loglikelihood(rows, disable_tqdm=True) for one in (ours, theirs))
    assert [row[0] for row in mine] == pytest.approx([row[0] for row in other], abs=1e-4)
    assert [row[1] for row in mine] == [bool(row[1]) for row in other]


def test_rows_that_are_too_long_are_cut_as_there(ours: PreludeLM, theirs: Any) -> None:
    long = " ".join(f"word {n}" for n in range(400))
    rows = asked((long, " two"), (long, " " + long[:600]))
    mine, other = (one.loglikelihood(rows, disable_tqdm=True) for one in (ours, theirs))
    assert ours.max_length == theirs.max_length == 512
    assert [row[0] for row in mine] == pytest.approx([row[0] for row in other], abs=1e-3)


def test_perplexity_is_that_of_the_hf_backend(ours: PreludeLM, theirs: Any) -> None:
    rows = asked(("Two boats lay at the quay.",), (" ".join(f"word {n}" for n in range(500)),), ("a",))
    mine, other = (one.loglikelihood_rolling(rows, disable_tqdm=True) for one in (ours, theirs))
    assert len(ours.tok_encode(rows[1].args[0])) > ours.max_length  # several windows
    for one, two in zip(mine, other):
        assert one == pytest.approx(two, abs=1e-4, rel=1e-6)


def test_generation_is_that_of_the_hf_backend(ours: PreludeLM, theirs: Any) -> None:
    given = {"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False}
    rows = asked(
        *[(context, given) for context in CONTEXTS[:3]],
        ("Two boats", {"until": ["e"], "max_gen_toks": 8, "top_k": None}),
    )
    mine, other = (one.generate_until(rows, disable_tqdm=True) for one in (ours, theirs))
    assert mine == other and any(mine)
    assert ours.generate_until(asked(("Two boats", {"until": ["e", ""], "max_gen_toks": 8}))) == mine[-1:]
    drawn = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 1.5, "seed": 3, "top_k": 50}
    sampling = SamplingParams(max_tokens=12, temperature=1.5, seed=3, top_k=50)
    eos = ours.tokenizer.decode([ours.eot_token_id], skip_special_tokens=False)
    for context, ids in (("", [ours.prefix_token_id]), ("Two boats", ours.tok_encode("Two boats"))):
        [mine] = ours.generate_until(asked((context, drawn)), disable_tqdm=True)
        assert mine == ours.engine.complete(ids, sampling).text.partition(eos)[0]
    assert mine != ours.generate_until(asked(("Two boats", {"until": [], "max_gen_toks": 12})), disable_tqdm=True)[0]


def test_a_model_without_an_end_stops_at_no_token(tmp_path: Path) -> None:
    config = json.loads((make_checkpoint(tmp_path) / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": None}), encoding="utf-8")
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    with Engine.from_pretrained(tmp_path, dtype="float32") as engine:
        ours = PreludeLM(engine=engine)
        first, ids = engine.tokenizer.decode([0]), ours.tok_encode("Two boats")
        told = []
        for seed in range(20):
            given = {"until": [], "max_gen_toks": 40, "do_sample": True, "temperature": 3.0, "seed": seed}
            [mine] = ours.generate_until(asked(("Two boats", given)), disable_tqdm=True)
            assert mine == engine.complete(ids, SamplingParams(max_tokens=40, temperature=3.0, seed=seed)).text
            told.append(mine)
    assert engine.eos_token_ids == () and any(first in text for text in told)


def test_a_question_of_four_choices_costs_one_row(directory: Path) -> None:
    with Engine.from_pretrained(directory, dtype="float32", config=EngineConfig(kv_bytes=1 << 22)) as engine:
        lm = PreludeLM(engine=engine)
        context = "Question: which is a fruit?\nA. apple\nB. chair\nC. stone\nD. cloud\nAnswer:"
        rows = asked(*[(context, f" {letter}") for letter in "ABCD"])
        assert all(len(lm._encode_pair(*row.args)[1]) == 1 for row in rows)
        before = engine.stats()
        lm.loglikelihood(rows, disable_tqdm=True)
        after = engine.stats()
        tokens = len(lm.tok_encode(context))
        assert after["lm_head_rows"] - before["lm_head_rows"] == 1
        assert after["prefill_tokens"] - before["prefill_tokens"] == tokens


@pytest.mark.long
def test_a_local_task_runs_from_the_command_line(directory: Path, tmp_path: Path) -> None:
    rows = [{"question": f"Which is {n}?", "choices": [str(n), str(n + 1), "a", "b"], "gold": 0} for n in range(6)]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = f"""task: local_choice
dataset_path: json
dataset_kwargs:
  data_files: {tmp_path / "rows.json"}
test_split: train
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list:
  - metric: acc
"""
    (tmp_path / "local_choice.yaml").write_text(task, encoding="utf-8")
    scores = []
    for model, arguments in (("prelude", "dtype=float32"), ("hf", "dtype=float32")):
        command = [sys.executable, "-m", "prelude.integrations.lm_eval", "run", "--model", model, "--model_args"]
        command += [f"pretrained={directory},{arguments}", "--tasks", "local_choice", "--include_path", str(tmp_path)]
        command += ["--output_path", str(tmp_path / model), "--device", "cpu"]
        done = subprocess.run(command, capture_output=True, text=True, env={**_offline(tmp_path)}, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        [report] = (tmp_path / model).rglob("results_*.json")
        scores.append(json.loads(report.read_text(encoding="utf-8"))["results"]["local_choice"]["acc,none"])
    assert scores[0] == scores[1]


def _offline(folder: Path) -> dict[str, str]:
    import os

    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}


REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)


def test_a_system_turn_that_the_template_refuses_is_left_out(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = shutil.copytree(directory, tmp_path / "model")
    (path / "chat_template.jinja").write_text(REFUSES_SYSTEM, encoding="utf-8")
    settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": None}), encoding="utf-8")
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which is a fruit?"}]
    history.append({"role": "assistant", "content": "An apple"})
    theirs = HFLM(pretrained=str(path), dtype="float32", device="cpu")
    with Engine.from_pretrained(path, dtype="float32", config=EngineConfig(kv_bytes=1 << 22)) as engine:
        lm = PreludeLM(engine=engine)
        for generation_prompt in (True, False):
            found = lm.apply_chat_template(history, generation_prompt)
            assert found == theirs.apply_chat_template(history, generation_prompt) and "brief" not in found
            assert "fruit" in found and lm.tokenizer_name
        assert "System role not supported" in caplog.text


@pytest.mark.parametrize(
    ("bos", "add", "framed"),
    [("<|endoftext|>", add, add is not False) for add in (True, False, None)]
    + [("<|endoftext|>", True, False), (None, True, True), (None, None, False)],
)
def test_add_bos_token_is_that_of_the_hf_backend(
    directory: Path, tmp_path: Path, bos: str | None, add: bool | None, framed: bool
) -> None:
    """Also where the post-processor adds another token, or none."""
    path = shutil.copytree(directory, tmp_path / "model")
    settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": bos}), encoding="utf-8")
    if framed:
        whole = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
        token, text = {"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        tokens = {"a": {"id": "a", "ids": [65], "tokens": ["a"]}}
        whole["post_processor"] = {"type": "TemplateProcessing", "single": [token, text], "special_tokens": tokens}
        whole["post_processor"]["pair"] = [token, text, {"Sequence": {"id": "B", "type_id": 1}}]
        (path / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    theirs = HFLM(pretrained=str(path), dtype="float32", device="cpu", add_bos_token=add)
    rows = asked(*[(context, continuation) for context in CONTEXTS for continuation in CONTINUATIONS[:2]])
    texts = asked(("Two boats lay at the quay.",), ("<|endoftext|>a",))
    with Engine.from_pretrained(path, dtype="float32", config=EngineConfig(kv_bytes=1 << 22)) as engine:
        ours = PreludeLM(engine=engine, add_bos_token=add)
        assert (ours.eot_token_id, ours.prefix_token_id) == (theirs.eot_token_id, theirs.prefix_token_id)
        for text in (*CONTEXTS, "<|endoftext|>a", "é \n\n"):
            for special in (None, True, False):
                assert ours.tok_encode(text, special) == theirs.tok_encode(text, special), (text, special)
        mine, other = (one.loglikelihood(rows, disable_tqdm=True) for one in (ours, theirs))
        assert [row[0] for row in mine] == pytest.approx([row[0] for row in other], abs=1e-4)
        mine, other = (one.loglikelihood_rolling(texts, disable_tqdm=True) for one in (ours, theirs))
        assert mine == pytest.approx(other, abs=1e-4)


def test_a_continuation_without_a_token_of_its_own_is_refused(ours: PreludeLM, theirs: Any) -> None:
    words = (word for word in ours.tokenizer.get_vocab() if word.isalpha() and word.isascii() and len(word) > 4)
    pairs = ((word[:-3], word[-3:]) for word in words)
    merged = next(pair for pair in pairs if len(ours.tok_encode("".join(pair))) == len(ours.tok_encode(pair[0])))
    for pair in (merged, ("", ""), ("", "<|endoftext|>")):
        for lm, error in ((ours, InvalidRequest), (theirs, (AssertionError, IndexError))):
            with pytest.raises(error):
                lm.loglikelihood(asked(("Two boats", " lay"), pair), disable_tqdm=True)


def test_an_engine_is_needed() -> None:
    with pytest.raises(ConfigError, match="AsyncEngine has one"):
        PreludeLM(engine="engine")  # type: ignore[arg-type]
