"""Need and Ledger: what a row would take, and what this step still has.

Blocks are not in the ledger: the allocator is their only account, and it says no atomically.
"""

from __future__ import annotations

from dataclasses import dataclass

LOGITS_BYTES = 8  # float32 logits and their log-softmax, per vocabulary entry of a read row


@dataclass(frozen=True, slots=True)
class Need:
    tokens: int  # to compute, cached ones not counted
    rows: int = 1
    logits_bytes: int = 0
    recurrent_slots: int = 0


@dataclass(slots=True)
class Ledger:
    """Budgets of one step. ``take`` either subtracts the whole need or changes nothing."""

    tokens: int
    rows: int
    logits_bytes: int
    recurrent_slots: int = 0

    def fits(self, need: Need) -> bool:
        return (
            need.tokens <= self.tokens
            and need.rows <= self.rows
            and need.logits_bytes <= self.logits_bytes
            and need.recurrent_slots <= self.recurrent_slots
        )

    def take(self, need: Need) -> bool:
        if not self.fits(need):
            return False
        self.tokens -= need.tokens
        self.rows -= need.rows
        self.logits_bytes -= need.logits_bytes
        self.recurrent_slots -= need.recurrent_slots
        return True

    def give_back(self, need: Need) -> None:
        self.tokens += need.tokens
        self.rows += need.rows
        self.logits_bytes += need.logits_bytes
        self.recurrent_slots += need.recurrent_slots
