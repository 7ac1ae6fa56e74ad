"""The inbox, the step lock and the wake event as Python threads use them; their C++ is stressed by
``_native/tests/test_handover.cpp``."""

from __future__ import annotations

import sys
import threading

import pytest
from prelude._native.core import StepLock, Tally, WakeEvent

from prelude.errors import EngineClosed, QueueFull
from prelude.runtime.inbox import Inbox
from prelude.scheduling.request import Request
from tests.patience import PATIENCE
from tests.scheduling.cores import Collect, last_logprob, prompt


def request(tokens: int = 4) -> Request:
    return Request(last_logprob(prompt(tokens, 1)), Collect())


def test_posted_requests_are_taken_in_order_and_whole_after_close_too() -> None:
    inbox = Inbox(100, 1000)
    first, second, third = request(), request(), request()
    inbox.post([first, second])
    inbox.post([])
    inbox.post([third])
    assert inbox.items == [first, second, third] and not inbox.empty
    with pytest.raises(RuntimeError, match="posted once"):
        inbox.post([second])
    inbox.close()
    refused = request()
    references = sys.getrefcount(refused)
    posted = inbox.post([refused])
    assert not posted and sys.getrefcount(refused) == references
    with pytest.raises(EngineClosed):
        inbox.enter([refused])
    assert inbox.take() == [first, second, third] and inbox.take() == [] and inbox.empty


def test_places_and_tokens_are_exact_and_given_back_once() -> None:
    inbox = Inbox(3, 10)
    with inbox.reserve(5) as places:
        assert places.left == 3 and inbox.rejected == {"queued_requests": 2}
        one, two, three = request(4), request(4), request(4)
        places.take(one)
        places.take(two)
        with pytest.raises(QueueFull, match="8 tokens are waiting and the request brings 4; the limit is 10"):
            places.take(three)
        inbox.post([one, two])
        places.posted()
    assert (inbox.requests, inbox.tokens) == (2, 8), "the third place went back"
    inbox.leave(one)
    inbox.leave(one)
    inbox.leave(two)
    assert inbox.requests == inbox.tokens == 0
    assert inbox.rejected == {"queued_requests": 2, "queued_tokens": 1}
    with pytest.raises(ZeroDivisionError), inbox.reserve(3) as places:
        places.take(three)
        raise ZeroDivisionError
    assert inbox.requests == inbox.tokens == 0
    with inbox.reserve(0) as places, pytest.raises(QueueFull, match="max_queued_requests"):
        places.take(three)


def test_a_tally_counts_the_additions_of_every_thread() -> None:
    tally = Tally()
    threads = [threading.Thread(target=lambda: [tally.add(3) for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.count == 4 * 3 * 5000


def test_the_step_lock_is_held_by_one_thread_which_is_told_of_requests() -> None:
    lock = StepLock()
    assert lock.try_acquire() and lock.held and not lock.try_acquire()
    heard: list[bool] = []
    other = threading.Thread(
        target=lambda: heard.extend([lock.held, lock.try_acquire(), lock.try_acquire_or_request()])
    )
    other.start()
    other.join()
    assert heard == [False, False, False]
    assert lock.release() and not lock.held
    assert lock.try_acquire_or_request() and not lock.release()


def test_a_wake_event_wakes_once_for_any_number_of_sets() -> None:
    event = WakeEvent()
    assert not event.wait(0.01)
    event.set()
    event.set()
    assert event.wait() and not event.wait(0.01)
    woken = threading.Event()

    def sleep() -> None:
        event.wait()
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    assert not woken.wait(0.1), "it waits without the GIL, and without a ring for ever"
    event.set()
    assert woken.wait(PATIENCE)
    thread.join()
