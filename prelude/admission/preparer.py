"""Preparer: Task → Admitted, once per request, in any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from prelude._native.core import Alike
from prelude.admission.chat import ChatRenderer
from prelude.admission.classes import classify
from prelude.admission.decide import named, prepare_decides
from prelude.admission.decision import decision_of
from prelude.admission.facts import Facts, each_alone, make_facts
from prelude.admission.generate import prepare_generates
from prelude.admission.guard import prepare_guard
from prelude.admission.logprobs import prepare_loglikelihood, prepare_prompt_logprobs
from prelude.admission.marked import prepare_marked
from prelude.admission.pooled import prepare_classify, prepare_embed, prepare_reward
from prelude.admission.prepared import Admitted, Notes
from prelude.admission.rerank import prepare_rerank
from prelude.admission.snapshot import PROMPT_FIELDS, snapshot
from prelude.admission.template import CHAT_TEMPLATE, DecisionTemplate
from prelude.admission.tokenization import Encoder, TokenizerLike, Use
from prelude.config import EngineConfig
from prelude.embedding import EmbeddingSettings
from prelude.errors import InvalidRequest, shown
from prelude.execution.executor import ExecutorLimits
from prelude.marking import MarkerSettings
from prelude.recipes import ModelRecipes
from prelude.results import Explanation
from prelude.tasks import (
    Classify,
    Decide,
    Embed,
    Generate,
    Guard,
    Loglikelihood,
    PromptLogprobs,
    Rerank,
    Reward,
    Task,
)

if TYPE_CHECKING:
    from prelude.tokenizer.template_process import TemplateProcess

T = TypeVar("T")
_NO_SETTINGS = EmbeddingSettings()
_NO_RECIPES = ModelRecipes()
_NOTHING_MORE = Notes()
_ALIKE = {kind: Alike(kind) for kind in (Decide, Generate)}
_NOTHING_READ = "nothing: the prompt is computed for the prefix cache alone"


class Preparer:
    """Checks a task, tokenises it and says what is read. Thread-safe; the same task gives the same ``Prepared`` but
    for ``tokenize_ms`` and a seed that was not given.

    ``template`` is the model's own; without one a model with a chat template gets the built-in chat wording, and
    others the plain one. ``chat`` renders messages; ``None`` where the model has no chat template. ``decision_chat``
    renders the turn around a decision where that is another way to call the template (without room for thoughts).
    ``template_process`` is the process that both of them use; the preparer owns it, and ``close`` ends it.
    """

    def __init__(
        self,
        tokenizer: TokenizerLike,
        limits: ExecutorLimits,
        config: EngineConfig,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        labels: Sequence[str] = (),
        activation: str | None = None,
        pad_id: int | None = None,
        embedding: EmbeddingSettings = _NO_SETTINGS,
        template: DecisionTemplate | None = None,
        recipes: ModelRecipes = _NO_RECIPES,
        chat: ChatRenderer | None = None,
        decision_chat: ChatRenderer | None = None,
        template_process: TemplateProcess | None = None,
        markers: MarkerSettings | None = None,
    ) -> None:
        self._template_process = template_process
        if template is None:
            template = CHAT_TEMPLATE if chat is not None else DecisionTemplate()
        self._facts = make_facts(
            Encoder(tokenizer, limits.vocab_size),
            limits,
            config,
            {
                "eos_ids": frozenset(eos_ids),
                "bos_id": bos_id,
                "labels": tuple(labels),
                "activation": activation,
                "pad_id": pad_id,
                "embedding": embedding,
                "template": template,
                "recipes": recipes,
                "chat": chat,
                "decision_chat": decision_chat or chat,
                "markers": markers,
            },
        )

    @property
    def tokenizer_calls(self) -> int:
        """Encode calls since loading."""
        return self._facts.encoder.calls

    @property
    def decode_states(self) -> dict[str, int]:
        """Texts that are being read along: how many there are, and how many there have been."""
        texts = self._facts.texts
        return {"decode_states_live": texts.live, "streaming_objects_created": texts.created}

    @property
    def prepare_threads(self) -> int:
        return self._facts.config.prepare_threads

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def tokenizer(self) -> TokenizerLike:
        return self._facts.encoder.tokenizer

    @property
    def max_length(self) -> int:
        """Tokens one sequence may hold, prompt and output together."""
        return self._facts.max_length

    def close(self) -> None:
        """Ends the process of the chat template where there is one. Any number of times, from any thread."""
        if self._template_process is not None:
            self._template_process.close()

    def may_wait(self, task: Any) -> bool:
        """Whether preparing ``task`` asks another process, which an event loop must not wait for."""
        if self._template_process is None:
            return False
        if isinstance(task, Decide):  # its messages are a transcript; the frame around it is rendered once
            return not self._facts.frames
        if isinstance(task, Rerank):  # as sentence-transformers writes it: through the chat template
            recipe = self._facts.recipes.rerank
            return recipe is not None and not recipe.parts
        prompts = (getattr(task, name, None) for name in PROMPT_FIELDS)
        return any(isinstance(one, list | tuple) and one and isinstance(one[0], Mapping) for one in prompts)

    def snapshot(self, task: T) -> T:
        """A copy of what the caller could still change; cheap, for the caller's own thread."""
        return snapshot(task)

    def prepare(self, task: Task) -> Admitted:
        """Raises ``InvalidRequest`` (or a subclass) for anything the caller has to change, and nothing else."""
        [found] = self.prepare_all([task])
        if isinstance(found, Exception):
            raise found
        return found

    def prepare_all(self, tasks: Iterable[Any]) -> list[Admitted | Exception]:
        """``prepare`` of each; what one raises is in its place. Neighbours that differ in their prompt alone are
        prepared together."""
        given = tasks if type(tasks) is list else list(tasks)
        found: list[Admitted | Exception] = []
        at = 0
        while at < len(given):
            alike = _ALIKE.get(type(given[at]))
            end = at + 1 if alike is None else alike.end(given, at)
            found += self._prepare_run(given[at:end])
            at = end
        return found

    def _prepare_run(self, tasks: list[Any]) -> list[Admitted | Exception]:
        """Of tasks that differ in their prompt alone."""
        facts, task = self._facts, tasks[0]
        use = Use(facts.encoder, facts.config.default_cache, task)
        try:
            if isinstance(task, Decide) and facts.markers is not None:
                return each_alone(facts, partial(prepare_marked, facts.markers), tasks)
            if isinstance(task, Decide):
                return prepare_decides(facts, use, tasks)
            if isinstance(task, Generate):
                return prepare_generates(facts, tasks)
            return [self._prepare_alone(use, task)[0]]
        except Exception as error:  # wrong with all of them; each has an error of its own
            return [error, *(found for one in tasks[1:] for found in self._prepare_run([one]))]
        finally:
            use.close()

    def _prepare_alone(self, use: Use, task: Task) -> tuple[Admitted, Notes]:
        facts = self._facts
        match task:
            case Embed():
                return prepare_embed(facts, use, task), _NOTHING_MORE
            case Classify():
                return prepare_classify(facts, use, task)
            case Loglikelihood():
                return prepare_loglikelihood(facts, use, task), _NOTHING_MORE
            case PromptLogprobs():
                return prepare_prompt_logprobs(facts, use, task), _NOTHING_MORE
            case Rerank():
                return prepare_rerank(facts, use, task)
            case Reward():
                return prepare_reward(facts, use, task)
            case Guard():
                return prepare_guard(facts, use, task)
            case _:
                raise InvalidRequest(f"{shown(task)} is not a task", field="task")

    def explain(self, task: Task) -> Explanation:
        """What ``prepare`` would hand to the engine, in words."""
        use = Use(self._facts.encoder, self._facts.config.default_cache, task)
        try:
            if isinstance(task, Decide | Generate):
                ready, notes = self.prepare(task), _NOTHING_MORE
            else:
                ready, notes = self._prepare_alone(use, task)
            labels = (notes.labels,) * bool(notes.labels)
            if isinstance(task, Decide) and self._facts.markers is None:
                labels = self._labels(use, task)
        finally:
            use.close()
        prepared = ready.prepared
        tree = prepared.tree
        readout = prepared.readout
        return Explanation(
            text=self._facts.encoder.tokenizer.decode(tree.token_ids.tolist(), skip_special_tokens=False),
            token_ids=tree.token_ids,
            segments=tuple(zip(tree.starts[:-1].tolist(), tree.starts[1:].tolist(), tree.parents.tolist())),
            rows=prepared.rows,
            readout=_NOTHING_READ if readout is None else readout.describe(),
            labels=labels,
            execution_class=classify(prepared).value,
            truncated_tokens=prepared.truncated_tokens,
            recipe=notes.recipe,
            activation=notes.activation,
        )

    def _labels(self, use: Use, task: Decide) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]:
        """Of each question of a decision, its labels with their ids."""
        plans = decision_of(self._facts, use, task, named(task.questions)[0]).plans
        return tuple([tuple(zip(plan.labels, plan.label_ids)) for plan in plans])
