"""The KV pool of an engine without settings: its size, its memory, and requests that do not fit into it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prelude import Decide, Engine, EngineConfig, Generate, Loglikelihood, SamplingParams, YesNo
from prelude.cpu.profile import resident_bytes
from prelude.errors import ConfigError, PromptTooLong
from prelude.models.memory import available_memory
from prelude.values.config import CPU_KV_BYTES
from tests.checkpoints import make_checkpoint
from tests.patience import shown

WIDE = {"num_hidden_layers": 4, "num_key_value_heads": 8, "num_attention_heads": 8, "head_dim": 64}
WIDE_BYTES = 4 * 2 * 8 * 64 * 4  # of a token's keys and values in float32


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which 256 MiB hold 16,384 tokens, with 16,384 positions."""
    return make_checkpoint(tmp_path_factory.mktemp("wide"), **WIDE, max_position_embeddings=32_768)


def test_the_default_pool_holds_a_sequence_of_every_position(wide: Path) -> None:
    available = available_memory()
    if available is None or available < 8 * 32_768 * WIDE_BYTES:  # the tests beside this one take some as well
        pytest.skip("needs 4 GiB of free memory")
    assert CPU_KV_BYTES < 32_768 * WIDE_BYTES
    with Engine.from_pretrained(wide) as engine:
        ids = np.arange(30_000, dtype=np.int32) % 4000 + 1
        explained = engine.explain(Generate(ids, SamplingParams(max_tokens=300)))
        assert len(explained.token_ids) == 30_000


def test_a_pool_takes_memory_where_blocks_are_written(wide: Path) -> None:
    def taken() -> int:
        gc.collect()
        before = resident_bytes() or 0
        with Engine.from_pretrained(wide, config=EngineConfig(kv_bytes=1 << 30)) as engine:
            engine.complete([5, 6, 7], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
            assert engine.stats()["blocks_free"] >= (1 << 30) // WIDE_BYTES // 16 - 1
            return (resident_bytes() or 0) - before

    assert shown(lambda: taken() < 1 << 28, 3)


# ------------------------------------------------------------------ prefixes that find no room
def test_a_prompt_longer_than_the_pool_is_said_once(
    make_engine: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "prelude.engine"):
        engine = make_engine(kv_blocks=4)
        for shift in range(3):
            engine.run(Decide(np.arange(shift + 1, shift + 200), [YesNo("Is it long?")]))
        engine.loglikelihood(list(range(1, 60)), [7])
    said = [text for record in caplog.records if "KV pool" in (text := record.getMessage())]
    assert len(said) == 1
    assert "not kept in the prefix cache" in said[0] and "holds 64 tokens" in said[0] and "kv_bytes" in said[0]
    assert engine.stats()["prefixes_not_kept"] == 3


def test_a_full_pool_is_said_once_and_a_kept_prefix_is_not(
    make_engine: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "prelude.engine"):
        engine = make_engine(kv_blocks=4)
        for _ in range(2):
            engine.loglikelihood(list(range(1, 65)), [7])  # the second hits all four blocks
        assert engine.stats()["prefixes_not_kept"] == 0
        engine.loglikelihood(list(range(9, 60)), [7])
        engine.loglikelihood(list(range(10, 60)), [7], cache="never")
        engine.loglikelihood(list(range(11, 60)), [7])
    assert [("hit before" in record.getMessage()) for record in caplog.records] == [True]
    assert engine.stats()["prefixes_not_kept"] == 2


def test_the_prompt_that_is_named_is_one_that_was_to_be_kept(
    make_engine: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "prelude.engine"):
        never = Loglikelihood(list(range(1, 100)), [7], cache="never")
        make_engine(kv_blocks=2).run_many([never, Loglikelihood(list(range(9, 60)), [7]), never])
    [said] = [text for record in caplog.records if "KV pool" in (text := record.getMessage())]
    assert said.startswith("a prompt of 51 tokens")


# ------------------------------------------------------------------ max_step_tokens and the length
@pytest.mark.parametrize("asked, lowered", [(None, 236), (400, 236), (200, 200)])
def test_max_step_tokens_lowers_the_length(
    make_engine: Callable[..., Engine], caplog: pytest.LogCaptureFixture, asked: int | None, lowered: int
) -> None:
    """A checkpoint of 512 positions and a step of 300 tokens, 64 of them for running rows."""
    with caplog.at_level(logging.INFO, "prelude.engine"):
        engine = make_engine(max_step_tokens=300, max_length=asked)
    said = [record for record in caplog.records if "max_length" in record.getMessage()]
    assert [record.levelno for record in said] == (
        [] if lowered == asked else [logging.INFO if asked is None else logging.WARNING]
    )
    text = engine.complete([5] * (lowered - 1), SamplingParams(max_tokens=9, temperature=0, ignore_eos=True))
    assert len(text.token_ids) == 1
    with pytest.raises(PromptTooLong, match=str(lowered)):
        engine.complete([5] * (lowered + 5), SamplingParams(max_tokens=1))


def test_a_step_without_room_for_a_prompt_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="max_step_tokens=64 leaves no token for a prompt"):
        Engine.from_pretrained(checkpoint, config=EngineConfig(max_step_tokens=64))
