"""Follows a text while its tokens come: characters, stop strings, logprobs."""

from __future__ import annotations

import time

from prelude.readouts.batch import SampleOutput
from prelude.readouts.sampling import Sampling
from prelude.results import RequestStats, SampledLogprob
from prelude.streaming.detokenize import Texts
from prelude.streaming.text import TextState


class TextReader:
    """One request's ``Reader``. Its text state is made with the first token and freed with the last, so a request
    that waits has none."""

    __slots__ = ("_hold_words", "_sampling", "_seconds", "_state", "_texts")

    def __init__(self, texts: Texts, sampling: Sampling, hold_words: bool) -> None:
        self._texts = texts
        self._sampling = sampling
        self._hold_words = hold_words
        self._state: TextState | None = None
        self._seconds = 0.0

    def token(self, token_id: int, output: SampleOutput, row: int) -> tuple[str, SampledLogprob | None, bool]:
        began = time.perf_counter()
        sampling, state = self._sampling, self._state
        if state is None:
            state = self._state = TextState(
                self._texts,
                sampling.stops,
                include_stop=sampling.include_stop,
                hold_words=self._hold_words,
                min_tokens=sampling.min_tokens,
            )
        text = state.feed(token_id)
        self._seconds += time.perf_counter() - began
        if sampling.logprobs is None:
            return text, None, state.stopped
        return text, sampled_logprob(token_id, output, row, sampling.logprobs), state.stopped

    def finish(self, stats: RequestStats) -> str:
        state = self._state
        if state is None:
            return ""
        text = state.finish()
        if state.stopped:
            stats.finish_reason = "stop"
        stats.detok_ms += self._seconds * 1e3
        self.close()
        return text

    def close(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None


def sampled_logprob(token_id: int, output: SampleOutput, row: int, top: int | None) -> SampledLogprob | None:
    """Return a row's numbers; rows of one batch carry as many alternatives as the greediest of them asked for."""
    if top is None or output.logprobs is None:
        return None
    best: tuple[tuple[int, float], ...] = ()
    if top and output.top_ids is not None and output.top_logprobs is not None:
        best = tuple(zip(output.top_ids[row, :top].tolist(), output.top_logprobs[row, :top].tolist()))
    return SampledLogprob(token_id, float(output.logprobs[row]), best)
