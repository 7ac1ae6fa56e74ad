"""Engine: the synchronous engine. An idle one runs its caller's steps in the caller's own thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prelude.base import EngineBase
from prelude.call import Options, make_calls, mark_all
from prelude.calls import finish_all, first_error, make_requests, task_list
from prelude.compound import Remaining, Steps, guard_steps, rerank_steps
from prelude.config import EngineConfig
from prelude.errors import InvalidRequest
from prelude.options import RequestOptions
from prelude.progress import Advance, Progress
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
)
from prelude.runtime.delivery import BlockingSink
from prelude.scheduling.request import Request
from prelude.streams import TextStream
from prelude.tasks import (
    Classify,
    Continuation,
    Decide,
    Embed,
    Generate,
    Guard,
    Loglikelihood,
    Message,
    Pair,
    Prompt,
    PromptLogprobs,
    Questions,
    R,
    Rerank,
    Reward,
    SamplingParams,
    TaskOf,
    Text,
)
from prelude.verbs import (
    ClassifyKeywords,
    DecideKeywords,
    EmbedKeywords,
    GuardKeywords,
    PromptLogprobsKeywords,
    RequestKeywords,
    RerankKeywords,
    RewardKeywords,
    VerbKeywords,
    split_options,
    with_signature,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


def stream_task(
    prompt: Prompt, params: SamplingParams | None, keywords: Mapping[str, Any]
) -> tuple[Generate, RequestOptions | None]:
    own, options = split_options(keywords, Generate)
    params = params or SamplingParams()
    if getattr(params, "prompt_logprobs", None) is not None:
        raise InvalidRequest("a stream has no place for them; use complete()", field="params.prompt_logprobs")
    return Generate(prompt, params, **own), options


class Engine(EngineBase):
    """The synchronous engine. Any number of threads may call it; an idle engine runs the caller's step in the
    caller's own thread."""

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        config: EngineConfig | None = None,
        revision: str | None = None,
        follow_links: bool = False,
    ) -> Engine:
        """Loads a model directory or a hub name; ``None`` is the model that ships with the package.

        ``model``: a path, or a hub name, which has the form ``org/name``. ``revision``: commit, tag or branch of a
        hub name; with it ``model`` is a hub name whatever there is on the disk. ``follow_links``: symbolic links in
        the directory may lead out of it; set it for directories whose links you made yourself.

        Raises ``ModelError`` (bad directory, unsupported feature, not enough memory) or ``ConfigError``.
        """
        from prelude.loading import load

        parts = load(
            model,
            device=device,
            dtype=dtype,
            config=config or EngineConfig(),
            revision=revision,
            follow_links=follow_links,
        )
        return cls(parts.core, parts.preparer, parts.path)

    def run(self, task: TaskOf[R], options: RequestOptions | None = None, **keywords: Unpack[RequestKeywords]) -> R:
        """Runs one task. The result's type follows the task's. ``options``, or its fields as keywords (``priority``,
        ``deadline``, ``request_id``, ``tenant``, ``trace``), speak of this one request."""
        result: R = self.run_many([task], options, **keywords)[0]
        return result

    def run_many(
        self,
        tasks: Sequence[TaskOf[Any]],
        options: Options = None,
        *,
        return_exceptions: bool = False,
        progress: bool | Advance | None = None,
        **keywords: Unpack[RequestKeywords],
    ) -> list[Any]:
        """Runs tasks together; results in the order of ``tasks``. A bad task fails alone: its error is in its place
        with ``return_exceptions``, else it is raised when the others have ended, with ``tasks[i]`` before its
        message. ``options`` is one for all, or one each. ``progress(done, total)`` is called in this thread as tasks
        end; True shows a tqdm bar."""
        tasks = task_list(tasks)
        with Progress(progress, len(tasks)) as told:
            return first_error(self._run_all(tasks, options, keywords, told), return_exceptions)

    def _run_all(
        self, tasks: Sequence[Any], options: Options, keywords: Mapping[str, Any], progress: Progress
    ) -> list[Any]:
        """``run_many`` with errors as results."""
        core = self._core
        calls = make_calls(len(tasks), options, keywords)
        mark_all(calls, "prompt")
        sink = BlockingSink(progress or None)
        with core.reserve(len(tasks)) as places:
            room = places.left
            mark_all(calls, "accept")
            admitted = self._preparer.prepare_all(tasks[:room])
            admitted.extend([core.inbox.full() for _ in calls[room:]])
            mark_all(calls, "tokenise")
            requests = make_requests(core, admitted, calls, sink, places)
            live = [request for request in requests if isinstance(request, Request)]
            sink.expected = len(live)
            progress.advance(len(tasks) - len(live))
            if live:
                try:
                    core.run_inline(live, places)
                    sink.wait()
                except BaseException:  # Ctrl-C: the caller does not wait for these any more
                    for one in live:
                        core.cancel(one)
                    raise
        return finish_all(admitted, calls, requests, sink.ends)

    def _steps(self, steps: Steps, options: RequestOptions | None) -> Any:
        """What a verb of several tasks returns."""
        remaining = Remaining(options)
        try:
            tasks = next(steps)
            while True:
                tasks = steps.send(self.run_many(tasks, remaining.now()))
        except StopIteration as end:
            return end.value

    @with_signature(Decide)
    def decide(self, state: Prompt | Text, questions: Questions, **keywords: Unpack[DecideKeywords]) -> Answers:
        """Answers every question about ``state`` in one forward pass; the state is computed once."""
        own, options = split_options(keywords, Decide)
        return self.run(Decide(state, questions, **own), options)

    @with_signature(Classify)
    def classify(self, prompt: Prompt | Pair, **keywords: Unpack[ClassifyKeywords]) -> Classification:
        """Label and scores of the model's own classification head."""
        own, options = split_options(keywords, Classify)
        return self.run(Classify(prompt, **own), options)

    @with_signature(Embed)
    def embed(self, prompt: Prompt, **keywords: Unpack[EmbedKeywords]) -> Embedding:
        """A vector of ``prompt``, float32 ``[dimensions]``."""
        own, options = split_options(keywords, Embed)
        return self.run(Embed(prompt, **own), options)

    @with_signature(Loglikelihood)
    def loglikelihood(
        self, context: Prompt, continuation: Continuation, **keywords: Unpack[VerbKeywords]
    ) -> LoglikelihoodResult:
        """Total and per-token logprob of ``continuation`` after ``context``."""
        own, options = split_options(keywords, Loglikelihood)
        return self.run(Loglikelihood(context, continuation, **own), options)

    @with_signature(Rerank)
    def rerank(
        self,
        query: str,
        documents: Iterable[Any],
        *,
        top_k: int | None = None,
        top_n: int | None = None,
        **keywords: Unpack[RerankKeywords],
    ) -> Ranking:
        """``documents`` (texts, or mappings with a ``text``) by how well they answer ``query``, the best first;
        ``top_k`` or ``top_n`` of them, two names of one limit. They run together and share the query's tokens."""
        own, options = split_options(keywords, Rerank)
        steps = rerank_steps(query, documents, top_k, top_n, own)
        ranking: Ranking = self._steps(steps, options)
        return ranking

    @with_signature(Reward)
    def reward(self, messages: Sequence[Message], **keywords: Unpack[RewardKeywords]) -> RewardResult:
        """A reward model's score of a conversation."""
        own, options = split_options(keywords, Reward)
        return self.run(Reward(messages, **own), options)

    @with_signature(Guard)
    def guard(
        self, messages: Sequence[Message], *, detail: bool = False, **keywords: Unpack[GuardKeywords]
    ) -> GuardResult:
        """A guard model's answer about the last message: one forward pass. ``detail`` reads the further fields that
        the model would write, such as categories, in a pass each."""
        own, options = split_options(keywords, Guard)
        result: GuardResult = self._steps(guard_steps(self._facts_of()[0], messages, detail, own), options)
        return result

    @with_signature(PromptLogprobs)
    def prompt_logprobs(self, prompt: Prompt, **keywords: Unpack[PromptLogprobsKeywords]) -> PromptLogprobsResult:
        """Logprob, rank and the ``top`` alternatives of the prompt's tokens, or of its ``last`` ones."""
        own, options = split_options(keywords, PromptLogprobs)
        return self.run(PromptLogprobs(prompt, **own), options)

    @with_signature(Generate)
    def complete(
        self, prompt: Prompt, params: SamplingParams | None = None, **keywords: Unpack[VerbKeywords]
    ) -> Completion:
        """The text after ``prompt``, when it is whole."""
        own, options = split_options(keywords, Generate)
        return self.run(Generate(prompt, params or SamplingParams(), **own), options)

    @with_signature(Generate)
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        hold_words: bool = False,
        **keywords: Unpack[VerbKeywords],
    ) -> TextStream:
        """``for chunk in engine.generate(...)``: the text after ``prompt`` as it comes.

        All chunks' ``text`` is that of ``complete``; the last chunk, and no other, has ``finish_reason`` and
        ``stats``. ``hold_words`` ends chunks between words where it can. Leaving the loop early cancels the request.
        """
        task, options = stream_task(prompt, params, keywords)
        [call] = make_calls(1, options, {})
        call.mark("prompt")
        with self._core.reserve(1) as places:
            if not places.left:
                raise self._core.inbox.full()
            call.mark("accept")
            admitted = self._preparer.prepare(task)
            call.mark("tokenise")
        return TextStream(self._core, admitted, hold_words, call)

    stream = generate  # its name before AsyncEngine's was taken over

    def close(self, *, drain: bool = True) -> None:
        """Waits for what was submitted (or fails it with ``drain=False``) and gives everything back. Idempotent."""
        try:
            self._core.close(drain=drain)
        finally:
            self._preparer.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
