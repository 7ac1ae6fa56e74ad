"""The worked examples of CONTRIBUTING.md: a readout, a verb and a family, each as the lines that its files would get.

Here the lines of all files stand in one file, in the order of CONTRIBUTING.md. The registrations of a file hold for
the time of the test.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prelude.readouts
from prelude import AsyncEngine, Engine, UnknownParameter
from prelude.admission.prepared import Parts, TokenTree
from prelude.admission.prompts import encode_prompt
from prelude.api.verbs import Ask, ask, awaited, blocking
from prelude.models import families, ops
from prelude.models.families import LLAMA, Family
from prelude.readouts.base import Joined, Key, Output, Readout, RequestReadout, Rows, bad_rows
from prelude.tasks import CacheMode, TaskOf, strict_keywords
from prelude.values.arrays import F32, I32
from tests import checkpoints

TEXTS = ["The quay was empty.", "Two boats lay at anchor while the rain fell.", "No."]


# ------------------------------------------------------------------ readout: a file of prelude/readouts/
@dataclass(frozen=True, slots=True)
class SpreadOutput(Output):
    values: F32  # [R]

    def slice(self, rows: slice, pairs: slice) -> SpreadOutput:
        return SpreadOutput(self.values[rows].copy())


@dataclass(frozen=True, slots=True)
class SpreadRows(Readout, RequestReadout):
    """The largest minus the smallest component of each row's hidden state."""

    rows: I32

    @property
    def key(self) -> Key:
        return ("spread",)

    def describe(self) -> str:
        return f"the spread of {len(self.rows)} rows"

    def join(self, readouts: Sequence[SpreadRows], rows: I32, row_ends: I32) -> Joined:
        return Joined(SpreadRows(rows), row_ends, None)

    def run(self, rows: Rows) -> tuple[SpreadOutput, I32]:
        found = SpreadOutput(np.ptp(rows.vectors(self.rows), axis=1))
        return found, self.not_finite(found)

    def answers(self, output: object) -> bool:
        return isinstance(output, SpreadOutput) and output.values.shape == self.rows.shape

    def not_finite(self, output: SpreadOutput) -> I32:
        return bad_rows(np.isfinite(output.values))

    def blank(self) -> SpreadOutput:
        return SpreadOutput(np.zeros(len(self.rows), np.float32))


# ------------------------------------------------------------------ verb: prelude/tasks/__init__.py
@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Spread(TaskOf[float]):
    """The spread of the last hidden state of ``prompt``."""

    prepared_by = f"{__name__}:prepare_spread"

    prompt: str
    cache: CacheMode = "auto"
    salt: str | None = None


# ------------------------------------------------------------------ verb: a file of prelude/admission/
def prepare_spread(ctx: Any, scope: Any, task: Spread) -> Parts:
    prompt = encode_prompt(ctx, scope, task.prompt, field="prompt", truncation="error", room=ctx.max_length)
    readout = SpreadRows(np.array([len(prompt.token_ids) - 1], np.int32))
    tree = TokenTree.single(prompt.token_ids)
    return Parts(tree, readout, lambda outcome: float(outcome.output.values[0]))  # type: ignore[arg-type]


# ------------------------------------------------------------------ verb: prelude/api/verbs.py
class ToyEngine(Engine):
    @blocking(Spread)
    def spread(self, prompt: str, **keywords: Any) -> Ask[float]:
        """The spread of a text."""
        return ask(Spread, keywords, prompt)


class AsyncToyEngine(AsyncEngine):
    spread = awaited(ToyEngine.spread)


@pytest.fixture(scope="module")
def engine() -> Iterator[ToyEngine]:
    with ToyEngine.from_pretrained() as made:
        yield made


def test_a_readout_and_a_verb_of_ones_own(engine: ToyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prelude.readouts, "BATCH_TYPES", (*prelude.readouts.BATCH_TYPES, SpreadRows))
    vectors = [engine.embed(text, pooling="last", normalize=False) for text in TEXTS]
    want = [float(np.ptp(vector)) for vector in vectors]
    assert [engine.spread(text) for text in TEXTS] == pytest.approx(want, rel=1e-5)
    assert engine.run_many([Spread(text) for text in TEXTS]) == pytest.approx(want, rel=1e-5)

    async def together() -> list[float]:
        served = AsyncToyEngine(engine)
        return list(await asyncio.gather(*(served.spread(text) for text in TEXTS)))

    assert asyncio.run(together()) == pytest.approx(want, rel=1e-5)
    assert engine.explain(Spread(TEXTS[0])).readout == "the spread of 1 rows"
    with pytest.raises(UnknownParameter):
        engine.spread(TEXTS[0], promt="x")


# ------------------------------------------------------------------ family: prelude/models/ops.py
def mean_magnitude_norm(x: F32, eps: float, gain: F32 | None, bias: F32 | None, out: F32 | None = None) -> F32:
    made = x / (np.abs(x).mean(axis=1, keepdims=True) + np.float32(eps))
    made = made if gain is None else made * gain
    if out is None:
        return made
    out[: len(x)] = made
    return out[: len(x)]


def squared_relu(x: F32, inner: int, gated: bool) -> F32:
    made = x[:, :inner]
    np.square(np.maximum(made, 0), out=made)
    if gated:
        made *= x[:, inner:]
    return made


# ------------------------------------------------------------------ family: a file of prelude/models/families/
def build(fields: Any, wanted: Any) -> Any:
    spec = LLAMA.build(fields, wanted)

    def other(norm: Any) -> Any:
        return dataclasses.replace(norm, kind="mean_magnitude")

    layers = tuple(
        dataclasses.replace(
            layer,
            mixer_norm=other(layer.mixer_norm),
            mlp_norm=other(layer.mlp_norm),
            mlp=dataclasses.replace(layer.mlp, activation="squared_relu"),
        )
        for layer in spec.layers
    )
    return dataclasses.replace(spec, layers=layers, final_norm=other(spec.final_norm))


TOY = Family("toy", {"ToyForCausalLM": "lm"}, build, LLAMA.defaults)


def test_a_family_with_another_norm_and_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops.NORMS, "mean_magnitude", mean_magnitude_norm)
    monkeypatch.setitem(ops.ACTIVATIONS, "squared_relu", squared_relu)
    monkeypatch.setitem(families.FAMILIES, "toy", TOY)
    monkeypatch.setitem(families.ARCHITECTURES, "ToyForCausalLM", TOY)

    path = checkpoints.make_checkpoint(tmp_path, family="llama", scale=0.08)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(
        json.dumps({**config, "model_type": "toy", "architectures": ["ToyForCausalLM"]}), encoding="utf-8"
    )
    ids = [5, 9, 200, 31, 7, 77, 12]
    with Engine.from_pretrained(path) as served:
        found = [token.logprob for token in served.prompt_logprobs(ids)][1:]
    assert found == pytest.approx(reference_logprobs(tmp_path, config, ids), abs=1e-4)


def reference_logprobs(path: Path, config: dict[str, Any], ids: list[int]) -> list[float]:
    """transformers' Llama with the same norm and gate in the places of its own."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.forward = lambda x, norm=module: (
                x / (x.abs().mean(dim=-1, keepdim=True) + norm.variance_epsilon) * norm.weight
            )
        if hasattr(module, "act_fn"):
            module.act_fn.forward = lambda x: x.relu() ** 2
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    return [float(logprobs[at, token]) for at, token in enumerate(ids[1:])]
