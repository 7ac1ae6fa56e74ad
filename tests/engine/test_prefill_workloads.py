"""PrefillOnly's two workloads with shorter texts; ``python -m tests.prefill_workloads`` runs an hour of them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from statistics import median

import pytest

from prelude.cpu.profile import resident_bytes
from tests.prefill_workloads import MB, arguments, credit, posts, tokens_of


@pytest.mark.long
@pytest.mark.feature("A12")
@pytest.mark.feature("G10")
@pytest.mark.skipif(resident_bytes() is None, reason="the system does not count a process's memory")
def test_both_workloads_answer_every_request_and_leave_nothing_behind() -> None:
    """Profiles of 350 to 530 tokens and files of 1,250 to 1,875, each beside others of its kind."""
    options = ["--shrink", "32", "--compress", "600", "--posts", "600", "--credit", "40", "--allow", "100"]
    command = [sys.executable, "-m", "tests.prefill_workloads", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["max_length"] == 65_536 and 0 < found["most"] <= found["budget"]
    assert found["blocks_used_after"] == 0
    assert found["posts"]["requests"] > 500 and found["credit"]["requests"] == 40
    assert 0 < found["posts"]["yes"] < found["posts"]["requests"], "the answers are not all the same"
    # The posts of a user go on from the profile; nothing of a credit file is asked for again.
    assert found["posts"]["cached_tokens"] > found["posts"]["tokens"] // 2
    assert found["credit"]["cached_tokens"] < found["credit"]["tokens"] // 20
    # The whole pool is in memory, which was filled before, and requests of the last step at most. The system takes
    # pages out now and then for a moment, to move them: single readings may miss some.
    pool = round(found["memory"]["kv_bytes"] / MB, 2)  # as the readings
    for part in (found["posts"], found["credit"]):
        assert len(part["parts_mb"]["kv"]) == 21 and part["in_flight_most"] <= 20
        assert pool <= median(part["parts_mb"]["kv"]) < pool + 0.1, part["parts_mb"]["kv"]
        assert max(part["counts"]["requests"]) <= 20
    objects = found["posts"]["counts"]["blocks"]  # of Python; 420 requests run after the fifth reading
    assert min(objects[-5:]) - min(objects[3:8]) < 2000, "several objects of each request stay"


def test_the_requests_of_an_hour_are_those_of_the_trace() -> None:
    hour = list(posts(3600, 1.0, 1))
    assert 3300 < len(hour) < 3900 and 3000 < hour[-1].at <= 3600
    assert all(one.at <= two.at for one, two in pairwise(hour))
    assert len({name for one in hour for name, _ in one.parts}) > 60, "20 users, then 20 others"
    files = list(credit(60, 1.0, 1))
    assert len(files) == 60 and all(40_000 <= one.prompt_tokens <= 60_000 for one in files)


def test_the_texts_of_a_user_begin_alike() -> None:
    first, *others = posts(3600, 0.2, 1)
    tokens = tokens_of(first, 4096, 1, 1)
    assert len(tokens) == first.prompt_tokens and (tokens == tokens_of(first, 4096, 1, 1)).all()
    again = next(one for one in others if one.parts[0] == first.parts[0])
    other = tokens_of(again, 4096, 1, 1)
    assert (tokens[:-150] == other[:-150]).all() and (tokens[-150:] != other[-150:]).any()


def test_the_budget_of_the_command_is_in_megabytes() -> None:
    given = arguments().parse_args([])
    assert given.megabytes * MB < 1 << 30 and given.hours == 1.0
