"""Ledger: the resources that a step still has. Its ``take`` either subtracts a whole row or changes nothing.

Blocks and state entries are not in the ledger: the pool is their only account, and it refuses atomically.
"""

from __future__ import annotations

from prelude.records import dataclass

LOGITS_BYTES = 8  # float32 logits and their log-softmax, per vocabulary entry of a read row


@dataclass(slots=True)
class Ledger:
    """The budgets that a step still has: ``tokens`` to compute, cached ones not counted; ``rows``; bytes of
    logits."""

    tokens: int
    rows: int
    logits_bytes: int

    def fits(self, tokens: int) -> bool:
        """Return whether a row of so many tokens fits."""
        return tokens <= self.tokens and self.rows >= 1

    def take(self, tokens: int) -> bool:
        """Take a row of so many tokens; return False, and change nothing, if it does not fit."""
        if not self.fits(tokens):
            return False
        self.tokens -= tokens
        self.rows -= 1
        return True

    def give_back(self, tokens: int) -> None:
        """Give back a row of so many tokens."""
        self.tokens += tokens
        self.rows += 1
