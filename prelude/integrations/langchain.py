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
from langchain_core.messages import BaseMessage
from pydantic import ConfigDict, Field, PrivateAttr

from prelude.integrations.engines import Engines
from prelude.results import Ranking
from prelude.systemone import SystemOne
from prelude.tasks import Embed

_ROLES = {"human": "user", "ai": "assistant"}


class PreludeDecisions(BaseDecisionModel):
    """``PreludeDecisions(engine=engine).invoke({"state": ..., "questions": {...}})``: answers of an engine of either
    kind. ``model`` is the name in the responses."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str = "prelude"
    engine: Any = Field(exclude=True, repr=False)
    options: dict[str, Any] = Field(default_factory=dict)
    _one: SystemOne = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        given = isinstance(self.engine, SystemOne)
        self._one = self.engine if given else SystemOne(self.engine, name=self.model, **self.options)

    @property
    def _provider(self) -> str:
        return "prelude"

    def _classify(self, state: Any, questions: Mapping[str, Any]) -> ClassifierResponse:
        return ClassifierResponse.model_validate(self._one.answer(_request(state, questions)))

    async def _aclassify(self, state: Any, questions: Mapping[str, Any]) -> ClassifierResponse:
        return ClassifierResponse.model_validate(await self._one.aanswer(_request(state, questions)))


def _request(state: Any, questions: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: question.model_dump(exclude_none=True) for name, question in questions.items()}
    return {"state": _plain(state), "questions": asked}


def _plain(value: Any) -> Any:
    """Messages, at any depth, as objects with role and content."""
    if isinstance(value, BaseMessage):
        return {"role": _ROLES.get(value.type, value.type), "content": value.content}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


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
