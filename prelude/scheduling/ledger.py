"""Need and Ledger: the resources that a row would take, and those that this step still has.

Blocks and recurrent slots are not in the ledger: the pool is their only account, and it says no atomically.
"""

from __future__ import annotations

from dataclasses import dataclass

LOGITS_BYTES = 8  # float32 logits and their log-softmax, per vocabulary entry of a read row


@dataclass(frozen=True, slots=True)
class Need:
    tokens: int  # to compute, cached ones not counted
    rows: int = 1
    logits_bytes: int = 0


@dataclass(slots=True)
class Ledger:
    """Budgets of one step. ``take`` either subtracts the whole need or changes nothing."""

    tokens: int
    rows: int
    logits_bytes: int

    def fits(self, need: Need) -> bool:
        return need.tokens <= self.tokens and need.rows <= self.rows and need.logits_bytes <= self.logits_bytes

    def take(self, need: Need) -> bool:
        if not self.fits(need):
            return False
        self.tokens -= need.tokens
        self.rows -= need.rows
        self.logits_bytes -= need.logits_bytes
        return True

    def give_back(self, need: Need) -> None:
        self.tokens += need.tokens
        self.rows += need.rows
        self.logits_bytes += need.logits_bytes
