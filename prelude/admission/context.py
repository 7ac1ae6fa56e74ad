"""The values of one engine that admission reads: model, tokenizer and limits. They do not change after loading."""

from __future__ import annotations

from typing import Any

from prelude.admission.chat import ChatRenderer, Frame, make_frame
from prelude.admission.tokenization import Encoder
from prelude.errors import InvalidRequest
from prelude.execution.executor import ExecutorLimits
from prelude.recipes import ModelRecipes
from prelude.records import dataclass, field
from prelude.streaming.detokenize import Texts
from prelude.tasks import Task
from prelude.values.config import EngineConfig
from prelude.values.model_settings import EmbeddingSettings, Layout, OptionSettings

CHARS_PER_TOKEN = 16


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


def no_lm_head(ctx: AdmissionContext, task: Task) -> InvalidRequest:
    kind = "is an encoder, which sees a whole text at once" if ctx.limits.bidirectional else "has no such head"
    pairs = ""
    if ctx.limits.bidirectional and "classify(prompt)" in served(ctx):
        pairs = "; classify((question and option, state)) reads its own head, in the text form that it was trained on"
    return InvalidRequest(
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
