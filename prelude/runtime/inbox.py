"""Inbox: the way in, bounded before anything is made.

    reserve ── a place, taken before the text is tokenised ──▶ charge ── its tokens ──▶ post ──▶ take ──▶ engine
        └─ full: QueueFull at once                       └─ given back where nothing came of it

A request counts from its place being taken until it is planned for the first time, or ends. Counts are exact and
no thread waits for a lock, however many there are: ``_native/include/prelude/handover.hpp`` draws how.
"""

from __future__ import annotations

from prelude._native import core
from prelude._native.core import Places
from prelude.errors import EngineClosed, PreludeError, QueueFull


class Inbox(core.Inbox):
    def refusal(self, reason: str, tokens: int) -> PreludeError:
        if reason == "closed":
            return EngineClosed("the engine is closed; make a new one")
        if reason == "queued_requests":
            return self.full()
        return QueueFull(
            f"{self.tokens} tokens are waiting and the request brings {tokens}; the limit is {self.max_tokens} "
            "(max_queued_tokens); try again later or raise the limit"
        )

    def full(self) -> QueueFull:
        return QueueFull(
            f"{self.max_requests} requests are waiting (max_queued_requests); try again later or raise the limit"
        )


__all__ = ["Inbox", "Places"]
