"""Ledger: the resources that a step still has. Its ``take`` either subtracts a whole row or changes nothing.

Blocks and state entries are not in the ledger: the pool is their only account, and it refuses atomically.
``_native/ledger.pxi`` has the classes: a step's group of OneShot requests is charged in one native call.
"""

from prelude._native.core import Ledger, StepLimits

LOGITS_BYTES = 8  # float32 logits and their log-softmax, per vocabulary entry of a read row

__all__ = ["LOGITS_BYTES", "Ledger", "StepLimits"]
