"""Weights as the CPU's forward pass wants them: copied out of the files once, merged, one resident copy.

stacked   the weights of one projection one under the other; rows of q and k that are rotated are permuted so that the
          two halves of a head lie interleaved (a rotation is then one complex product; scores do not see the order)
float32   the gain of a norm before a projection is inside its weight, if the norm has no bias: one pass over the
          tokens less
bfloat16  gains stay apart, in float32: rounding their product again would double the weights' noise. If the
          processor has no products of bfloat16, weights are "widened"
int8      gains stay apart: without them the values of a row differ more in size, and the small ones lose bits
widened,  weights that the files have in bfloat16 or float16 keep their two bytes, and everything else is float32.
float16   Gains stay apart, since a weight times its gain has more bits

Tied embeddings are rows of the packed LM head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from prelude.models.arrays import F32, FLOAT32, KEPT, Array, Packing, as_type, name_of, widen
from prelude.models.gguf.blocks import Blocks
from prelude.models.ops import RowNorm
from prelude.models.packed import Arena, PackedLinear
from prelude.models.packed_file import Converted, Kept
from prelude.models.recurrent import read_recurrent
from prelude.models.relative import RelativeWeights, relative_weights, rows_of_distances
from prelude.models.safetensors_file import UsedFile
from prelude.models.spec import (
    LM_HEAD,
    Attention,
    ChoiceLayer,
    Classifier,
    Embeddings,
    Layer,
    LayerInput,
    MaskedHead,
    ModelSpec,
    Norm,
    OptionHead,
    PointerHead,
    Projection,
)
from prelude.models.weights import (
    ChoiceLayerWeights,
    ChoiceWeights,
    ClassifierWeights,
    EmbeddingWeights,
    EntryWeights,
    LayerWeights,
    MaskedWeights,
    ModelWeights,
    OptionWeights,
    PointerWeights,
)
from prelude.records import fields
from prelude.terminal.progress import watched


class WeightSource(Protocol):
    """The used methods of ``Checkpoint``, which describes them."""

    def names(self) -> Sequence[str]: ...
    def nbytes(self, itemsize: int, keep: bool = False) -> int: ...
    def tensor(self, name: str) -> Array: ...
    def finite(self, name: str) -> Array: ...
    def in_blocks(self, name: str) -> bool: ...
    def blocks(self, name: str) -> Blocks: ...
    def packed(self, names: Sequence[str]) -> tuple[Array, Kept] | None: ...

    @property
    def converted(self) -> Converted | None: ...
    @property
    def used(self) -> UsedFile | None: ...


def weight_bytes(source: WeightSource, spec: ModelSpec, dtype: np.dtype[Any], packing: Packing) -> int:
    """About the bytes that ``load_weights`` will hold: a byte for each weight of the layers and of the LM head if
    they are of int8, beside the others in ``dtype``."""
    if packing != "int8":
        return source.nbytes(dtype.itemsize, keep=packing in KEPT)
    quantized = sum([math.prod(shape) for layer in spec.layers for _, shape in layer.tensors()])
    if spec.lm_head is not None:
        quantized += spec.embeddings.vocab * spec.hidden
    return quantized + max(0, spec.num_parameters() - quantized) * dtype.itemsize


PIECE_ROWS = 4096
"""Rows of a weight that are widened at a time while it is packed."""


class _Reader:
    """Reads weights of one layer after another and packs them."""

    def __init__(
        self,
        source: WeightSource,
        dtype: np.dtype[Any],
        span: int = 1,
        packing: Packing = "float32",
        made: dict[tuple[str, ...], PackedLinear] | None = None,
    ) -> None:
        """``dtype``: of rows. ``span``: more than any distance of two tokens. ``packing``: of projections. ``made``:
        takes what is packed, by the names of the weights in it."""
        self.made = {} if made is None else made
        self._arena = Arena()
        self.span = span
        self.packing: Packing = packing
        self.source = source
        self.dtype = dtype
        self.names = frozenset(source.names())
        self.stored_in_blocks = any(map(source.in_blocks, self.names))
        self.distances: tuple[F32, Array] | None = None  # vectors and rows, read with the first layer

    def vector(self, name: str) -> F32:
        return np.array(widen(self.source.finite(name)))

    def gain(self, norm: Norm) -> F32:
        gain = self.vector(f"{norm.name}.weight")
        return gain + np.float32(norm.offset) if norm.offset else gain

    def norm(self, norm: Norm) -> RowNorm:
        bias = self.vector(f"{norm.name}.bias") if norm.bias else None
        return RowNorm(norm.kind, norm.eps, self.gain(norm), bias)

    def folded(self, norm: Norm) -> tuple[RowNorm, F32 | None]:
        """Return the norm before a projection, and the gain that goes into the projection's weight."""
        if self.packing != "float32" or norm.bias or self.stored_in_blocks:
            return self.norm(norm), None
        return RowNorm(norm.kind, norm.eps, None), self.gain(norm)

    def projection(
        self, projection: Projection, gain: F32 | None = None, heads: Attention | None = None
    ) -> PackedLinear:
        """Packed out of the files, without a copy of the whole between; used as it is if it was packed before; in
        blocks if a part of it is stored so. Inputs are scaled by ``gain``, outputs are ``arranged`` as
        those of ``heads``."""
        names = tuple(f"{name}.weight" for name in projection.names)
        bias = None
        if projection.bias:
            parts = self._parts([f"{name}.bias" for name in projection.names], heads)
            bias = np.concatenate([widen(part) for part in parts])
        kept = self.source.packed(names)
        if kept is not None:
            return PackedLinear.of_words(*kept, bias)
        if any(map(self.source.in_blocks, names)):
            found = PackedLinear.of_blocks(self._blocks(names, heads), bias, self._arena)
        else:
            packing = self._packing(names)
            pieces = (
                piece if name_of(piece.dtype) == KEPT.get(packing) else _scaled(widen(piece), gain)
                for part in self._parts(names, heads)
                for piece in (part[at : at + PIECE_ROWS] for at in range(0, len(part), PIECE_ROWS))
            )
            outputs, columns = projection.outputs, projection.columns
            found = PackedLinear.of_parts(pieces, outputs, columns, bias, packing, self._arena)
        self.made[names] = found
        return found

    def _packing(self, names: Sequence[str]) -> Packing:
        """Return the packing of a projection: float32 if the one that is asked for would lose too much."""
        stored = (self.source.tensor(name) for name in names)
        if self.packing in KEPT and self.dtype == FLOAT32:
            types = {name_of(weight.dtype) for weight in stored}
            return "widened" if types == {"bfloat16"} else "float16" if types == {"float16"} else "float32"
        if self.packing == "int8":
            return "int8" if PackedLinear.fits(map(widen, stored)) else "float32"
        return self.packing

    def _parts(self, names: Sequence[str], heads: Attention | None) -> Iterator[Array]:
        """Yield one after the other; only one is alive at a time."""
        at = 0
        for name in names:
            part = self.source.finite(name)
            yield part if heads is None else arranged(part, at, heads)
            at += len(part)

    def _blocks(self, names: Sequence[str], heads: Attention | None) -> list[Blocks]:
        """Return the rows of weights in blocks, by kind; so too if one of them is stored as numbers."""
        parts, at = [], 0
        for name in names:
            if self.source.in_blocks(name):
                part = self.source.blocks(name)
            else:
                part = Blocks.of(widen(self.source.finite(name)))
            rows = part.shape[0]
            if heads is not None:
                part = part.rows(arranged(np.arange(rows), at, heads))
            parts.append(part)
            at += rows
        return Blocks.joined(parts)

    def layer(self, spec: Layer) -> LayerWeights:
        mixer, mlp = spec.mixer, spec.mlp
        attention = mixer if isinstance(mixer, Attention) else None
        before = self.folded if spec.norm_first else lambda norm: (self.norm(norm), None)
        mixer_norm, mixer_gain = (None, None) if spec.mixer_norm is None else before(spec.mixer_norm)
        mlp_norm, mlp_gain = before(spec.mlp_norm)
        after = (None if norm is None else self.norm(norm) for norm in (spec.mixer_after, spec.mlp_after))
        mixer_after, mlp_after = after
        in_proj = self.projection(mixer.in_proj, mixer_gain, attention)
        return LayerWeights(
            spec,
            in_proj=in_proj,
            out=self.projection(mixer.out),
            up=self.projection(mlp.up, mlp_gain),
            down=self.projection(mlp.down),
            mixer_norm=mixer_norm,
            mlp_norm=mlp_norm,
            mixer_after=mixer_after,
            mlp_after=mlp_after,
            qk_gain=None if attention is None else self._qk_gain(attention),
            relative=None if attention is None else self._relative(attention, in_proj),
            entry=None if spec.entry is None else self._entry(spec.entry),
            recurrent=None if isinstance(mixer, Attention) else read_recurrent(mixer, self.vector, self.norm),
        )

    def head(self, name: str) -> PackedLinear:
        """Return the weight of an LM head."""
        kept = self.source.packed((name,))
        if kept is not None:
            return PackedLinear.of_words(*kept, None)
        outputs, inputs = (self.source.blocks if self.source.in_blocks(name) else self.source.tensor)(name).shape
        return self.projection(Projection((name.removesuffix(".weight"),), (outputs,), inputs))

    def embeddings(self, spec: Embeddings, count: int, head: PackedLinear | None) -> EmbeddingWeights:
        """``head``: the LM head's weight if it is this one too."""
        name = f"{spec.name}.weight"
        tokens: Array | PackedLinear | None = head
        if tokens is None and self.source.in_blocks(name):
            tokens = self.head(name)
        if tokens is None:
            stored = self.source.finite(name)
            if self.packing == "float32" or name_of(stored.dtype) not in KEPT.values():
                stored = as_type(stored, self.dtype)
            tokens = stored.copy()
        table: F32 | None = None
        if spec.positions is not None:
            first, vectors = spec.positions.first, self.vector(f"{spec.positions.name}.weight")
            table = vectors[first : first + count]
            if spec.positions.uncounted is not None:  # one row more, behind the others
                table = np.concatenate([table, vectors[first - 1 : first]])
            if spec.types is not None:
                types = self.vector(f"{spec.types}.weight")
                table = (table[None] + types[:, None]).reshape(-1, spec.width)
        return EmbeddingWeights(
            tokens,
            None if table is None else np.array(table, order="C"),
            None if spec.norm is None else self.norm(spec.norm),
            None if spec.projection is None else _Reader(self.source, self.dtype).projection(spec.projection),
        )

    def classifier(self, spec: Classifier) -> ClassifierWeights:
        return ClassifierWeights(
            self.projection(spec.out),
            None if spec.dense is None else self.projection(spec.dense),
            None if spec.norm is None else self.norm(spec.norm),
        )

    def masked(self, spec: MaskedHead) -> MaskedWeights:
        return MaskedWeights(
            self.projection(spec.dense), spec.activation, self.norm(spec.norm), self.vector(spec.bias)
        )

    def options(self, spec: OptionHead) -> OptionWeights:
        if isinstance(spec, PointerHead):
            return PointerWeights(self.projection(spec.query), self.projection(spec.key))
        return ChoiceWeights(
            self.vector(f"{spec.types}.weight"),
            self.norm(spec.norm),
            tuple(map(self._choice_layer, spec.layers)),
            self.norm(spec.final_norm),
            self.projection(spec.answer),
            self.projection(spec.choice),
        )

    def _choice_layer(self, spec: ChoiceLayer) -> ChoiceLayerWeights:
        parts: list[Norm | Projection] = [getattr(spec, field.name) for field in fields(spec)]
        made: list[Any] = [self.norm(one) if isinstance(one, Norm) else self.projection(one) for one in parts]
        return ChoiceLayerWeights(*made)

    def _entry(self, entry: LayerInput) -> EntryWeights:
        return EntryWeights(self.norm(entry.norm), self.vector(f"{entry.types}.weight"))

    def _relative(self, mixer: Attention, qkv: PackedLinear) -> RelativeWeights | None:
        relative = mixer.relative
        if relative is None:
            return None
        if self.distances is None:
            vectors = self.vector(f"{relative.name}.weight")
            if relative.norm is not None:
                self.norm(relative.norm)(vectors, vectors)
            self.distances = vectors, rows_of_distances(relative, self.span)
        return relative_weights(mixer, qkv, *self.distances)

    def _qk_gain(self, mixer: Attention) -> F32 | None:
        if mixer.q_norm is None or mixer.k_norm is None:
            return None
        width = mixer.head_dim if mixer.rope is None else mixer.rope.width
        q, k = (
            np.broadcast_to(interleave(self.gain(norm), mixer.head_dim, width), (heads, mixer.head_dim))
            for norm, heads in ((mixer.q_norm, mixer.heads), (mixer.k_norm, mixer.kv_heads))
        )
        return np.ascontiguousarray(np.concatenate([q, k]))


def _scaled(weight: F32, gain: F32 | None) -> F32:
    return weight if gain is None else weight * gain


def arranged(rows: Array, first: int, mixer: Attention) -> Array:
    """``rows`` are outputs of a projection to queries, keys and values from ``first`` on, as files have them: those
    of heads that turn are interleaved, and gates, which the files have behind each head's query, come first."""
    gates = rows[:0]
    if mixer.gate and first == 0:
        heads = rows[: 2 * mixer.query_width].reshape(mixer.heads, 2, mixer.head_dim, *rows.shape[1:])
        queries, gates = (heads[:, which].reshape(mixer.query_width, *rows.shape[1:]) for which in (0, 1))
        rows = np.concatenate([queries, rows[2 * mixer.query_width :]])
    elif mixer.gate:
        first -= mixer.query_width
    turning = 0 if mixer.rope is None else (mixer.heads + mixer.kv_heads) * mixer.head_dim
    count = min(max(turning - first, 0), len(rows))
    if mixer.rope is not None and count:
        rows = np.concatenate([interleave(rows[:count], mixer.head_dim, mixer.rope.width), rows[count:]])
    return np.concatenate([gates, rows]) if len(gates) else rows


def interleave(rows: Array, head_dim: int, width: int) -> Array:
    """Return the first ``width`` rows of each head from ``[a0 a1 … b0 b1 …]`` to ``[a0 b0 a1 b1 …]``."""
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    turning = heads[:, :width]
    pairs = turning.reshape(len(heads), 2, width // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(turning.shape)
    return np.concatenate([pairs, heads[:, width:]], axis=1).reshape(rows.shape)


def load_weights(
    source: WeightSource,
    spec: ModelSpec,
    dtype: np.dtype[Any],
    packing: Packing = "float32",
    made: dict[tuple[str, ...], PackedLinear] | None = None,
) -> ModelWeights:
    """Read everything ``spec`` needs out of ``source``, which may be closed afterwards. ``dtype``: of rows.
    ``packing``: of the projections of layers and of the LM head, which tied embeddings are rows of; other heads are
    packed in float32, other embeddings and norms are not packed. ``made``: takes the packed weights, by the names of
    the weights in each."""
    reader = _Reader(source, dtype, spec.max_positions, packing, made)
    own, name = f"{LM_HEAD}.weight" in reader.names, f"{spec.embeddings.name}.weight"
    masked = spec.masked if all(each in reader.names for each in spec.masked_tensors()) else None
    tied = (spec.lm_head == "tied" or masked is not None) and not own
    lm_head = reader.head(f"{LM_HEAD}.weight" if own else name) if own or tied else None
    # Heads read a handful of rows: float32 costs nothing and spares the answer one rounding.
    exact = _Reader(source, FLOAT32)
    return ModelWeights(
        embeddings=reader.embeddings(spec.embeddings, spec.max_positions, lm_head if tied else None),
        layers=tuple(map(reader.layer, watched(spec.layers, "loading", "layers", len(spec.layers)))),
        final_norm=None if spec.final_norm is None else reader.norm(spec.final_norm),
        lm_head=lm_head,
        classifier=None if spec.classifier is None else exact.classifier(spec.classifier),
        options=None if spec.options is None else exact.options(spec.options),
        masked=None if masked is None else exact.masked(masked),
        dtype=dtype,
        used=source.used,  # the last: it is known once all are read
    )
