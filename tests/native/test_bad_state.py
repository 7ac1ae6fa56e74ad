"""Bad input and missing state end in an exception, never in a crash: every public name of the extension modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prelude._native import core, cpu
from prelude.tokenizer import _core as tokenizer

from tests.pools import compute

ABUSE = Path(__file__).with_name("abuse.py")


@pytest.mark.parametrize(
    "module", ["prelude._native.core", "prelude._native.cpu", "prelude._native.gpu", "prelude.tokenizer._core"]
)
def test_every_public_name_survives_bad_and_missing_state(module: str) -> None:
    command = [sys.executable, "-X", "faulthandler", str(ABUSE), module, "--seed", "3", "--calls", "12000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"after {done.stderr[-3000:]}"
    assert "12000 calls" in done.stdout


def test_an_object_that_needs_parts_is_not_made_without_them() -> None:
    for kind in (core.OneShotGroup, core.KvPool, core.Inbox, cpu.Attention, cpu.PagedRows,
                 tokenizer.CoreTokenizer, tokenizer.CoreStream, tokenizer.RowFrames):  # fmt: skip
        with pytest.raises(TypeError):
            kind.__new__(kind)


def test_a_record_without_a_prompt_is_refused_with_a_type() -> None:
    record, pool = core.Record(), core.KvPool(8, 4)
    lease = core.Lease.__new__(core.Lease)
    assert lease.shared.tolist() == [] and lease.table().tolist() == []  # nothing is copied from nowhere
    row = SimpleNamespace(request=record, skip=0, publish=0)
    with pytest.raises((TypeError, AttributeError)):
        core.pack_running([record], 4)
    with pytest.raises(TypeError):
        core.pack_step([row], [], [], 4)
    names = ["step_tokens", "step_requests", "logits_bytes", "logits_row_bytes", "logits_chunk_rows", "group_tokens"]
    limits = core.StepLimits(**dict.fromkeys([*names, "defer_tokens", "defer_steps"], 64), fold=True)
    with pytest.raises(TypeError, match="without a prompt"):
        core.OneShotGroup(pool, limits, [record], 64, 64, 64, -1, False, False, False)
    with pytest.raises(TypeError, match="without a prompt"):
        pool.release(lease, record, 4)
    with pytest.raises(ValueError, match="no row lacks room"):
        core.OneShotGroup(pool, limits, [], 64, 64, 64, -1, False, False, False).evict(4)
    with pytest.raises(IndexError, match="fold's member 5"):
        core.pack_step([row], [((5,), 1)], [], 4)


def test_arrays_that_are_not_aligned_are_copied() -> None:
    """The bits are those of an aligned copy; a build with the undefined-behaviour sanitizer stops at the reads."""
    crooked = np.frombuffer(b"\x00" + np.arange(8, dtype=np.int32).tobytes(), np.uint8)[1:].view(np.int32)
    assert not crooked.flags.aligned
    pool = core.KvPool(64, 4)
    compute(pool, crooked)
    assert pool.would_hit(np.arange(8, dtype=np.int32)) == pool.would_hit(crooked) == 2


def test_a_tree_is_built_only_from_segments_whose_parents_come_first() -> None:
    state, tail = np.arange(3, dtype=np.int32), np.array([7, 8], np.int32)
    ids, positions, starts, parents = core.build_tree([(-1, state), (0, [7]), (0, [8]), (1, tail)], {2})
    assert ids.tolist() == [0, 1, 2, 7, 8, 7, 8] and positions.tolist() == [0, 1, 2, 3, 4, 4, 5]
    assert starts.tolist() == [0, 3, 4, 5, 7] and parents.tolist() == [-1, 0, 0, 1]
    for parent in (1, 2, -2):
        with pytest.raises(ValueError, match=f"segment 1 has the parent {parent}"):
            core.build_tree([(-1, state), (parent, tail)])
    assert core.join_ids(state, [], tail).tolist() == [0, 1, 2, 7, 8] and core.join_ids().tolist() == []
    with pytest.raises(TypeError):
        core.join_ids(state, None)
