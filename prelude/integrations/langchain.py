"""LangChain: ``PreludeDecisions``, ``PreludeEmbeddings`` and ``PreludeReranker``.

pip install 'prelude-engine[langchain]' (langchain-core 1.8 or newer). Keywords of ``decide``, ``embed`` and
``rerank`` go into ``options``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.decisions import BaseDecisionModel, ClassifierResponse
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage, convert_to_openai_messages
from pydantic import ConfigDict, Field, PrivateAttr

from prelude.admission.conversation import turns_of
from prelude.admission.messages import MAX_DEPTH, written
from prelude.api.engine import Engines
from prelude.errors import InvalidRequest, shown
from prelude.results import Ranking
from prelude.systemone import SystemOne
from prelude.systemone.adapter import system_one
from prelude.tasks import Embed

_CALLS = frozenset(["function_call", "tool_call"])


class PreludeDecisions(BaseDecisionModel):
    """``PreludeDecisions(engine=engine).invoke({"state": ..., "questions": {...}})``: answers of an engine of either
    kind. ``model`` is the name in the responses."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str = "prelude"
    engine: Any = Field(exclude=True, repr=False)
    options: dict[str, Any] = Field(default_factory=dict)
    _made: tuple[tuple[Any, ...], SystemOne] | None = PrivateAttr(None)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._one()

    def _one(self) -> SystemOne:
        """That of the fields as they are: an object may be copied with others, or get others."""
        fields = (self.engine, self.model, dict(self.options))
        if self._made is None or self._made[0] != fields:
            if "name" in self.options:
                raise InvalidRequest("the name in the responses is the field model", field="options.name")
            named = {} if isinstance(self.engine, SystemOne) else {"name": self.model}
            self._made = fields, system_one(self.engine, **named, **self.options)
        return self._made[1]

    @property
    def _provider(self) -> str:
        return "prelude"

    def _classify(self, state: Any, questions: Mapping[str, Any]) -> ClassifierResponse:
        return ClassifierResponse.model_validate(self._one().answer(_request(state, questions)))

    async def _aclassify(self, state: Any, questions: Mapping[str, Any]) -> ClassifierResponse:
        return ClassifierResponse.model_validate(await self._one().aanswer(_request(state, questions)))


def _request(state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: question.model_dump() for name, question in questions.items()}
    if isinstance(state, BaseMessage):
        state = [state]
    return {"state": _plain(state, "state"), "questions": asked}


def _plain(value: Any, path: Any, depth: int = MAX_DEPTH) -> Any:
    """Messages in OpenAI's form. Those inside an object become what they are in a prompt, a role and a text; the
    engine does the same with a list of them, and names the message that it refuses. ``path``: a chain as
    ``messages.written`` takes it."""
    if isinstance(value, BaseMessage):
        turns = turns_of(_openai_form(value, path), written(path))
        return turns[0] if len(turns) == 1 else turns
    if not depth:
        return value  # the engine refuses it
    if isinstance(value, Mapping):
        return {key: _plain(item, (path, key), depth - 1) for key, item in value.items()}
    if not isinstance(value, list | tuple):
        return value
    if not any(isinstance(item, BaseMessage) for item in value):
        return [_plain(item, (path, at), depth - 1) for at, item in enumerate(value)]
    messages: list[Any] = []
    for at, item in enumerate(value):
        messages += _openai_form(item, (path, at)) if isinstance(item, BaseMessage) else [item]
    return messages if path == "state" else turns_of(messages, written(path))


def _openai_form(message: BaseMessage, path: Any) -> list[dict[str, Any]]:
    """One message, and those of the results of tools in it."""
    if getattr(message, "invalid_tool_calls", None):
        said = "a call of a tool that could not be read; leave it out"
        raise InvalidRequest(said, field=written((path, "invalid_tool_calls")))
    try:
        found: list[dict[str, Any]] = convert_to_openai_messages([message], text_format="block")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidRequest(f"the message cannot be read: {shown(str(error))}", field=written(path)) from error
    first = found[0]
    if isinstance(message.content, str):
        first["content"] = message.content
    called = [call["id"] for call in first.get("tool_calls", ())]
    if isinstance(first["content"], list):  # some content holds the calls too
        first["content"] = [
            part
            for part in first["content"]
            if part.get("type") not in _CALLS or part.get("call_id", part.get("id")) not in called
        ]
    if "function_call" in message.additional_kwargs:
        first["function_call"] = message.additional_kwargs["function_call"]
    if getattr(message, "status", None) == "error":
        first["phase"] = "error"
    return found


class PreludeEmbeddings(Embeddings):
    """``query`` and ``documents`` are keywords of ``embed`` for the two sides, such as ``{"prompt_name": "query"}``;
    ``options`` are for both."""

    def __init__(
        self,
        engine: Any,
        *,
        query: Mapping[str, Any] | None = None,
        documents: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._engines = Engines(engine)
        self._query = {**options, **(query or {})}
        self._documents = {**options, **(documents or {})}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [one.tolist() for one in self._engines.sync.run_many(self._tasks(texts))]

    def embed_query(self, text: str) -> list[float]:
        found: list[float] = self._engines.sync.run(Embed(text, **self._query)).tolist()
        return found

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return [one.tolist() for one in await self._engines.awaited.run_many(self._tasks(texts))]

    async def aembed_query(self, text: str) -> list[float]:
        found: list[float] = (await self._engines.awaited.run(Embed(text, **self._query))).tolist()
        return found

    def _tasks(self, texts: Sequence[str]) -> list[Embed]:
        return [Embed(text, **self._documents) for text in texts]


class PreludeReranker(BaseDocumentCompressor):
    """The ``top_n`` documents that answer the query best, the best first, with ``relevance_score`` in the metadata of
    copies."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Any = Field(exclude=True, repr=False)
    top_n: int | None = 3
    options: dict[str, Any] = Field(default_factory=dict)

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        texts = [one.page_content for one in documents]
        found = Engines(self.engine).sync.rerank(query, texts, top_n=self.top_n, **self.options)
        return _with_scores(found, documents)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        texts = [one.page_content for one in documents]
        found = await Engines(self.engine).awaited.rerank(query, texts, top_n=self.top_n, **self.options)
        return _with_scores(found, documents)


def _with_scores(ranking: Ranking, documents: Sequence[Document]) -> list[Document]:
    found = []
    for item in ranking:
        given = documents[item.index]
        found.append(given.model_copy(update={"metadata": {**given.metadata, "relevance_score": item.score}}))
    return found
