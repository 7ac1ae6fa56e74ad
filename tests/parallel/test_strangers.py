"""A process that joins as a rank and says lengths of its own: ``RankLost`` on the others, and no memory for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

HONEST = """
import sys, torch.distributed as dist
from prelude.errors import RankLost
from prelude.parallel.group import RankGroup
dist.init_process_group("gloo", init_method=sys.argv[1], rank=1, world_size=2)
group = RankGroup.join(2, steady=False, limit=60.0)
try:
    group.agree({"version": 1}) if sys.argv[2] == "facts" else group.receive()
except RankLost as lost:
    sys.exit(0 if sys.argv[3] in str(lost) else str(lost))
sys.exit("nothing was raised")
"""
STRANGER = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=2)
group = dist.new_group([0, 1], backend="gloo")
length = int(sys.argv[3])
if sys.argv[2] == "facts":
    parts = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(parts, torch.tensor([length]), group=group)
    if 0 <= length < 1 << 20:
        parts = [torch.zeros(max(length, 14), dtype=torch.uint8) for _ in range(2)]
        dist.all_gather(parts, torch.zeros_like(parts[0]), group=group)
else:
    first = torch.zeros(4096, dtype=torch.uint8)
    first[:16] = torch.tensor([1, length]).view(torch.uint8)
    dist.broadcast(first, 0, group=group)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "what, length, told",
    [
        ("facts", 1 << 62, "a rank says facts of"), ("facts", -1, "a rank says facts of"),
        ("facts", 14, "comparing settings"), ("message", 1 << 62, "says 4611686018427387904 bytes"),
        ("message", -5, "says -5 bytes"),
    ],
)  # fmt: skip
def test_lengths_are_bounded_before_memory_is_asked_for(what: str, length: int, told: str, tmp_path: Path) -> None:
    meeting = f"file://{tmp_path / 'meeting'}"
    stranger = subprocess.Popen(
        [sys.executable, "-c", STRANGER, meeting, what, str(length)], stderr=subprocess.DEVNULL
    )
    try:
        ran = subprocess.run(
            [sys.executable, "-c", HONEST, meeting, what, told], capture_output=True, text=True, encoding="utf-8"
        )
    finally:
        stranger.kill()
        stranger.wait()
    assert ran.returncode == 0, ran.stderr[-2000:]


MEETING = """
import os, sys, psutil
from prelude.parallel.group import RankGroup
rank = int(os.environ["RANK"])
group = RankGroup.join(2, steady=False, limit=60.0)
group.agree({"version": 1})
mine = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
here = [ip for ip, port in mine if port == int(os.environ["MASTER_PORT"])]
group.leave()
sys.exit(0 if here == (["127.0.0.1"] if rank == 0 else []) else f"listens at {mine}")
"""


def test_ranks_meet_at_the_address_that_was_given() -> None:
    pytest.importorskip("psutil")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    told.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    command = [sys.executable, "-c", MEETING]
    ranks = [subprocess.Popen(command, env={**told, "RANK": str(rank)}) for rank in (0, 1)]
    assert [rank.wait() for rank in ranks] == [0, 0]
