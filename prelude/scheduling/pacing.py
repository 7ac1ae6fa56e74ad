"""Pacer: how much OneShot work a step may carry beside running rows.

Every step with running rows earns OneShot work a little time, ``share / (1 - share)`` of the rows' own time. A
OneShot group spends the time that it adds to the step. While the account is positive a group may go: as many tokens
as it pays for, and always at least one request, however long, which then leaves a debt that later steps pay off. So
rows lose at most ``share`` of their pace, and the longest prompt still gets its turn.

Seconds here are those that executors report of their steps, so a simulator that reports the same plans the same.
``_native/ledger.pxi`` has the class: each step's seconds reach it in the call that counts the step.
"""

from prelude._native.core import Pacer

__all__ = ["Pacer"]
