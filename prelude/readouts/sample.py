"""One sampled token a row: the settings of all rows as arrays, and the tokens drawn."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

from prelude.readouts.base import Output, Readout, Rows, bad_rows, shape
from prelude.readouts.draw import LogitEdits, Logits, best, distribution, draw, edited, uniforms
from prelude.records import dataclass
from prelude.values.arrays import F32, I32, U64

_NO_ROWS: I32 = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class SampleOutput(Output):
    token_ids: I32  # [N]
    logprobs: F32 | None = None  # [N], of the sampled tokens under the unmodified distribution
    top_ids: I32 | None = None  # [N, top]
    top_logprobs: F32 | None = None  # [N, top]

    @property
    def sampled_ids(self) -> I32:
        return self.token_ids


@dataclass(frozen=True, slots=True)
class SampleRows(Readout):
    """One sampled token per row. Greedy if ``temperature`` is 0.

    The uniform number of row n is a pure function of (``seeds[n]``, ``steps[n]``), so the same request draws the
    same tokens beside any other rows. ``logprobs`` asks for the logprob of the sampled token, ``top`` > 0 for the
    ``top`` best tokens and theirs as well. ``edits=None``: logits are sampled as they are.
    """

    rows: I32  # [N], token indices; for decode rows the row itself
    temperature: F32  # [N]
    top_k: I32  # [N], 0 = off
    top_p: F32  # [N], 1 = off
    min_p: F32  # [N], 0 = off
    seeds: U64  # [N]
    steps: I32  # [N], how many tokens this request has sampled before
    top: int = 0
    logprobs: bool = False
    edits: LogitEdits | None = None

    @property
    def vocab_rows(self) -> int:
        return len(self.rows)

    @property
    def draws(self) -> int:
        return len(self.rows)

    def run(self, rows: Rows) -> tuple[SampleOutput, I32]:
        count = len(self.rows)
        token_ids, finite = np.zeros(count, np.int32), np.ones(count, np.bool_)
        top = min(self.top, rows.vocab_size)
        logprobs = np.zeros(count, np.float32) if self.logprobs else None
        top_ids = np.zeros((count, top), np.int32) if top else None
        top_logprobs = np.zeros((count, top), np.float32) if top else None
        drawn = self.temperature > 0
        # The rows that take more than an argmax.
        worked = np.flatnonzero(drawn if self.edits is None else drawn | self.edits.rows()).tolist()
        uniform = uniforms(self.seeds, self.steps) if drawn.any() else np.zeros(count)
        for start, stop, some in rows.chunks(self.rows):
            finite[start:stop] = some.finite()
            these = worked[bisect_left(worked, start) : bisect_left(worked, stop)]
            if len(these) < stop - start:
                token_ids[start:stop] = some.argmax()
            for n in these:
                if finite[n]:
                    token_ids[n] = sample_token(some.row(n - start), self, n, float(uniform[n]))
            if logprobs is not None:
                index = np.arange(stop - start, dtype=np.int32)
                logprobs[start:stop] = some.logprobs(index, token_ids[start:stop])
                if top_ids is not None and top_logprobs is not None:
                    top_ids[start:stop], top_logprobs[start:stop] = some.best(top)
        token_ids[~finite] = 0
        return SampleOutput(token_ids, logprobs, top_ids, top_logprobs), bad_rows(finite)

    def answers(self, output: object) -> bool:
        return isinstance(output, SampleOutput) and shape(output.token_ids) == self.rows.shape

    def not_finite(self, output: Any) -> I32:
        return _NO_ROWS  # token ids are numbers

    def blank(self) -> SampleOutput:
        return SampleOutput(np.zeros(len(self.rows), np.int32))


def sample_token(logits: npt.NDArray[np.float32], readout: SampleRows, n: int, u: float) -> int:
    """Return the token of row ``n`` of ``readout``; ``logits`` are finite."""
    edits, temperature = readout.edits, float(readout.temperature[n])
    if temperature <= 0.0:
        return int(logits.argmax()) if edits is None else best(logits, edits, n)
    row: Logits = logits if edits is None else edited(logits, edits, n)
    cuts = (int(readout.top_k[n]), float(readout.top_p[n]), float(readout.min_p[n]))
    return draw(distribution(row, temperature, *cuts), u)
