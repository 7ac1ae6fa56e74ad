"""The shapes of sentence-transformers, so that code written for its two classes runs on an engine.

``SentenceEncoder.encode`` stands for ``SentenceTransformer.encode``, ``PairScorer.predict`` and ``.rank`` for those
of ``CrossEncoder``. The library itself is not needed. Arguments that ask for torch tensors or multi-process pools
are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prelude.errors import InvalidRequest, shown
from prelude.integrations.engines import Engines
from prelude.results import F32
from prelude.tasks import Classify, Embed, Rerank


class SentenceEncoder:
    """Over an engine of either kind. ``pooling`` where the model directory does not name one."""

    def __init__(self, engine: Any, *, pooling: Any = None, truncate_dim: int | None = None) -> None:
        self._engine = Engines(engine)
        self._pooling = pooling
        self._truncate_dim = truncate_dim

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool | None = None,
        truncate_dim: int | None = None,
    ) -> Any:
        """A vector of one sentence, float32 [d]; [n, d] of a list of n. ``prompt`` is put before each text as it is.
        ``batch_size`` and ``device`` are taken and not used: the engine plans its own steps."""
        _refuse("output_value", output_value, "sentence_embedding")
        _refuse("precision", precision, "float32")
        _refuse("convert_to_tensor", convert_to_tensor, False)
        _refuse("convert_to_numpy", convert_to_numpy, True)
        one = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        dimensions = truncate_dim if truncate_dim is not None else self._truncate_dim
        name = "" if prompt is not None and prompt_name is None else prompt_name
        tasks = [
            Embed(
                f"{prompt or ''}{text}",
                pooling=self._pooling,
                normalize=True if normalize_embeddings else None,
                dimensions=dimensions,
                truncation="tail",
                prompt_name=name,
            )
            for text in texts
        ]
        if not tasks:
            return np.zeros((0, dimensions or self._engine.sync.model_info.hidden_size), dtype=np.float32)
        found: F32 = np.stack(self._engine.sync.run_many(tasks, progress=bool(show_progress_bar)))
        return found[0] if one else found

    def similarity(self, first: F32, second: F32) -> F32:
        """Cosines, [n, m]."""
        sides = [np.atleast_2d(np.asarray(side, dtype=np.float32)) for side in (first, second)]
        left, right = (side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in sides)
        found: F32 = left @ right.T
        return found


class PairScorer:
    """Over an engine of either kind. ``options`` are keywords of ``Rerank``, such as ``recipe``. A model with several
    labels has ``predict`` alone, and gives its raw logits, as there."""

    def __init__(self, engine: Any, **options: Any) -> None:
        self._engine = Engines(engine)
        self._options = {"truncation": "tail", **options}
        self.num_labels = max(1, len(self._engine.sync.model_info.labels))

    def predict(
        self,
        inputs: Sequence[Any],
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Any:
        """Scores of (query, document) pairs: float32 [n], or [n, labels] of a model with several; of one pair a
        number. ``activation_fn`` gets the raw scores as an array. ``prompt``, or the model's own one of the name
        ``prompt_name``, is put before each query."""
        _refuse("convert_to_tensor", convert_to_tensor, False)
        _refuse("convert_to_numpy", convert_to_numpy, True)
        one = len(inputs) == 2 and all(isinstance(text, str) for text in inputs)
        pairs = [tuple(inputs)] if one else [tuple(pair) for pair in inputs]
        if self.num_labels > 1:
            _refuse("prompt_name", prompt_name, None)
            pairs = [((prompt or "") + query, document) for query, document in pairs]
            found = self._logits(pairs, show_progress_bar)
        else:
            options: dict[str, Any] = {"instruction": prompt, "prompt_name": prompt_name}
            if activation_fn is not None:
                options["activation"] = "none"
            options = {**self._options, **{name: given for name, given in options.items() if given is not None}}
            tasks = [Rerank(query, document, **options) for query, document in pairs]
            results = self._engine.sync.run_many(tasks, progress=bool(show_progress_bar))
            found = np.array([result.score for result in results], dtype=np.float32)
        if activation_fn is not None:
            found = np.asarray(activation_fn(found), dtype=np.float32)
        if apply_softmax:
            found = np.exp(found - found.max(axis=-1, keepdims=True))
            found = found / found.sum(axis=-1, keepdims=True)
        return found[0] if one else found

    def _logits(self, pairs: Sequence[Any], progress: bool | None) -> F32:
        tasks = [Classify(pair, activation="none", truncation="tail") for pair in pairs]
        return np.array([one.logits for one in self._engine.sync.run_many(tasks, progress=bool(progress))])

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[dict[str, Any]]:
        """``corpus_id`` and ``score`` of each document, and its ``text`` where asked for, the best first."""
        if self.num_labels > 1:
            raise InvalidRequest(f"rank() is for models with one label, and this one has {self.num_labels}")
        scores = self.predict(
            [(query, document) for document in documents],
            show_progress_bar=show_progress_bar,
            activation_fn=activation_fn,
            prompt_name=prompt_name,
            prompt=prompt,
        )
        order = np.argsort(-np.asarray(scores), kind="stable").tolist()[:top_k]
        found = [{"corpus_id": at, "score": float(scores[at])} for at in order]
        return [{**item, "text": documents[item["corpus_id"]]} for item in found] if return_documents else found


def _refuse(name: str, given: Any, only: Any) -> None:
    if given != only:
        raise InvalidRequest(f"{shown(given)} is not offered; it takes {shown(only)}", field=name)
