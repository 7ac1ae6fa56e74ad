"""The tasks of callers, as frozen values. Limits that depend on the model are checked at admission."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from prelude.errors import UnknownParameter, shown
from prelude.records import dataclass, field, fields
from prelude.results import (
    Answers,
    Classification,
    Completion,
    Embedding,
    GuardAnswer,
    LoglikelihoodResult,
    PromptLogprobsResult,
    RerankResult,
    RewardResult,
    TokenClassification,
)

Message: TypeAlias = Mapping[str, Any]  # {"role": ..., "content": ...}
Prompt: TypeAlias = str | Sequence[int] | npt.NDArray[np.integer[Any]] | Sequence[Message]
Pair: TypeAlias = tuple[str, str]  # two texts for a cross-encoder, such as a query and a passage
Continuation: TypeAlias = str | Sequence[int] | npt.NDArray[np.integer[Any]]
CacheMode: TypeAlias = Literal["auto", "always", "never"]
Truncation: TypeAlias = Literal["error", "head", "tail", "middle"]
LengthNorm: TypeAlias = Literal["none", "token", "unconditional"]
Pooling: TypeAlias = Literal["last", "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean"]
# (token ids of the output so far) -> the ids that may come next, None: all
AllowedTokens: TypeAlias = Callable[[list[int]], "Sequence[int] | npt.NDArray[np.integer[Any]] | None"]
Activation: TypeAlias = Literal["default", "none", "sigmoid", "softmax"]

# Parameters that other libraries have and this one refuses by name, with the alternative.
NOT_OFFERED: Mapping[str, str] = {
    "n": "submit the task n times with different seeds",
    "best_of": "submit several seeds and compare their logprobs",
    "beam_width": "beam search is not offered",
    "bad_words": "use banned_token_ids, or logit_bias",
    "use_beam_search": "beam search is not offered",
    "length_penalty": "beam search is not offered",
}

C = TypeVar("C", bound=type)


def strict_keywords(cls: C) -> C:
    """A misspelt keyword of ``cls(...)`` raises ``UnknownParameter`` naming the nearest valid one."""
    original: Callable[..., None] = vars(cls)["__init__"]
    known = [field.name for field in fields(cls)]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise UnknownParameter(unknown_keyword(cls, name, known), field=name)
        original(self, *args, **kwargs)

    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def unknown_keyword(owner: type[Any] | str, name: str, known: Sequence[str]) -> str:
    parameter, group = getattr(owner, "GROUP", ("", None))
    owner = owner if isinstance(owner, str) else owner.__name__
    if name in NOT_OFFERED:
        return f"{owner} does not offer {name!r}: {NOT_OFFERED[name]}"
    if group is not None and name in group.__dataclass_fields__:
        told = f"give {parameter}={group.__name__}({name}=...)"
        return f"{owner} has no parameter {name!r}: it is a field of {group.__name__}; {told}"
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"{owner} has no parameter {name[:60]!r}{hint} It takes: {', '.join(known)}"


class Brief:
    """A ``repr`` of the dataclass fields that differ from their defaults, long values shortened."""

    __slots__ = ()

    def __repr__(self) -> str:
        fields = self.__dataclass_fields__  # type: ignore[attr-defined]
        values = [(name, getattr(self, name), field.default) for name, field in fields.items()]
        said = [f"{name}={shown(value)}" for name, value, default in values if value is not default]
        return f"{type(self).__name__}({', '.join(said)})"


# ------------------------------------------------------------------ questions


# A JSON value that the model reads: text as it is, an object or an array in its canonical form (docs/DECISIONS.md).
Text: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
# How the options of a question are shown: "given" and "sorted" once, a number or "all" in so many cyclic shifts.
Orders: TypeAlias = Literal["given", "sorted", "all"] | int | range


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Noul(Brief):
    """Is it true? ``answer.probability`` is the probability of yes. ``criteria`` may say when the answer is "true"
    and when it is "false"; ``question`` may be left out if one of them is there."""

    question: Text | None = None
    criteria: Mapping[str, Text | None] | None = None


YesNo = Noul  # the same type by its plain name


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Choice(Brief):
    """Which of ``labels``? Labels may have any number of tokens and share prefixes. A mapping gives each label a
    description, or ``None``. The model answers with a label, never with a description."""

    question: Text | None
    labels: Sequence[str] | Mapping[str, Text | None]


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Score(Brief):
    """Which level? ``levels`` is a number from 2 to 10 (levels 1 to ``levels``), or a description of each level,
    lowest first (levels 0 to n - 1). ``answer.expected`` is the mean level."""

    question: Text | None
    levels: int | Sequence[Text] = 5


class VectorQuestion(Protocol):
    """A head on the vector that ``embed`` gives: ``FittedQuestion`` (``prelude/fitting``)."""

    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def prompt_name(self) -> str | None: ...
    @property
    def pooling(self) -> str | None: ...


Question: TypeAlias = Noul | Choice | Score | VectorQuestion
Questions: TypeAlias = Sequence[Question] | Mapping[str, Question]

# ------------------------------------------------------------------ tasks

R = TypeVar("R", covariant=True)
NOT_OF_THE_VERB = {"verb": False}
"""Metadata of a field that the task has and its verb has not."""


class TaskOf(Brief, Generic[R]):
    """A task whose result is an ``R``. ``prepared_by`` is "module:name" of the function ``prepare(ctx, scope, task)``
    that makes a request of it (``prelude/admission``); "" if no engine takes such a task by itself."""

    __slots__ = ()
    prepared_by: ClassVar[str] = ""


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class SamplingParams(Brief):
    """How ``Generate`` draws tokens, and where the text ends.

    ``max_tokens`` counts output tokens; 0 and 1 need a single pass. ``temperature`` 0 is greedy (the smallest id
    among ties). ``top_k`` 0, ``top_p`` 1, ``min_p`` 0, ``repetition_penalty`` 1 and the other penalties at 0 are off.
    ``seed=None`` takes a fresh one. The operations on the logits, in this order (formulas: ``readouts/draw.py``):

        ``repetition_penalty`` (prompt and output), ``frequency_penalty`` and ``presence_penalty`` (output),
        ``logit_bias`` {token id: added logit}, ``allowed_token_ids``, ``allowed_tokens_fn`` and ``banned_token_ids``,
        ``temperature``, ``top_k``, ``top_p``, ``min_p``

    The text ends with a token of the model's end-of-sequence set (unless ``ignore_eos``), with one of
    ``stop_token_ids``, or where a ``stop`` string is complete, wherever the token boundaries fall: the first place
    where one is, and the longest of those that end there. The stop string is cut off, unless ``include_stop``. None
    of these is looked for before ``min_tokens`` tokens, and the ids cannot be drawn before.

    ``allowed_tokens_fn(output)`` is called before each token with the ids drawn so far, a list of int. It returns the
    ids that may come next, or ``None`` for all. An array of int32 is taken fastest, and a list of the same objects as
    the list before. The first call comes while the task is prepared, and its errors are raised there. Later calls
    are made in the thread that runs the engine's steps: every request waits for them. All calls see the context
    variables of the request's caller. An error of a later call fails its own request with ``ExecutionError``, and so
    does a choice that leaves no token. Ctrl-C in the main thread ends the synchronous call that takes the step, too.

    ``logprobs=k``: with each output token its logprob and the ``k`` best, under the model's own distribution (before
    any of the settings above). ``prompt_logprobs=k`` is for ``max_tokens=0``: of the prompt, instead of text.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    allowed_tokens_fn: AllowedTokens | None = None
    banned_token_ids: Sequence[int] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Decide(TaskOf[Answers]):
    """Every question about one state, in one forward pass: the state is computed once.

    ``length_norm``: "none" compares joint logprobs, "token" divides by the number of tokens, "unconditional"
    subtracts the logprob of the label without the state.

    ``mass=False``: the labels are compared with each other alone. If every label of every question is one token
    the LM head is then read for the labels only, and not for the whole vocabulary; ``answer.mass`` is NaN, and
    ``answer.logprobs`` are the logarithms of ``answer.probabilities``, which are the same either way.

    ``questions`` may be a mapping: its keys name the answers, and the model does not see them. ``state`` may be any
    JSON object or array.

    ``orders``: "given" shows the options as they are listed. "sorted" shows them in one fixed order, and a number or
    "all" in so many cyclic shifts of it, whose logprobs are averaged: then the listed order changes no bit of an
    answer. A shift costs the tokens of its options and labels.
    """

    state: Prompt | Text
    questions: Questions
    length_norm: LengthNorm = "none"
    template: Any = None  # a DecisionTemplate; None takes the model's
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None
    mass: bool = True
    orders: Orders = "given"


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Classify(TaskOf[Classification]):
    """Logits of the model's own classification head, read where it was trained: at the last token, and of encoders
    at the first one or at the mean of all.

    ``prompt`` may be a pair of texts, a tuple such as ``(query, passage)``: they are joined as the model's tokenizer
    joins pairs, with the token types that it gives them. Truncation cuts the longer text first, as the tokenizer's
    own does. ``instruction``, ``prompt_name`` and the longest text are as in ``Embed``; a prompt stands before the
    first text of a pair.

    ``activation``: "default" follows the model directory, as transformers' text-classification pipeline does: the
    activation that ``config.json`` names for sentence-transformers, else by ``problem_type`` none for regression and
    a sigmoid for many labels at once, else a sigmoid for one label and a softmax for several.

    ``skip_pad``: the token that is read is the last one that is not the model's pad token, as in transformers; it
    tells where a text ends in the pad token, which some models use as end of text. False reads the last token.
    """

    prepared_by = "prelude.admission.pooled:prepare_classify"

    prompt: Prompt | Pair
    activation: Activation = "default"
    skip_pad: bool = True
    instruction: str | None = None
    prompt_name: str | None = None
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class ClassifyTokens(TaskOf[TokenClassification]):
    """Logits of a ``…ForTokenClassification`` head for every token of ``prompt``, its special tokens among them, or
    for each token that is ``at``: the text of one token, such as the one that a process-reward model reads behind
    each step. ``activation``: as in ``Classify``."""

    prepared_by = "prelude.admission.pooled:prepare_classify_tokens"

    prompt: Prompt
    at: str | None = None
    activation: Activation = "default"
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Embed(TaskOf[Embedding]):
    """One vector. ``pooling`` must be named if the model directory does not say it; several poolings give their
    vectors one behind the other. ``dimensions`` cuts the vector before it is normalised, by default to the
    directory's ``truncate_dim``. With ``normalize=None`` the directory's modules alone say whether it is normalised,
    and it is cut behind them, as sentence-transformers does. ``instruction`` is put before the text as it stands, or
    ``prompt_name`` names one of the prompts of ``config_sentence_transformers.json`` for that; None takes the
    directory's default for text, "" none at all. The longest text is the directory's ``max_seq_length`` or
    ``model_max_length``."""

    prepared_by = "prelude.admission.pooled:prepare_embed"

    prompt: Prompt
    pooling: Pooling | Sequence[Pooling] | None = None
    dimensions: int | None = None
    normalize: bool | None = True
    instruction: str | None = None
    prompt_name: str | None = None
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Loglikelihood(TaskOf[LoglikelihoodResult]):
    """How likely is ``continuation`` after ``context``? Tokenised apart: the boundary is a token boundary."""

    prepared_by = "prelude.admission.logprobs:prepare_loglikelihood"

    context: Prompt
    continuation: Continuation
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class PromptLogprobs(TaskOf[PromptLogprobsResult]):
    """Logprob, rank and ``top`` alternatives of every token of the prompt, or of its ``last`` ones."""

    prepared_by = "prelude.admission.logprobs:prepare_prompt_logprobs"

    prompt: Prompt
    top: int = 5
    last: int | None = None
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Generate(TaskOf[Completion]):
    """Text after ``prompt``."""

    prepared_by = "prelude.admission.generate:prepare_generate"
    GROUP: ClassVar = ("params", SamplingParams)

    prompt: Prompt
    params: SamplingParams = SamplingParams()
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Rerank(TaskOf[RerankResult]):
    """How well does ``document`` answer ``query``?

    A cross-encoder (an encoder with a head of one label) reads the two texts as a pair. A decoder reads the text of
    a recipe: that of the model directory, in sentence-transformers' files or in ``recipe.json``, or else that of
    ``recipe``, a name such as "qwen3-reranker" or a ``RerankRecipe``. ``RecipeError`` if there is none.

    ``instruction`` takes the place of the recipe's own; a cross-encoder reads it directly before the query.
    ``prompt_name`` takes a prompt of the model directory as the instruction; by default that is the directory's
    default one, if it has one, and "" is none. ``activation``: "default" is the recipe's, or the model
    directory's for a cross-encoder; "none" gives the raw score. Truncation cuts a decoder's document alone, and the
    longer text of a cross-encoder first. The longest text is as in ``Embed``.
    """

    prepared_by = "prelude.admission.rerank:prepare_rerank"

    query: str
    document: str
    instruction: str | None = None
    prompt_name: str | None = None
    recipe: Any = None  # a name, or a RerankRecipe; None takes the model's
    activation: Activation = "default"
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Reward(TaskOf[RewardResult]):
    """The score that a reward model (a decoder with a head of one label) gives to a conversation.

    ``prompt`` are the messages, the assistant's last. They are rendered with the model's chat template without a
    generation prompt. ``activation``: "default" is none, since a reward is a raw logit that is compared with others.
    ``skip_pad``: as in ``Classify``.
    """

    prepared_by = "prelude.admission.pooled:prepare_reward"

    prompt: Sequence[Message]
    activation: Activation = "default"
    skip_pad: bool = True
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


@strict_keywords
@dataclass(frozen=True, slots=True, repr=False)
class Guard(TaskOf[GuardAnswer]):
    """One field of a guard model's answer about a conversation, scored in one forward pass instead of written.

    ``prompt`` are the messages; the last one is judged. The recipe is the model directory's own (its
    ``recipe.json``, or a known policy in its chat template), or the one that ``recipe`` names; ``RecipeError`` if
    there is none. ``given`` has the answers of the fields before, field by label: ``{}`` asks for the first. For a
    field that may have several labels a list has the labels so far and asks for the next one; "" at its end
    marks the list as complete.
    """

    prepared_by = "prelude.admission.guard:prepare_guard"

    prompt: Sequence[Message]
    given: Mapping[str, str | Sequence[str]] | None = field(default=None, metadata=NOT_OF_THE_VERB)
    recipe: Any = None  # a name, or a GuardRecipe; None takes the model's
    truncation: Truncation = "error"
    cache: CacheMode = "auto"
    salt: str | None = None


Task: TypeAlias = (
    Decide | Classify | ClassifyTokens | Embed | Loglikelihood | PromptLogprobs | Generate | Rerank | Reward | Guard
)
