"""Preparer: Task → Admitted, once per request, in any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from prelude.admission.chat import ChatRenderer
from prelude.admission.classes import classify
from prelude.admission.decide import Layout, prepare_decide
from prelude.admission.facts import Facts, make_facts
from prelude.admission.generate import prepare_generate
from prelude.admission.guard import prepare_guard
from prelude.admission.logprobs import prepare_loglikelihood, prepare_prompt_logprobs
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
        return self._prepare(task)[0]

    def prepare_all(self, tasks: Iterable[Any]) -> list[Admitted | Exception]:
        """``prepare`` of each; what one raises is in its place."""
        found: list[Admitted | Exception] = []
        for task in tasks:
            try:
                found.append(self.prepare(task))
            except Exception as error:
                found.append(error)
        return found

    def explain(self, task: Task) -> Explanation:
        """What ``prepare`` would hand to the engine, in words."""
        ready, said = self._prepare(task)
        prepared = ready.prepared
        tree = prepared.tree
        readout = prepared.readout
        return Explanation(
            text=self._facts.encoder.tokenizer.decode(tree.token_ids.tolist(), skip_special_tokens=False),
            token_ids=tree.token_ids,
            segments=tuple(zip(tree.starts[:-1].tolist(), tree.starts[1:].tolist(), tree.parents.tolist())),
            rows=prepared.rows,
            readout=_NOTHING_READ if readout is None else readout.describe(),
            labels=tuple(tuple(zip(plan.labels, plan.label_ids)) for plan in said.plans)
            if isinstance(said, Layout)
            else (said.labels,) * bool(said.labels),
            execution_class=classify(prepared).value,
            truncated_tokens=prepared.truncated_tokens,
            recipe=None if isinstance(said, Layout) else said.recipe,
            activation=None if isinstance(said, Layout) else said.activation,
        )

    def _prepare(self, task: Task) -> tuple[Admitted, Layout | Notes]:
        facts, use = self._facts, Use(self._facts.encoder, self._facts.config.default_cache, task)
        try:
            match task:
                case Decide():
                    return prepare_decide(facts, use, task)
                case Embed():
                    return prepare_embed(facts, use, task), _NOTHING_MORE
                case Classify():
                    return prepare_classify(facts, use, task)
                case Loglikelihood():
                    return prepare_loglikelihood(facts, use, task), _NOTHING_MORE
                case PromptLogprobs():
                    return prepare_prompt_logprobs(facts, use, task), _NOTHING_MORE
                case Generate():
                    return prepare_generate(facts, use, task), _NOTHING_MORE
                case Rerank():
                    return prepare_rerank(facts, use, task)
                case Reward():
                    return prepare_reward(facts, use, task)
                case Guard():
                    return prepare_guard(facts, use, task)
                case _:
                    raise InvalidRequest(f"{shown(task)} is not a task", field="task")
        finally:
            use.close()
