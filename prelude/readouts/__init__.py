"""The registry of readouts. A new one is a file of this folder and its lines here."""

from __future__ import annotations

from prelude.readouts.base import RequestReadout
from prelude.readouts.draw import LogitEdits
from prelude.readouts.head import HeadRows, OptionRows
from prelude.readouts.logprobs import LogprobRows
from prelude.readouts.pooled import PooledRows
from prelude.readouts.sample import SampleRows

# Every dataclass of arrays that a batch's readout is made of: a dumped batch is read back with these.
BATCH_TYPES: tuple[type, ...] = (LogprobRows, PooledRows, HeadRows, OptionRows, SampleRows, LogitEdits)

__all__ = ["BATCH_TYPES", "RequestReadout"]
