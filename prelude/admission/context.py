"""The values of one engine that admission reads: model, tokenizer and limits. They do not change after loading."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any, get_args

from prelude.admission.chat import ChatRenderer, Frame, make_frame
from prelude.admission.prepared import Admitted, Outcome, Prepared, TokenTree
from prelude.admission.tokenization import Encoder, TokenizationScope
from prelude.errors import InvalidRequest, shown
from prelude.execution.executor import ExecutorLimits
from prelude.readouts import RequestReadout
from prelude.recipes import ModelRecipes
from prelude.records import dataclass, field
from prelude.results import AskedQuestion
from prelude.streaming.detokenize import Texts
from prelude.tasks import CacheMode, Task
from prelude.values import validation
from prelude.values.config import EngineConfig
from prelude.values.memo import Memo
from prelude.values.model_settings import EmbeddingSettings, Layout, OptionSettings

CHARS_PER_TOKEN = 16
LEAST_MASS = 0.01
"""Summed probability of a question's labels. Below it a warning is due."""
log = logging.getLogger("prelude.engine")


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    encoder: Encoder
    texts: Texts  # the same tokenizer, the other way
    limits: ExecutorLimits
    config: EngineConfig
    max_length: int
    """Tokens of one sequence at most, prompt and output together."""
    step_tokens: int
    """Tokens of one step at most, never less than ``max_length``. All tokens of a OneShot request are of one step."""
    max_chars: int
    eos_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    pad_id: int | None = None
    mask_id: int | None = None  # of an encoder with a masked-language head
    labels: tuple[str, ...] = ()
    activation: str | None = None  # of the classification head; None: as transformers does by the number of labels
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    template: Any = None  # DecisionTemplate
    recipes: ModelRecipes = field(default_factory=ModelRecipes)
    chat: ChatRenderer | None = None
    """Renders messages; None if the model has no chat template."""
    decision_chat: ChatRenderer | None = None
    """Renders the turn around a decision; another way to call the same template, without room for thoughts."""
    options: OptionSettings | None = None  # of a model whose head reads the options of a question
    model: str = ""  # its path
    frames: list[Frame] = field(default_factory=list)  # at most one: the text of the chat template around a turn
    warned: list[str] = field(default_factory=list)  # at most one: the question whose labels had hardly any mass

    @property
    def kept(self) -> Memo[Any, Any]:
        """Holds decisions, plans, labels and the texts of templates of questions that were asked before."""
        return self.encoder.kept

    @property
    def text_room(self) -> int:
        """Tokens of a text or a pair that is pooled or read by a head: the engine's limit, or the directory's."""
        said = self.embedding.max_length
        return self.max_length if said is None else min(self.max_length, said)

    def cuts_the_whole(self, truncation: str) -> bool:
        """Return whether a prompt and the text of a template are cut too: a tokenizer of the directory that cuts the
        beginning knows of neither."""
        return truncation == "head" == self.embedding.truncation

    @property
    def layout(self) -> Layout:
        """The form in which objects and arrays are written."""
        return "json" if self.options is None else self.options.layout

    def frame(self) -> Frame:
        """Return the chat template around one user turn, rendered once."""
        if not self.frames:
            self.frames.append(make_frame(self.decision_chat or self.chat))
        return self.frames[0]


_CACHE_MODES = get_args(CacheMode)


def admitted(
    ctx: AdmissionContext,
    scope: TokenizationScope,
    task: Task,
    tree: TokenTree,
    readout: RequestReadout | None,
    finish: Callable[[Outcome], Any],
    *,
    truncated: int = 0,
    first: int = 0,
    masked: bool = False,
) -> Admitted:
    """Put the parts together; the last step of every ``prepare_*``. ``masked``: read by a masked-language head."""
    if readout is not None and readout.needs_lm_head and not masked:
        require_lm_head(ctx, task)
    if readout is None and ctx.limits.bidirectional:
        raise InvalidRequest(
            f"this model is an encoder, and keeps nothing of a prompt for later ones; it serves {served(ctx)}",
            field=type(task).__name__,
        )
    prepared = Prepared(
        tree,
        readout,
        cache=cache_of(ctx, task),
        salt=salt_of(task),
        truncated_tokens=truncated,
        tokenize_ms=scope.close(),
        first=first,
    )
    return Admitted(prepared, finish)


def require_lm_head(ctx: AdmissionContext, task: Task) -> None:
    if ctx.limits.lm_head:
        return
    kind = "is an encoder, which sees a whole text at once" if ctx.limits.bidirectional else "has no such head"
    pairs = ""
    if ctx.limits.bidirectional and "classify(prompt)" in served(ctx):
        pairs = "; classify((question and option, state)) reads its own head, in the text form that it was trained on"
    raise InvalidRequest(
        f"this task needs a language-model head, and this model {kind}: it serves {served(ctx)}, and cannot score or "
        f"write text; load a decoder (a …ForCausalLM checkpoint) for that{pairs}",
        field=type(task).__name__,
    )


def served(ctx: AdmissionContext) -> str:
    """Return the verbs of this model, for the advice of an error."""
    limits, found = ctx.limits, []
    if ctx.options is not None or limits.lm_head or limits.masked_lm:
        found.append("decide(state, [...])")
    if ctx.options is None and limits.num_labels:
        found.append("classify_tokens(prompt)" if limits.head_pooling == "tokens" else "classify(prompt)")
    return " and ".join([*found, "embed(prompt)"])


def warn_of_mass(warned: list[str], asked: AskedQuestion, mass: float) -> None:
    """Warn, once for an engine (``warned``), that its model would not have answered with any of the labels."""
    if not warned:
        warned.append(asked.question)
        log.warning(
            "question %s: its labels have a probability of %.1g together (answer.mass), so that the model would have "
            "answered something else, and the probabilities among them follow chance; ask in other words, or load a "
            "model that was trained for such questions. Later answers of this engine are not warned about",
            shown(asked.question),
            mass,
        )


def cache_of(ctx: AdmissionContext, task: Task) -> CacheMode:
    validation.one_of(task.cache, "cache", _CACHE_MODES)
    return ctx.config.default_cache if task.cache == "auto" else task.cache


def salt_of(task: Task) -> int:
    return 0 if task.salt is None else salt_number(validation.salt(task.salt) or "")


def salt_number(salt: str) -> int:
    """Return a 63-bit number that separates this tenant's prefixes from all others; never 0, which is no salt."""
    return int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "little") >> 1 or 1
