"""Results: one public type for each task, with the statistics of its request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from prelude.errors import WrongUse
from prelude.records import dataclass, field

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


@dataclass(slots=True)
class RequestStats:
    """The statistics of one request. Times are wall milliseconds.

    ``computed_tokens`` are tokens that went through the layers for this request, ``cached_tokens`` were read from
    the prefix cache; a state shared by N questions is counted once. ``ttft_ms`` and ``total_ms`` count from when the
    request was handed to the engine, after tokenising. ``timeline`` is there if it was asked for.
    ``estimated_jct`` is the cost model's expectation when the request was planned: seconds of computing its prompt
    alone; 0 before a step was measured. ``deferred_ticks`` counts steps spent waiting for another to compute
    the prefix.
    """

    execution_class: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    deferred_ticks: int = 0
    chunks: int = 0
    preemptions: int = 0
    queue_ms: float = 0.0
    forward_ms: float = 0.0
    tokenize_ms: float = 0.0
    detok_ms: float = 0.0
    finish_reason: str | None = None
    truncated_tokens: int = 0
    estimated_jct: float = 0.0
    batch_size_seen: int = 0
    replays: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    request_id: str | None = None
    timeline: Any = None


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """The question of an answer, and the template and model that answered it. ``notes`` describe ``labels`` in their
    order, ``()`` for none. ``template`` is a hash of the template's fields, or the name of a head's form.
    ``model`` is a path. "" is not known. ``changed_by`` names the priors and calibrators that were applied."""

    question: str
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    template: str = ""
    length_norm: str = ""
    model: str = ""
    changed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question. ``probabilities`` are over the labels and sum to 1. ``logprobs`` are the joint
    logprobs of each label's tokens, before ``length_norm``. ``mass`` is the probability that the model gave to all
    labels together, among all continuations. Near 0, the question did not fit the model. Near 1, the model would have
    answered with one of the labels; the answer may still be wrong. With ``Decide(mass=False)`` it is NaN, and
    ``logprobs`` are relative to the labels. ``scope`` and ``in_scope`` are those of ``FittedQuestion.answer``."""

    label: str
    index: int
    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    logprobs: Mapping[str, float]
    mass: float
    probability: float  # of yes for a Noul, of the chosen label otherwise
    expected: float | None = None  # mean level, for Score
    kind: str = "choice"  # "choice", "noul" or "score"
    asked: AskedQuestion | None = field(default=None, compare=False, repr=False)  # read by ``Calibrator.apply``
    scope: float | None = None
    in_scope: bool | None = None

    @property
    def confidence(self) -> float | None:
        """The confidence of the System One reference, from 0 to 1; ``None`` of a ``Noul``. With probabilities p of n
        labels, k the first of the largest:

            choice   (max p - 1/n) / (1 - 1/n)
            score    max(0, 1 - sum p_i |i - k| / D),  D = sum |i - (n - 1)/2| / n

        Both are 1 for a certain answer and 0 for an even spread over two options; n = 1 gives 1. They say how far the
        labels are apart, and nothing of ``mass``. Other libraries call other numbers confidence (the entropy, the
        margin, the largest probability): a threshold for one of them does not fit another."""
        shares = list(self.probabilities.values())
        if self.kind == "noul":
            return None
        return _score_confidence(shares) if self.kind == "score" else _choice_confidence(shares)


def _choice_confidence(probabilities: Sequence[float]) -> float:
    n = len(probabilities)
    return 1.0 if n < 2 else _bounded((max(probabilities) - 1 / n) / (1 - 1 / n))


def _score_confidence(probabilities: Sequence[float]) -> float:
    n = len(probabilities)
    if n < 2:
        return 1.0
    mode, distance, spread = probabilities.index(max(probabilities)), 0.0, 0.0
    for level, share in enumerate(probabilities):
        distance += share * abs(level - mode)
        spread += abs(level - (n - 1) / 2)
    return _bounded(1 - distance / (spread / n))


def _bounded(value: float) -> float:
    return min(1.0, max(0.0, value))


class Answers(tuple[Answer, ...]):
    """The answers in the order of the questions, with ``.stats``. If the questions were a mapping, ``.names`` are
    its keys, and ``answers["name"]`` and ``.named`` find an answer by them."""

    stats: RequestStats
    names: tuple[str, ...] | None

    def __new__(cls, answers: Iterable[Answer], stats: RequestStats, names: tuple[str, ...] | None = None) -> Answers:
        self = super().__new__(cls, answers)
        self.stats = stats
        self.names = names
        return self

    @property
    def named(self) -> dict[str, Answer]:
        """The answers by their names; ``WrongUse`` if the questions had none."""
        if self.names is None:
            raise WrongUse("the questions of these answers had no names: give decide() a mapping of questions")
        return dict(zip(self.names, self))

    @overload
    def __getitem__(self, at: SupportsIndex | str) -> Answer: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Answer, ...]: ...
    def __getitem__(self, at: Any) -> Any:
        return self.named[at] if isinstance(at, str) else super().__getitem__(at)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self), self.stats, self.names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{super().__repr__()}"


# The class itself and not ``NDArray``: from numpy 2.5 on that is a type alias, which has no subclasses.
class Embedding(np.ndarray[Any, np.dtype[np.float32]]):
    """A float32 vector ``[dimensions]`` with ``.stats``; an array in every other respect."""

    stats: RequestStats | None

    @classmethod
    def of(cls, vector: F32, stats: RequestStats | None) -> Embedding:
        self = np.ascontiguousarray(vector, dtype=np.float32).view(cls)
        self.stats = stats
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Embedding.of, (np.asarray(self), self.stats)

    def __array_finalize__(self, obj: Any) -> None:
        self.stats = getattr(obj, "stats", None)


@dataclass(frozen=True, slots=True)
class Classification:
    logits: F32  # [num_labels], raw
    scores: F32  # [num_labels], after the activation
    labels: tuple[str, ...]
    label: str
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class TokenClassification:
    """Row n is that of the prompt's token ``positions[n]``."""

    logits: F32  # [n, num_labels], raw
    scores: F32  # [n, num_labels], after the activation
    labels: tuple[str, ...]
    found: tuple[str, ...]  # [n], the best label of each
    positions: I32  # [n]
    token_ids: I32  # of the whole prompt
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class RerankResult:
    """``score`` is ``logit``, the raw number, after the activation."""

    score: float
    logit: float
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """``index``: the place of ``document`` among those that were given."""

    index: int
    score: float
    document: Any
    stats: RequestStats


class Ranking(tuple[RankedDocument, ...]):
    """Documents by their score, the best first; equal ones in the order in which they were given."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RewardResult:
    """``score`` is ``logit`` after the activation: the same number by default."""

    score: float
    logit: float
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """One field of a guard's answer. ``probabilities`` are over the labels and sum to 1, ``logprobs`` are joint
    logprobs of each label's tokens. ``mass``: the probability that the model gave to all labels together; NaN if
    the field was not asked because an earlier field determines its answer.

    ``labels``: all labels of the field, in the order in which the model writes them; ``label`` is the first.
    ``more``: the answers that were read behind each of them, if the field may have several; the label "" is the
    end of the list."""

    field: str
    label: str
    probabilities: Mapping[str, float]
    logprobs: Mapping[str, float]
    mass: float
    stats: RequestStats | None = None
    labels: tuple[str, ...] = ()
    more: tuple[GuardAnswer, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardResult:
    """The answer of a guard model. ``label``: of the first field, such as "Unsafe". ``flagged``: whether the label is
    none of the recipe's safe ones (Qwen3Guard's "Controversial" is flagged, as in its own evaluation). ``risk``: the
    probability of all labels that are not safe. ``fields``: every field that was read, by name."""

    label: str
    flagged: bool
    risk: float
    fields: Mapping[str, GuardAnswer]


@dataclass(frozen=True, slots=True)
class LoglikelihoodResult:
    total: float
    token_logprobs: F64  # [n]
    token_ids: I32  # [n]
    is_greedy: bool  # every continuation token is the argmax
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One prompt token. The first token of a prompt follows no other token: its numbers are ``None``."""

    token_id: int
    logprob: float | None
    rank: int | None  # 1 = the argmax
    top: tuple[tuple[int, float], ...]
    offsets: tuple[int, int] | None  # code points of the given text; None for prompts given as ids


class PromptLogprobsResult(tuple[TokenLogprob, ...]):
    stats: RequestStats

    def __new__(cls, tokens: Iterable[TokenLogprob], stats: RequestStats) -> PromptLogprobsResult:
        self = super().__new__(cls, tokens)
        self.stats = stats
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self), self.stats)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{super().__repr__()}"


@dataclass(frozen=True, slots=True)
class SampledLogprob:
    """One output token under the model's own distribution, and the best tokens of that distribution, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """Generated text. ``finish_reason`` is "stop" (an end-of-sequence token, a stop id or a stop string) or "length"
    (``max_tokens`` or the context). ``token_ids`` are all drawn tokens, including those of a stop string; ``text``
    ends before the stop string, unless ``include_stop`` is set."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: RequestStats
    prompt_logprobs: PromptLogprobsResult | None = None
    logprobs: tuple[SampledLogprob, ...] | None = None  # one per token


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text that became final since the chunk before, and the tokens drawn meanwhile.

    ``text`` begins ``offset`` code points into the whole text. Text may lag behind the tokens (an incomplete
    character, a possible stop string), so a chunk's tokens need not spell its text. The tokens and the text of all
    chunks together are those of the ``Completion``. The last chunk has ``finish_reason`` and ``stats``; no other
    chunk has them.
    """

    text: str
    token_ids: tuple[int, ...]
    offset: int
    logprobs: tuple[SampledLogprob, ...] | None = None
    finish_reason: str | None = None
    stats: RequestStats | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The work of a task that was not run: the final text, the ids, the rows that are read and their readout."""

    text: str
    token_ids: I32  # flattened tree
    segments: tuple[tuple[int, int, int], ...]  # (start, end, parent) into token_ids
    rows: I32
    readout: str
    labels: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...] = ()  # per question: (label, its token ids)
    execution_class: str = ""
    truncated_tokens: int = 0
    recipe: str | None = None  # the recipe that made the text
    activation: str | None = None  # the activation of the readout's number
