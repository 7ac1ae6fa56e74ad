"""The shapes of sentence-transformers, so that code written for its two classes runs on an engine.

``SentenceEncoder.encode`` stands for ``SentenceTransformer.encode``, ``PairScorer.predict`` and ``.rank`` for those
of ``CrossEncoder``. The library itself is not needed. Arguments that ask for torch tensors or multi-process pools
are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prelude.api.engine import Engines
from prelude.errors import InvalidRequest, shown
from prelude.results import F32
from prelude.tasks import Classify, Embed, Rerank
from prelude.values.validation import listed


class SentenceEncoder:
    """Encode by an engine of either kind. ``pooling`` is needed if the model directory names none."""

    def __init__(self, engine: Any, *, pooling: Any = None, truncate_dim: int | None = None) -> None:
        self._engine = Engines(engine)
        self._pooling = pooling
        self._truncate_dim = truncate_dim

    def encode(
        self,
        inputs: str | Sequence[str],
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
        one = isinstance(inputs, str)
        texts = [inputs] if isinstance(inputs, str) else listed(inputs, "inputs", " of texts")
        dimensions = truncate_dim if truncate_dim is not None else self._truncate_dim
        tasks = [
            Embed(
                text,
                pooling=self._pooling,
                normalize=True if normalize_embeddings else None,
                dimensions=dimensions,
                truncation=self._engine.sync.model_info.truncation,
                instruction=prompt,
                prompt_name=prompt_name if prompt is None else None,
            )
            for text in texts
        ]
        if not tasks:
            return np.zeros((0, dimensions or self._engine.sync.model_info.hidden_size), dtype=np.float32)
        found: F32 = np.stack(self._engine.sync.run_many(tasks, progress=bool(show_progress_bar)))
        return found[0] if one else found

    def similarity(self, first: F32, second: F32) -> F32:
        """[n, m]: cosines, or the measure that the model directory names as ``similarity_fn_name``."""
        left, right = (np.atleast_2d(np.asarray(side, dtype=np.float32)) for side in (first, second))
        kind = self._engine.sync.model_info.similarity
        if kind in ("euclidean", "manhattan"):
            distances = np.linalg.norm(left[:, None] - right[None], ord=1 if kind == "manhattan" else 2, axis=-1)
            return np.asarray(-distances, dtype=np.float32)
        if kind == "cosine":
            left, right = (
                side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in (left, right)
            )
        found: F32 = left @ right.T
        return found


class PairScorer:
    """Scores by an engine of either kind. ``options``: keywords of ``Rerank``, such as ``recipe``, or of ``Classify``
    for a model with several labels. Such a model has ``predict`` alone, and gives its raw logits, as there, unless
    the directory names an activation."""

    def __init__(self, engine: Any, **options: Any) -> None:
        self._engine = Engines(engine)
        info = self._engine.sync.model_info
        self._options = {"truncation": info.truncation, **options}
        self._activation = info.score_activation or "none"  # of several labels
        self.num_labels = max(1, len(info.labels))

    def predict(
        self,
        inputs: Sequence[Any],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
    ) -> Any:
        """Scores of (query, document) pairs: float32 [n], or [n, labels] of a model with several; of one pair a
        number. ``activation_fn`` gets the raw scores as an array. ``prompt``, or the model's own one of the name
        ``prompt_name``, is put before each query."""
        _refuse("convert_to_tensor", convert_to_tensor, False)
        _refuse("convert_to_numpy", convert_to_numpy, True)
        given = listed(inputs, "inputs", " of (query, document) pairs")
        one = len(given) == 2 and all(isinstance(text, str) for text in given)
        pairs = [given] if one else [_pair(pair, f"inputs[{at}]") for at, pair in enumerate(given)]
        options = dict(self._options)
        if prompt is not None:
            options["instruction"] = prompt
        elif prompt_name is not None:
            options["prompt_name"] = prompt_name
        if self.num_labels > 1:
            options.setdefault("activation", self._activation)
        if activation_fn is not None:
            options["activation"] = "none"
        kind: Callable[..., Any] = Rerank if self.num_labels == 1 else _classify
        results: list[Any] = self._engine.sync.run_many(
            [kind(query, document, **options) for query, document in pairs], progress=bool(show_progress_bar)
        )
        found = np.array([one.score if self.num_labels == 1 else one.scores for one in results], dtype=np.float32)
        if activation_fn is not None:
            found = np.asarray(activation_fn(found), dtype=np.float32)
        if apply_softmax and found.ndim > 1:
            found = np.exp(found - found.max(axis=-1, keepdims=True))
            found = found / found.sum(axis=-1, keepdims=True)
        return found[0] if one else found

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
    ) -> list[dict[str, Any]]:
        """``corpus_id`` and ``score`` of each document, and its ``text`` if asked for, the best first."""
        if self.num_labels > 1:
            raise InvalidRequest(f"rank() is for one label, and this model has {self.num_labels}", field=None)
        scores = self.predict(
            [(query, document) for document in listed(documents, "documents", " of texts")],
            show_progress_bar=show_progress_bar,
            activation_fn=activation_fn,
            prompt_name=prompt_name,
            prompt=prompt,
        )
        order = np.argsort(-scores, kind="stable").tolist()[:top_k]
        found = [{"corpus_id": at, "score": float(scores[at])} for at in order]
        return [{**item, "text": documents[item["corpus_id"]]} for item in found] if return_documents else found


def _classify(query: str, document: str, **options: Any) -> Classify:
    return Classify((query, document), **options)


def _pair(given: Any, field: str) -> list[Any]:
    found = listed(given, field, " of two texts")
    if len(found) != 2:
        raise InvalidRequest(f"{shown(found)} is not a list of two texts", field=field)
    return found


def _refuse(name: str, given: Any, only: Any) -> None:
    if given != only:
        raise InvalidRequest(f"{shown(given)} is not offered; it takes {shown(only)}", field=name)
