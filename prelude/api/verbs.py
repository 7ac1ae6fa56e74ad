"""The verbs of both engines: each is declared once, in ``Verbs``, which makes its task.

    Verbs.decide(...)       -> Ask: a task, or the steps of several tasks, and the options of the requests
    Engine.decide(...)      runs it and returns the result
    AsyncEngine.decide(...) is a coroutine of the same result

A verb takes the fields of its task and of ``RequestOptions`` as keywords. Type checkers and editors read them here;
``_with_signature`` shows the same to ``help()`` and ``inspect``, with the defaults of the task.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, cast

from prelude.admission.decide import mixes_fitted
from prelude.api.base import ModelProperties
from prelude.api.compound import Steps, decide_steps, guard_steps, rerank_steps
from prelude.api.text_streams import TextStream
from prelude.errors import InvalidRequest, UnknownParameter
from prelude.records import dataclass
from prelude.results import (
    Answers,
    Classification,
    Completion,
    Embedding,
    GuardResult,
    LoglikelihoodResult,
    PromptLogprobsResult,
    Ranking,
    RewardResult,
    TokenClassification,
)
from prelude.tasks import (
    Activation,
    CacheMode,
    Classify,
    ClassifyTokens,
    Continuation,
    Decide,
    Embed,
    Generate,
    Guard,
    LengthNorm,
    Loglikelihood,
    Message,
    Orders,
    Pair,
    Pooling,
    Prompt,
    PromptLogprobs,
    Questions,
    R,
    Rerank,
    Reward,
    SamplingParams,
    TaskOf,
    Text,
    Truncation,
    unknown_keyword,
)
from prelude.values.options import RequestOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from prelude.admission.template import DecisionTemplate
    from prelude.api.async_streams import AsyncTextStream
    from prelude.recipes import GuardRecipe, RerankRecipe

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


class RequestKeywords(TypedDict, total=False):
    """The fields of ``RequestOptions``."""

    priority: int
    deadline: float | None
    request_id: str | None
    tenant: str | None
    trace: bool


class VerbKeywords(RequestKeywords, total=False):
    """The keywords of every verb."""

    truncation: Truncation
    cache: CacheMode
    salt: str | None


class DecideKeywords(VerbKeywords, total=False):
    length_norm: LengthNorm
    template: DecisionTemplate | None
    mass: bool
    orders: Orders


class ClassifyKeywords(VerbKeywords, total=False):
    activation: Activation
    skip_pad: bool
    instruction: str | None
    prompt_name: str | None


class ClassifyTokensKeywords(VerbKeywords, total=False):
    at: str | None
    activation: Activation


class EmbedKeywords(VerbKeywords, total=False):
    pooling: Pooling | Sequence[Pooling] | None
    dimensions: int | None
    normalize: bool | None
    instruction: str | None
    prompt_name: str | None


class PromptLogprobsKeywords(VerbKeywords, total=False):
    top: int
    last: int | None


class RerankKeywords(VerbKeywords, total=False):
    instruction: str | None
    prompt_name: str | None
    recipe: str | RerankRecipe | None
    activation: Activation


class RewardKeywords(VerbKeywords, total=False):
    activation: Activation
    skip_pad: bool


class GuardKeywords(VerbKeywords, total=False):
    recipe: str | GuardRecipe | None


_OPTIONS = tuple(field.name for field in dataclasses.fields(RequestOptions))


def split_options(keywords: Mapping[str, Any], task: type) -> tuple[dict[str, Any], RequestOptions | None]:
    """The task's own keywords, and the options of the request; ``UnknownParameter`` for a keyword of neither."""
    if not keywords:
        return {}, None
    own, options = dict(keywords), {}
    for name in _OPTIONS:
        if name in own:
            options[name] = own.pop(name)
    fields = task.__dataclass_fields__  # type: ignore[attr-defined]
    for name in own:
        if name not in fields or fields[name].metadata:
            raise UnknownParameter(unknown_keyword(task, name, [*fields, *_OPTIONS]), field=name)
    return own, RequestOptions(**options) if options else None


def _with_signature(verb: F, declared: Callable[..., Any], task: type, result: str = "") -> F:
    """Give ``verb`` the name and the documentation of its declaration, and its keywords in place of ``**keywords``:
    the fields of ``task`` that it does not name itself, and those of ``RequestOptions``, with their defaults."""
    update_wrapper(verb, declared)
    given = inspect.signature(declared)
    named = {name: one for name, one in given.parameters.items() if one.kind is not inspect.Parameter.VAR_KEYWORD}
    more = [one for one in keyword_parameters(task) if one.name not in named]
    parts = [inspect.getdoc(declared), f"Keywords, of ``{task.__name__}``:", inspect.getdoc(task)]
    verb.__doc__ = "\n\n".join([*filter(None, parts), "And of ``RequestOptions``:", RequestOptions.__doc__ or ""])
    returned = result or str(given.return_annotation).removeprefix("Ask[").removesuffix("]")
    shown = given.replace(parameters=[*named.values(), *more], return_annotation=returned)
    verb.__signature__, verb.declaration = shown, (declared, task)  # type: ignore[attr-defined]
    return verb


def keyword_parameters(task: type) -> Iterator[inspect.Parameter]:
    for owner in (task, RequestOptions):
        for field in dataclasses.fields(owner):
            if field.default is not dataclasses.MISSING and not field.metadata:
                kind = inspect.Parameter.KEYWORD_ONLY
                yield inspect.Parameter(field.name, kind, default=field.default, annotation=field.type)


# ------------------------------------------------------------------ from a declaration to a verb of each engine


@dataclass(frozen=True, slots=True)
class Ask(Generic[R]):
    """The work and the options of one call of a verb."""

    work: TaskOf[R] | Steps
    options: RequestOptions | None


@dataclass(frozen=True, slots=True)
class AskStream:
    task: Generate
    options: RequestOptions | None
    hold_words: bool


def ask(task: Callable[..., TaskOf[R]], keywords: Mapping[str, Any], *prompt: Any) -> Ask[R]:
    """Return the call of a verb that is one ``task``."""
    own, options = split_options(keywords, cast(type, task))
    return Ask(task(*prompt, **own), options)


def blocking(
    task: type,
) -> Callable[[Callable[Concatenate[Any, P], Ask[R]]], Callable[Concatenate[Any, P], R]]:
    """Return the verb of ``Engine`` from its declaration. ``task`` has its keywords."""

    def made(declared: Callable[Concatenate[Any, P], Ask[R]]) -> Callable[Concatenate[Any, P], R]:
        def verb(engine: Any, /, *args: P.args, **keywords: P.kwargs) -> Any:
            return engine._answer(declared(engine, *args, **keywords))

        return _with_signature(verb, declared, task)

    return made


def awaited(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return the verb of ``AsyncEngine``, from that of ``Engine``."""
    declared, task = verb.declaration  # type: ignore[attr-defined]

    async def twin(engine: Any, /, *args: P.args, **keywords: P.kwargs) -> Any:
        return await engine._answer(declared(engine, *args, **keywords))

    return _with_signature(twin, declared, task)


def streaming(declared: Callable[Concatenate[Any, P], AskStream]) -> Callable[Concatenate[Any, P], TextStream]:
    """Return the verb of ``Engine`` whose result comes in chunks."""
    return _streaming(declared, "TextStream")


def streaming_twin(
    verb: Callable[Concatenate[Any, P], TextStream],
) -> Callable[Concatenate[Any, P], AsyncTextStream]:
    """Return the verb of ``AsyncEngine``, from that of ``Engine``."""
    return _streaming(verb.declaration[0], "AsyncTextStream")  # type: ignore[attr-defined]


def _streaming(declared: Callable[Concatenate[Any, P], AskStream], result: str) -> Callable[Concatenate[Any, P], Any]:
    def verb(engine: Any, /, *args: P.args, **keywords: P.kwargs) -> Any:
        return engine._stream(declared(engine, *args, **keywords))

    return _with_signature(verb, declared, Generate, result)


# ------------------------------------------------------------------ the verbs


class Verbs(ModelProperties):
    """The verbs of ``Engine``. ``Engine._answer`` runs an ``Ask``, ``_stream`` begins a stream."""

    @blocking(Decide)
    def decide(self, state: Prompt | Text, questions: Questions, **keywords: Unpack[DecideKeywords]) -> Ask[Answers]:
        """Answers every question about ``state`` in one forward pass; the state is computed once. Fitted questions
        beside others are a second pass."""
        own, options = split_options(keywords, Decide)
        task = Decide(state, questions, **own)
        return Ask(decide_steps(self._model_parts, task) if mixes_fitted(questions) else task, options)

    @blocking(Classify)
    def classify(self, prompt: Prompt | Pair, **keywords: Unpack[ClassifyKeywords]) -> Ask[Classification]:
        """Label and scores of the model's own classification head."""
        return ask(Classify, keywords, prompt)

    @blocking(ClassifyTokens)
    def classify_tokens(self, prompt: Prompt, **keywords: Unpack[ClassifyTokensKeywords]) -> Ask[TokenClassification]:
        """Labels and scores of single tokens, by the model's token classification head."""
        return ask(ClassifyTokens, keywords, prompt)

    @blocking(Embed)
    def embed(self, prompt: Prompt, **keywords: Unpack[EmbedKeywords]) -> Ask[Embedding]:
        """Return a vector of ``prompt``, float32 ``[dimensions]``."""
        return ask(Embed, keywords, prompt)

    @blocking(Loglikelihood)
    def loglikelihood(
        self, context: Prompt, continuation: Continuation, **keywords: Unpack[VerbKeywords]
    ) -> Ask[LoglikelihoodResult]:
        """Total and per-token logprob of ``continuation`` after ``context``."""
        return ask(Loglikelihood, keywords, context, continuation)

    @blocking(Rerank)
    def rerank(
        self,
        query: str,
        documents: Iterable[Any],
        *,
        top_k: int | None = None,
        top_n: int | None = None,
        **keywords: Unpack[RerankKeywords],
    ) -> Ask[Ranking]:
        """``documents`` (texts, or mappings with a ``text``) by how well they answer ``query``, the best first;
        ``top_k`` or ``top_n`` of them, two names of one limit. They run together and share the query's tokens."""
        own, options = split_options(keywords, Rerank)
        return Ask(rerank_steps(query, documents, top_k, top_n, own), options)

    @blocking(Reward)
    def reward(self, messages: Sequence[Message], **keywords: Unpack[RewardKeywords]) -> Ask[RewardResult]:
        """Return a reward model's score of a conversation."""
        return ask(Reward, keywords, messages)

    @blocking(Guard)
    def guard(
        self, messages: Sequence[Message], *, detail: bool = False, **keywords: Unpack[GuardKeywords]
    ) -> Ask[GuardResult]:
        """A guard model's answer about the last message: one forward pass. ``detail`` reads the further fields that
        the model would write, such as categories, in a pass for each label and for the end of a list."""
        own, options = split_options(keywords, Guard)
        return Ask(guard_steps(self._model_parts, messages, detail, own), options)

    @blocking(PromptLogprobs)
    def prompt_logprobs(
        self, prompt: Prompt, **keywords: Unpack[PromptLogprobsKeywords]
    ) -> Ask[PromptLogprobsResult]:
        """Logprob, rank and the ``top`` alternatives of the prompt's tokens, or of its ``last`` ones."""
        return ask(PromptLogprobs, keywords, prompt)

    @blocking(Generate)
    def complete(
        self, prompt: Prompt, params: SamplingParams | None = None, **keywords: Unpack[VerbKeywords]
    ) -> Ask[Completion]:
        """Return the text after ``prompt``, when it is whole."""
        return ask(Generate, keywords, prompt, params or SamplingParams())

    @streaming
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        hold_words: bool = False,
        **keywords: Unpack[VerbKeywords],
    ) -> AskStream:
        """``for chunk in engine.generate(...)``, or ``async for`` on ``AsyncEngine``: the text after ``prompt`` as it
        comes.

        All chunks' ``text`` is that of ``complete``; the last chunk, and no other, has ``finish_reason`` and
        ``stats``. ``hold_words`` ends chunks between words if it can. Leaving the loop early cancels the request.
        """
        own, options = split_options(keywords, Generate)
        params = params or SamplingParams()
        if getattr(params, "prompt_logprobs", None) is not None:
            raise InvalidRequest("a stream has no place for them; use complete()", field="params.prompt_logprobs")
        return AskStream(Generate(prompt, params, **own), options, hold_words)

    stream = generate  # its name before AsyncEngine's was taken over


class AsyncVerbs(ModelProperties):
    """The same verbs of ``AsyncEngine``."""

    decide = awaited(Verbs.decide)
    classify = awaited(Verbs.classify)
    classify_tokens = awaited(Verbs.classify_tokens)
    embed = awaited(Verbs.embed)
    loglikelihood = awaited(Verbs.loglikelihood)
    rerank = awaited(Verbs.rerank)
    reward = awaited(Verbs.reward)
    guard = awaited(Verbs.guard)
    prompt_logprobs = awaited(Verbs.prompt_logprobs)
    complete = awaited(Verbs.complete)
    generate = streaming_twin(Verbs.generate)
