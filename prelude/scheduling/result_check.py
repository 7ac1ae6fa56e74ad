"""An executor's result is checked against its batch: a wrong shape fails its step, and no other step's rows."""

from __future__ import annotations

from prelude._native.core import ResultCheck
from prelude.batch import MixedBatch, StepResult
from prelude.errors import ExecutionError

check_result = ResultCheck(StepResult, MixedBatch, ExecutionError)
"""``check_result(packed, result)``: of each output its rows (items, for pooled ones) with a number that is not
finite: those that the executor lists, and those that it missed. ``ExecutionError`` for a result of another batch."""
