"""A FlashInfer that fails, gives other numbers or is not there: the engine goes on without it, and says so."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from prelude.cuda import attention, flashinfer_trial
from prelude.cuda.driver import CudaError

from prelude.errors import DeviceUnavailable
from prelude.loading.cuda import attention_calls
from tests.checkpoints import save_model
from tests.cuda.simulated import SimulatedCall, SimulatedCalls, SimulatedDevice
from tests.execution.helpers import Model

HEADS = (4, 2, 64)
KINDS = ("ragged", "paged", "decode")


class Broken(SimulatedCalls):
    """Calls of one kind, whose plan raises ``error``, or whose numbers are ``wrong``."""

    def __init__(self, *given: Any, kind: str, error: Any = None, wrong: bool = False) -> None:
        super().__init__(*given)
        self.kind, self.error, self.wrong = kind, error, wrong

    def call(self, kind: str, *given: Any) -> SimulatedCall:
        made = super().call(kind, *given)
        if kind == self.kind and self.error is not None:
            made.plan = self._raise
        if kind == self.kind and self.wrong:
            compute = made._compute
            made._compute = lambda q, k, v, out, lse: compute(q, k, -v, out, lse)
        return made

    def _raise(self, arrays: Any) -> Any:
        raise self.error


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(torch.bfloat16)


@pytest.fixture
def trials(tmp_path: Path) -> Path:
    return tmp_path / "trials.json"


def test_calls_that_are_right_pass_once_for_every_process(device: SimulatedDevice, trials: Path) -> None:
    torch.manual_seed(1)
    calls = SimulatedCalls(device, *HEADS)
    assert flashinfer_trial.failure(device, calls, HEADS, trials) is None
    assert [kind for kind, _ in calls.made] == list(KINDS) and device.calls.count("graph") == 3
    assert flashinfer_trial.failure(device, calls, HEADS, trials) is None
    assert len(calls.made) == 3
    assert flashinfer_trial.failure(device, SimulatedCalls(device, 2, 2, 64), (2, 2, 64), trials) is None
    assert trials.read_text(encoding="utf-8").count("passed") == 2, "other heads are another kernel"


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_fail_or_are_wrong_are_named(device: SimulatedDevice, trials: Path, kind: str) -> None:
    refused = Broken(device, *HEADS, kind=kind, error=RuntimeError("Invalid plan"))
    said = flashinfer_trial.failure(device, refused, HEADS, trials)
    assert said == f"its {kind} call failed: RuntimeError: Invalid plan"
    said = flashinfer_trial.failure(device, Broken(device, *HEADS, kind=kind, wrong=True), HEADS, trials)
    assert said == f"its {kind} call gives other numbers than float32"
    assert not trials.exists(), "the next process tries again"
    final = Broken(device, *HEADS, kind=kind, error=CudaError("CUDA_ERROR_ILLEGAL_ADDRESS"))
    with pytest.raises(CudaError):
        flashinfer_trial.failure(device, final, HEADS, trials)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    sizes = {"hidden_size": 64, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    return Model(save_model(tmp_path_factory.mktemp("heads-of-64"), **sizes))


@pytest.mark.feature("H8")
@pytest.mark.parametrize("how", ["missing", "import", "plan"])
def test_an_engine_goes_on_without_it_unless_it_was_asked_for(
    model: Model,
    device: SimulatedDevice,
    trials: Path,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """``device`` has no trial of this project's attention, so all steps attend by key lists."""
    made = {
        "missing": SimulatedCalls,
        "import": lambda *given: (_ for _ in ()).throw(ImportError("GLIBC_2.34 not found")),
        "plan": lambda *given: Broken(*given, kind="paged", error=RuntimeError("Invalid plan")),
    }[how]
    said = {
        "missing": "flashinfer is not installed",
        "import": "it cannot be imported: GLIBC_2.34 not found",
        "plan": "its paged call failed",
    }
    monkeypatch.setattr(attention, "missing", lambda: said["missing"] if how == "missing" else None)
    monkeypatch.setattr(attention, "FlashInferCalls", made)
    monkeypatch.setattr(attention, "trials", lambda gpu: trials)
    on: Any = device
    with caplog.at_level(logging.WARNING, "prelude.cuda"):
        assert attention_calls(model.config, on) is None
    assert f"FlashInfer is not used: {said[how]}" in caplog.text and "key lists" in caplog.text
    for asked in ({"setting": "flashinfer"}, {"alone": False}):  # ranks of a divided model attend alike
        gc.collect()  # what a failed trial leaves on the stream reads no memory of that trial
        with pytest.raises(DeviceUnavailable, match=said[how]):
            attention_calls(model.config, on, **asked)
