"""The parts of a model as a function of its specification, and a batch as bytes; no processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prelude import ConfigError
from prelude.cpu.hidden_rows import HiddenRows
from prelude.execution.dump import decoded, encoded
from prelude.models.checkpoint import Checkpoint
from prelude.models.config import ModelConfig
from prelude.parallel.rows import ShardRows
from prelude.parallel.shards import Cut, Shard, check, kv_share, shard, share
from prelude.parallel.source import ShardSource, part_of
from prelude.readouts.batch import (
    DecodeBatch,
    DecodeRows,
    LogitEdits,
    OneShotBatch,
    PooledRows,
    PromptSlices,
    SampleRows,
)
from tests.checkpoints import SMALL

TYPES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "phi3": "Phi3", "gemma3_text": "Gemma3", "smollm3": "SmolLM3"}


def spec_of(family: str, **changes: Any) -> Any:
    config = {**SMALL, "model_type": family, "architectures": [f"{TYPES[family]}ForCausalLM"], "rms_norm_eps": 1e-6}
    config |= {"hidden_act": "silu"} if "gemma" not in family else {"hidden_activation": "gelu_pytorch_tanh"}
    config |= {"rope_theta": 1e4, "query_pre_attn_scalar": 32, "sliding_window": 64, **changes}
    config |= {"sliding_window_pattern": 3, "rope_local_base_freq": 1e4, "tie_word_embeddings": True}
    return ModelConfig.from_dict(config).spec


@pytest.mark.feature("H11")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", TYPES)
def test_the_parts_of_a_model_are_the_whole(family: str, size: int) -> None:
    spec = spec_of(family)
    shards = [shard(spec, rank, size) for rank in range(size)]
    assert shards == [shard(spec, rank, size) for rank in range(size)]
    doubled = size // spec.attention.kv_heads if size > spec.attention.kv_heads else 1
    for name, shape in spec.tensors().items():
        cuts = [one.cuts.get(name) for one in shards]
        if cuts[0] is None:
            assert cuts == [None] * size
            continue
        taken = np.zeros(shape[cuts[0].axis], int)
        for one, cut in zip(shards, cuts):
            assert cut is not None
            for first, last in cut.runs:
                taken[first:last] += 1
            kept = one.spec.tensors()
            if name in kept:
                assert kept[name][cut.axis] == sum(last - first for first, last in cut.runs)
        of_keys = doubled > 1 and any(part in name for part in ("k_proj", "v_proj", "qkv_proj"))
        assert set(taken.tolist()) <= ({1, doubled} if of_keys else {1})
    assert [one.first for one in shards[1:]] == [one.last for one in shards[:-1]]
    assert shards[0].first == 0 and shards[-1].last == spec.embeddings.vocab
    biases = [sum(layer.attention.out.bias + layer.mlp.down.bias for layer in one.spec.layers) for one in shards]
    assert not any(biases[1:])


def test_shares_differ_by_one_at_most_and_heads_go_with_their_queries() -> None:
    for count, size in ((211, 4), (7, 3), (4, 4)):
        widths = [last - first for first, last in (share(count, rank, size) for rank in range(size))]
        assert sum(widths) == count and max(widths) - min(widths) <= 1
    assert [kv_share(2, rank, 4) for rank in range(4)] == [(0, 1), (0, 1), (1, 2), (1, 2)]
    assert [kv_share(4, rank, 2) for rank in range(2)] == [(0, 2), (2, 4)]


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        ({}, 3, r"4 query heads .* takes 1, 2 or 4"),
        ({"num_attention_heads": 6, "num_key_value_heads": 2}, 3, r"2 key-value heads .* takes 1, 2 or 6"),
        ({"intermediate_size": 97}, 2, r"97 inner values .* takes 1$"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], size: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(spec_of("qwen3", **changes), size)


def test_a_part_of_a_weight_is_a_view_where_it_is_one_run() -> None:
    whole = np.arange(24.0).reshape(6, 4)
    rows = part_of(whole, Cut(0, ((2, 4),)))
    assert np.shares_memory(rows, whole) and rows.tolist() == whole[2:4].tolist()
    assert np.shares_memory(part_of(whole, Cut(1, ((1, 3),))), whole)
    assert part_of(whole, Cut(0, ((0, 1), (3, 4)))).tolist() == whole[[0, 3]].tolist()
    assert part_of(whole, None) is whole


def test_a_rank_reads_its_part_of_the_files(tmp_path: Path) -> None:
    from tests.checkpoints import save_model

    path = save_model(tmp_path)
    config = ModelConfig.from_dir(path)
    with Checkpoint.open(path, config) as checkpoint:
        sources = [ShardSource(checkpoint, shard(config.spec, rank, 2)) for rank in range(2)]
        cut = sum(checkpoint.tensor(name).nbytes for name in checkpoint.names() if name in sources[0]._shard.cuts)
        whole = checkpoint.nbytes(4)
        assert sum(source.nbytes(4) for source in sources) == cut + 2 * (whole - cut)
        assert sources[0].checksum() == sources[1].checksum()
        name = config.spec.layers[0].mlp.down.names[0] + ".weight"
        joined = np.concatenate([source.finite(name) for source in sources], axis=1)
        assert np.array_equal(joined, checkpoint.tensor(name))


def side_by_side(size: int, use: Callable[[int, Any], Any]) -> list[Any]:
    """What ``use`` returns on each of ``size`` ranks, which are threads of this process."""
    meeting, parts, found = threading.Barrier(size, timeout=30), [np.zeros(0)] * size, [None] * size

    def gather(rank: int, values: Any) -> Any:
        parts[rank] = values.copy()
        meeting.wait()
        every = np.stack(parts)
        meeting.wait()
        return every

    def run(rank: int) -> None:
        found[rank] = use(rank, SimpleNamespace(gather=lambda values: gather(rank, values)))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.feature("H11")
@pytest.mark.parametrize("size", [2, 3])
def test_rows_of_the_ranks_are_those_of_the_whole(size: int) -> None:
    """Whole numbers, so that many logits are equal, on one rank and on several."""
    table = np.random.default_rng(size).integers(-2, 3, (7, 46)).astype(np.float32)
    table[0, [3, 45]] = table[1, [20, 21, 45]] = 9.0
    table[2] += 5000.0  # no exponential of it is finite
    table[6, 40] = np.nan
    hidden, every = np.arange(7, dtype=np.float32)[:, None], np.arange(7, dtype=np.int32)

    def decoder(first: int, last: int) -> Any:
        own = table[:, first:last]
        return SimpleNamespace(
            spec=SimpleNamespace(embeddings=SimpleNamespace(vocab=last - first), hidden=1),
            final_norm=lambda rows: rows[:, 0].astype(int),
            logits=lambda rows: np.ascontiguousarray(own[rows]),
            logits_of=lambda rows, targets: own[rows, targets],
        )

    def numbers(rows: HiddenRows) -> tuple[list[Any], list[Any]]:
        """Those that are equal, and the logprobs."""
        equal: list[Any] = [rows.vocab_size, [part.finite().tolist() for *_, part in rows.chunks(every)]]
        close: list[Any] = []
        for first, last, part in rows.chunks(every[:6]):
            at, targets = (one.ravel().astype(np.int32) for one in np.meshgrid(range(last - first), range(46)))
            best = [part.best(count) for count in (1, 5, 24, 30, 46)]
            equal += [first, last, [part.row(n) for n in range(last - first)], rows.logits_of(every, at, targets)]
            equal += [part.argmax(), part.ranks(at, targets), [ids for ids, _ in best]]
            close += [part.logprobs(at, targets), *[logprobs for _, logprobs in best]]
        return equal, close

    def of(rank: int, group: Any) -> Any:
        first, last = share(46, rank, size)
        own = decoder(first, last)
        return numbers(ShardRows(Shard(rank, size, own.spec, {}, 46, first), group, own, hidden, None, 4))

    equal, close = numbers(HiddenRows(decoder(0, 46), hidden, None, 4))
    for found in side_by_side(size, of):
        assert repr(found[0]) == repr(equal)
        for one, wanted in zip(found[1], close, strict=True):
            assert np.allclose(one, wanted, rtol=0, atol=1e-6)


@pytest.mark.feature("Q15")
def test_a_batch_survives_the_way_to_another_rank() -> None:
    def ints(*values: int) -> Any:
        return np.array(values, np.int32)

    none = ints()
    edits = LogitEdits(
        *(np.ones(1, np.float32) for _ in range(3)),
        *(ints(0, 2), ints(4, 5), ints(1, 0)),
        *(ints(0, 1), ints(9), np.array([0.5], np.float32)),
        *(ints(0, 0), none, ints(0, 0), none),
    )
    floats = [np.array([value], np.float32) for value in (0.7, 0.9, 0.0)]
    readout = SampleRows(
        ints(0), floats[0], ints(3), floats[1], floats[2], np.array([2**63], np.uint64), ints(1), 2, True, edits
    )
    decode = DecodeBatch(DecodeRows(ints(5), ints(7), ints(7), ints(7), ints(0, 1), ints(0)), readout)
    slices = PromptSlices(ints(1, 2, 3), ints(0, 1, 2), ints(0, 3), ints(-1), ints(0), ints(0, 0), none)
    for batch in (decode, OneShotBatch(slices, PooledRows(ints(0, 1, 2), ints(0, 3), "mean"))):
        found = decoded(bytearray(encoded(batch)))
        assert repr(found) == repr(batch) and type(found) is type(batch)
    assert decoded(bytearray(encoded(decode))).rows.token_ids.flags.writeable  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="type object"):
        decoded(bytearray(encoded(decode).replace(b'"uint64"', b'"object"')))


@pytest.mark.feature("H11")
def test_one_process_pays_nothing_for_the_ranks() -> None:
    """The projections of one process stay plain: no object of the ranks stands in the forward pass."""
    from prelude import Engine
    from prelude.cpu.executor import CpuExecutor
    from prelude.cpu.hidden_rows import HiddenRows
    from prelude.models.packed import SummedLinear
    from prelude.models.weights import EmbeddingWeights

    with Engine.from_pretrained() as engine:
        executor = engine.core.executor
        assert type(executor) is CpuExecutor and executor._rows_of is HiddenRows
        assert type(executor.weights.embeddings) is EmbeddingWeights
        for layer in executor.weights.layers:
            assert not isinstance(layer.out, SummedLinear) and not isinstance(layer.down, SummedLinear)
