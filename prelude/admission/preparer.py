"""Preparer: Task → Admitted, once per request, in any thread.

The function of a task's kind chooses tokens, readout and result. The rest is the same for all kinds and done here:
the cache mode, the tenant's salt, and the check that the model has the head that is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

from prelude.admission.chat import ChatRenderer
from prelude.admission.context import CHARS_PER_TOKEN, AdmissionContext, no_lm_head, served
from prelude.admission.decide import asks_fitted, decision_of, named, prepare_decide
from prelude.admission.fitted import prepare_fitted
from prelude.admission.heads import prepare_marked, prepare_masked
from prelude.admission.prepared import Admitted, Parts, Prepared, classify
from prelude.admission.snapshot import snapshot
from prelude.admission.template import CHAT_TEMPLATE, DecisionTemplate
from prelude.admission.tokenization import Encoder, TokenizationScope
from prelude.errors import InvalidRequest, shown
from prelude.execution.executor import ExecutorLimits
from prelude.results import Explanation
from prelude.streaming.detokenize import Texts
from prelude.tasks import CacheMode, Decide, Task, TaskOf
from prelude.values import validation
from prelude.values.config import EngineConfig

if TYPE_CHECKING:
    from prelude.tokenizer import Tokenizer

T = TypeVar("T")
_CACHE_MODES = get_args(CacheMode)
_NOTHING_READ = "nothing: the prompt is computed for the prefix cache alone"

Prepare: TypeAlias = Callable[[AdmissionContext, TokenizationScope, Any], Parts]


@lru_cache
def prepare_function(kind: type) -> Prepare | None:
    """Return the function that a task of this type names in ``prepared_by``; None for a type that names none."""
    module, _, name = (kind.prepared_by if issubclass(kind, TaskOf) else "").partition(":")
    found: Prepare | None = getattr(import_module(module), name) if module else None
    return found


class Preparer:
    """Checks a task, tokenises it and chooses its readout. Thread-safe; the same task gives the same ``Prepared`` but
    for ``tokenize_ms`` and a seed that was not given."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: ExecutorLimits,
        config: EngineConfig,
        *,
        template: DecisionTemplate | None = None,
        chat: ChatRenderer | None = None,
        **known: Any,
    ) -> None:
        """``template`` is the model's own; without one a model with a chat template gets the built-in chat wording,
        and others the plain one. ``known``: further fields of ``AdmissionContext``."""
        if template is None:
            template = CHAT_TEMPLATE if chat is not None else DecisionTemplate()
        longest = config.resolved_length(limits.max_positions)
        self.context = AdmissionContext(
            Encoder(tokenizer, limits.vocab_size, config.expert.question_plan_bytes),
            Texts(tokenizer),
            limits,
            config,
            longest,
            config.oneshot_tokens(limits.max_positions),
            config.expert.max_prompt_chars or CHARS_PER_TOKEN * longest,
            template=template,
            chat=chat,
            **known,
        )
        options = self.context.options
        self._prepare_decide: Prepare = prepare_masked if limits.masked_lm else prepare_decide
        if options is not None:
            self._prepare_decide = partial(prepare_marked, options)

    @property
    def tokenizer_calls(self) -> int:
        """Encode calls since loading."""
        return sum(list(self.context.encoder.calls.values()))  # a copy: threads add theirs meanwhile

    @property
    def kept_bytes(self) -> int:
        """Memory of the prepared questions that are kept for later requests: an estimate from above."""
        return self.context.encoder.kept.weight

    @property
    def decode_states(self) -> dict[str, int]:
        """Texts that are being read along: how many there are, and how many there have been."""
        texts = self.context.texts
        return {"decode_states_live": texts.live, "streaming_objects_created": texts.created}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.context.encoder.tokenizer

    @property
    def max_length(self) -> int:
        """Tokens one sequence may hold, prompt and output together."""
        return self.context.max_length

    def snapshot(self, task: T) -> T:
        """A copy of the task's parts that the caller could still change; cheap, for the caller's own thread."""
        return snapshot(task)

    def prepare(self, task: Task) -> Admitted:
        """Raises ``InvalidRequest`` (or a subclass) for anything the caller has to change, and nothing else."""
        return self._prepare(task)[0]

    def prepare_all(self, tasks: Iterable[Any]) -> list[Admitted | Exception]:
        """``prepare`` each task; an error stands in the place of its result."""
        found: list[Admitted | Exception] = []
        for task in tasks:
            try:
                found.append(self._prepare(task)[0])
            except Exception as error:
                found.append(error)
        return found

    def _prepare(self, task: Any) -> tuple[Admitted, Parts]:
        kind: Any = type(task)
        prepare: Prepare | None
        if isinstance(task, Decide):
            prepare = prepare_fitted if asks_fitted(task.questions) else self._prepare_decide
        else:
            prepare = prepare_function(kind)
        if prepare is None:
            raise InvalidRequest(f"{shown(task)} is not a task", field="task")
        ctx = self.context
        scope = TokenizationScope(ctx.encoder, ctx.config.default_cache, task)
        try:
            parts = prepare(ctx, scope, task)
            readout = parts.readout
            if readout is None:
                if ctx.limits.bidirectional:
                    said = "this model is an encoder, and keeps nothing of a prompt for later ones"
                    raise InvalidRequest(f"{said}; it serves {served(ctx)}", field=type(task).__name__)
            elif readout.needs_lm_head and not ctx.limits.lm_head and not parts.masked:
                raise no_lm_head(ctx, task)
            validation.one_of(task.cache, "cache", _CACHE_MODES)
            cache = ctx.config.default_cache if task.cache == "auto" else task.cache
            salt = 0 if task.salt is None else salt_number(validation.salt(task.salt) or "")
        finally:
            ms = scope.close()
        prepared = Prepared(
            parts.tree, readout, parts.max_new_tokens, parts.sampling, cache, salt, parts.truncated, ms, parts.first
        )
        return Admitted(prepared, parts.finish, parts.reader, parts.watched), parts

    def explain(self, task: Task) -> Explanation:
        """Return the result of ``prepare``, in words."""
        scope = TokenizationScope(self.context.encoder, self.context.config.default_cache, task)
        try:
            ready, parts = self._prepare(task)
            notes = parts.notes
            labels = (notes.labels,) * bool(notes.labels)
            if isinstance(task, Decide) and self.context.options is None and not asks_fitted(task.questions):
                labels = self._labels(scope, task)
        finally:
            scope.close()
        prepared = ready.prepared
        tree = prepared.tree
        readout = prepared.readout
        return Explanation(
            text=self.context.encoder.tokenizer.decode(tree.token_ids.tolist(), skip_special_tokens=False),
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

    def _labels(self, scope: TokenizationScope, task: Decide) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]:
        """Return each question's labels with their ids."""
        plans = decision_of(self.context, scope, task, named(task.questions)[0]).plans
        return tuple([tuple(zip(plan.labels, plan.label_ids)) for plan in plans])


def salt_number(salt: str) -> int:
    """Return a 63-bit number that separates this tenant's prefixes from all others; never 0, which is no salt."""
    return int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "little") >> 1 or 1
