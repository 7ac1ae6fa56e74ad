"""Weights as the CPU's forward pass wants them: copied out of the files once, merged, one resident copy.

stacked   the weights of one projection one under the other; rows of q and k that are rotated are permuted so that the
          two halves of a head lie interleaved (a rotation is then one complex product; scores do not see the order)
float32   the gain of a norm before a projection is inside its weight, where the norm has no bias: one pass over the
          tokens less. Weights are packed where the processor has vectors
bfloat16  gains stay apart, in float32: rounding their product again would double the weights' noise. Weights are
          packed for the processor's products of bfloat16, or else "widened"
int8      gains stay apart: without them the values of a row differ more in size, and the small ones lose bits
widened   weights that the files have in bfloat16 keep their two bytes, and everything else is float32. Gains stay
          apart, since a weight times its gain is no bfloat16

Tied embeddings are rows of the packed LM head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from prelude._native import cpu
from prelude.models.arrays import BF16, torch_of, widen
from prelude.models.gguf.blocks import Blocks
from prelude.models.ops import Linear, RowNorm
from prelude.models.option_heads import ChoiceLayerWeights, ChoiceWeights, OptionWeights, PointerWeights
from prelude.models.packed import HALVES, PackedLinear, Packing
from prelude.models.recurrent import read_recurrent
from prelude.models.relative import RelativeWeights, relative_weights, rows_of_distances
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
from prelude.models.summed import AnyLinear
from prelude.models.weight_source import WeightSource
from prelude.models.weights import (
    ClassifierWeights,
    EmbeddingWeights,
    EntryWeights,
    LayerWeights,
    MaskedWeights,
    ModelWeights,
)
from prelude.progress import watched

HEAD_ROWS = 4096
"""Rows of an LM head that are of the working type at a time while it is packed; whole groups of outputs."""


class _Reader:
    """Reads weights of one layer after another into merged tensors of the working dtype."""

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        span: int = 1,
        packing: Packing | None = None,
        made: dict[tuple[str, ...], PackedLinear] | None = None,
    ) -> None:
        """``span``: more than any distance of two tokens. ``packing``: of projections; ``None``: none is packed.
        ``made``: takes what is packed, by the names of the weights in it."""
        self.made = {} if made is None else made
        self.span = span
        self.packing = packing
        self.source = source
        self.dtype = dtype
        self.names = frozenset(source.names())
        self.stored_in_blocks = any(map(source.in_blocks, self.names))
        self.distances: tuple[Tensor, Tensor] | None = None  # vectors and rows, read with the first layer

    def vector(self, name: str) -> Tensor:
        return torch_of(widen(self.source.finite(name)).copy())

    def finite(self, name: str) -> Tensor:
        return torch_of(self.source.finite(name))

    def gain(self, norm: Norm) -> Tensor:
        gain = self.vector(f"{norm.name}.weight")
        return gain.add_(norm.offset) if norm.offset else gain

    def norm(self, norm: Norm) -> RowNorm:
        bias = self.vector(f"{norm.name}.bias") if norm.bias else None
        return RowNorm(norm.kind, norm.eps, self.gain(norm), bias)

    def folded(self, norm: Norm) -> tuple[RowNorm, Tensor | None]:
        """The norm before a projection, and the gain that goes into the projection's weight."""
        if self.packing not in (None, "float32") or self.dtype != torch.float32 or norm.bias or self.stored_in_blocks:
            return self.norm(norm), None
        return RowNorm(norm.kind, norm.eps, None), self.gain(norm)

    def linear(
        self, projection: Projection, gain: Tensor | None = None, rotated: RotatedOutputs | None = None
    ) -> Linear:
        """Inputs scaled by ``gain``, rows of heads as ``rotated`` says. Only one source tensor is alive at a time.
        A value that is packed without a change keeps its type."""
        half = self.packing in HALVES and self._is_half(projection)
        weight = torch.empty(projection.outputs, projection.columns, dtype=torch.bfloat16 if half else self.dtype)
        bias = torch.empty(projection.outputs, dtype=self.dtype) if projection.bias else None
        for kind, place in (("weight", weight), ("bias", bias)):
            at = 0
            for name, rows in zip(projection.names, projection.rows):
                if place is not None:
                    part = self.finite(f"{name}.{kind}")
                    place[at : at + rows].copy_(part if rotated is None else rotated.interleaved(part, at))
                at += rows
        if gain is not None:
            weight.mul_(gain)
        return Linear(weight, bias)

    def _is_half(self, projection: Projection) -> bool:
        stored = (self.source.tensor(f"{name}.weight") for name in projection.names)
        return all(weight.dtype == BF16 for weight in stored)

    def projection(
        self, projection: Projection, gain: Tensor | None = None, rotated: RotatedOutputs | None = None
    ) -> AnyLinear:
        """``linear``, packed where it is asked for, or used as it was packed before."""
        names = tuple(f"{name}.weight" for name in projection.names)
        kept = self.source.packed(names)
        if kept is not None:
            return PackedLinear.of_words(*kept, self._bias(projection, rotated))
        found = self._projection(projection, gain, rotated)
        if isinstance(found, PackedLinear):
            self.made[names] = found
        return found

    def _projection(self, projection: Projection, gain: Tensor | None, rotated: RotatedOutputs | None) -> AnyLinear:
        """Out of the files without a copy of the whole between where that is possible; in 8 bits where the file has
        blocks."""
        if not any(self.source.in_blocks(f"{name}.weight") for name in projection.names):
            packing = self.packing
            if packing is not None and (packing == "float32" or (packing in HALVES and self._is_half(projection))):
                return self._of_parts(projection, gain, rotated, packing)
            return self.packed(self.linear(projection, gain, rotated), self._bias(projection, rotated))
        width = projection.columns // cpu.INT8_BLOCK * cpu.Q8_BYTES
        stacked = torch.empty(projection.outputs, width, dtype=torch.uint8)
        bias = torch.empty(projection.outputs) if projection.bias else None
        at = 0
        for name, rows in zip(projection.names, projection.rows):
            part = self._blocks(f"{name}.weight")
            if rotated is not None:
                part = part.rows(rotated.interleaved(torch.arange(rows), at).numpy())
            stacked[at : at + rows].copy_(torch_of(part.eight_bits()))
            if bias is not None:
                values = self.finite(f"{name}.bias")
                bias[at : at + rows].copy_(values if rotated is None else rotated.interleaved(values, at))
            at += rows
        return PackedLinear.of_blocks(stacked, bias)

    def _of_parts(
        self, projection: Projection, gain: Tensor | None, rotated: RotatedOutputs | None, packing: Packing
    ) -> PackedLinear:
        def weights() -> Iterator[Tensor]:
            for part in self._parts(projection, rotated, "weight"):
                wide = part.to(torch.float32) if packing == "float32" else part
                yield wide if gain is None else wide * gain

        bias = self._bias(projection, rotated)
        return PackedLinear.of_parts(weights(), projection.outputs, projection.columns, bias, packing)

    def _parts(self, projection: Projection, rotated: RotatedOutputs | None, kind: str) -> Iterator[Tensor]:
        at = 0
        for name, rows in zip(projection.names, projection.rows):
            part = self.finite(f"{name}.{kind}")
            yield part if rotated is None else rotated.interleaved(part, at)
            at += rows

    def _bias(self, projection: Projection, rotated: RotatedOutputs | None) -> Tensor | None:
        """[outputs] float32."""
        if not projection.bias:
            return None
        return torch.cat([part.to(torch.float32) for part in self._parts(projection, rotated, "bias")])

    def _blocks(self, name: str) -> Blocks:
        """A weight in blocks; in those of 8 bits where it is stored as numbers."""
        if self.source.in_blocks(name):
            return self.source.blocks(name)
        return Blocks.of(widen(self.source.finite(name)))

    def packed(self, linear: Linear, bias: Tensor | None = None) -> Linear | PackedLinear:
        """``linear`` in the type that the weights of layers and of the LM head are asked for in. ``bias``: the one of
        ``linear``, not rounded to the working type, for a packed weight, as a converted directory gives it."""
        weight, packing = linear.weight, self.packing
        if packing is None:
            return linear
        if packing == "widened" and weight.dtype == torch.float32:
            packing = "float32"
        of_type = {"float32": torch.float32, "bfloat16": torch.bfloat16, "widened": torch.bfloat16}.get(packing)
        kept = PackedLinear.fits(weight) if of_type is None else weight.dtype == of_type
        return PackedLinear(weight, linear.bias if bias is None else bias, packing) if kept else linear

    def layer(self, spec: Layer) -> LayerWeights:
        mixer, mlp = spec.mixer, spec.mlp
        attention = mixer if isinstance(mixer, Attention) else None
        before = self.folded if spec.norm_first else lambda norm: (self.norm(norm), None)
        mixer_norm, mixer_gain = (None, None) if spec.mixer_norm is None else before(spec.mixer_norm)
        mlp_norm, mlp_gain = before(spec.mlp_norm)
        after = (None if norm is None else self.norm(norm) for norm in (spec.mixer_after, spec.mlp_after))
        mixer_after, mlp_after = after
        relative: RelativeWeights | None = None
        if attention is None:
            in_proj = self.projection(mixer.in_proj, mixer_gain)
        elif attention.gate or attention.relative is not None:
            qkv = self._qkv(attention, mixer_gain)
            in_proj, relative = self.packed(qkv), self._relative(attention, qkv)
        else:
            in_proj = self.projection(attention.qkv, mixer_gain, RotatedOutputs.of(attention))
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
            relative=relative,
            entry=None if spec.entry is None else self._entry(spec.entry),
            recurrent=None if isinstance(mixer, Attention) else read_recurrent(mixer, self.vector, self.norm),
        )

    def _qkv(self, mixer: Attention, gain: Tensor | None) -> Linear:
        rotated = RotatedOutputs.of(mixer)
        if not mixer.gate:
            return self.linear(mixer.qkv, gain, rotated)
        queries = mixer.query_width
        linear = self.linear(mixer.qkv, gain)
        rows = torch.arange(mixer.qkv.outputs)
        pairs = rows[: 2 * queries].view(mixer.heads, 2, mixer.head_dim)
        behind = torch.cat([pairs[:, 0].reshape(-1), rows[2 * queries :]])
        if rotated is not None:
            behind = rotated.interleaved(behind, 0)
        order = torch.cat([pairs[:, 1].reshape(-1), behind])
        return Linear(linear.weight[order], None if linear.bias is None else linear.bias[order])

    def head(self, name: str) -> AnyLinear:
        """The weight of an LM head, packed where it is asked for, or used as it was packed before."""
        kept = self.source.packed((name,))
        if kept is not None:
            return PackedLinear.of_words(*kept, None)
        found = self._head(name)
        if isinstance(found, PackedLinear):
            self.made[(name,)] = found
        return found

    def _head(self, name: str) -> AnyLinear:
        """No copy lives beside a packed one, and none of all its rows on the way."""
        if self.source.in_blocks(name):
            return PackedLinear.of_blocks(torch_of(np.ascontiguousarray(self.source.blocks(name).eight_bits())))
        stored, packing = self.finite(name), self.packing
        if packing in HALVES and stored.dtype == torch.bfloat16:
            return self.packed(Linear(stored))
        if packing == "float32" or (packing == "int8" and PackedLinear.fits(stored)):
            outputs, inputs = stored.shape
            parts = (stored[at : at + HEAD_ROWS].to(self.dtype) for at in range(0, outputs, HEAD_ROWS))
            return PackedLinear.of_parts(parts, outputs, inputs, None, packing)
        return self.packed(Linear(stored.to(self.dtype, copy=True)))

    def embeddings(self, spec: Embeddings, count: int, head: AnyLinear | None) -> EmbeddingWeights:
        """``head``: the LM head's weight where it is this one too."""
        tokens: Tensor | PackedLinear
        if head is None and self.source.in_blocks(f"{spec.name}.weight"):
            head = self.head(f"{spec.name}.weight")
        if head is not None:
            tokens = head if isinstance(head, PackedLinear) else head.weight
        else:
            stored = self.finite(f"{spec.name}.weight")
            kept = self.packing not in (None, "float32") and stored.dtype in (torch.bfloat16, torch.float16)
            tokens = stored.to(stored.dtype if kept else self.dtype, copy=True)
        table: Tensor | None = None
        if spec.positions is not None:
            first, stored = spec.positions.first, self.vector(f"{spec.positions.name}.weight")
            table = stored[first : first + count]
            if spec.positions.uncounted is not None:  # one row more, behind the others
                table = torch.cat([table, stored[first - 1 : first]])
            if spec.types is not None:
                types = self.vector(f"{spec.types}.weight")
                table = (table[None] + types[:, None]).view(-1, spec.width)
        return EmbeddingWeights(
            tokens,
            None if table is None else table.contiguous(),
            None if spec.norm is None else self.norm(spec.norm),
            None if spec.projection is None else _Reader(self.source, self.dtype).linear(spec.projection),
        )

    def classifier(self, spec: Classifier) -> ClassifierWeights:
        return ClassifierWeights(
            self.packed(self.linear(spec.out)),
            None if spec.dense is None else self.packed(self.linear(spec.dense)),
            None if spec.norm is None else self.norm(spec.norm),
        )

    def masked(self, spec: MaskedHead) -> MaskedWeights:
        return MaskedWeights(
            self.packed(self.linear(spec.dense)), spec.activation, self.norm(spec.norm), self.vector(spec.bias)
        )

    def options(self, spec: OptionHead) -> OptionWeights:
        if isinstance(spec, PointerHead):
            return PointerWeights(self.packed(self.linear(spec.query)), self.packed(self.linear(spec.key)))
        return ChoiceWeights(
            self.vector(f"{spec.types}.weight"),
            self.norm(spec.norm),
            tuple(map(self._choice_layer, spec.layers)),
            self.norm(spec.final_norm),
            self.packed(self.linear(spec.answer)),
            self.packed(self.linear(spec.choice)),
        )

    def _choice_layer(self, spec: ChoiceLayer) -> ChoiceLayerWeights:
        return ChoiceLayerWeights(
            self.norm(spec.norm),
            self.packed(self.linear(spec.query)),
            self.packed(self.linear(spec.key)),
            self.packed(self.linear(spec.value)),
            self.packed(self.linear(spec.out)),
            self.norm(spec.mlp_norm),
            self.packed(self.linear(spec.up)),
            self.packed(self.linear(spec.down)),
        )

    def _entry(self, entry: LayerInput) -> EntryWeights:
        return EntryWeights(self.norm(entry.norm), self.vector(f"{entry.types}.weight"))

    def _relative(self, mixer: Attention, qkv: Linear) -> RelativeWeights | None:
        relative = mixer.relative
        if relative is None:
            return None
        if self.distances is None:
            vectors = self.vector(f"{relative.name}.weight")
            if relative.norm is not None:
                self.norm(relative.norm)(vectors, torch.float32, vectors)
            self.distances = vectors, rows_of_distances(relative, self.span)
        return relative_weights(mixer, qkv, *self.distances)

    def _qk_gain(self, mixer: Attention) -> Tensor | None:
        if mixer.q_norm is None or mixer.k_norm is None:
            return None
        width = mixer.head_dim if mixer.rope is None else mixer.rope.width
        q, k = (
            interleave(self.gain(norm), mixer.head_dim, width).expand(heads, mixer.head_dim)
            for norm, heads in ((mixer.q_norm, mixer.heads), (mixer.k_norm, mixer.kv_heads))
        )
        return torch.cat([q, k]).contiguous()


@dataclass(frozen=True, slots=True)
class RotatedOutputs:
    """The outputs of a projection that are rotated: the first ``count`` are heads of ``head_dim``, of which the first
    ``width`` turn."""

    count: int
    head_dim: int
    width: int

    @classmethod
    def of(cls, mixer: Attention) -> RotatedOutputs | None:
        """None where nothing turns."""
        if mixer.rope is None:
            return None
        return cls((mixer.heads + mixer.kv_heads) * mixer.head_dim, mixer.head_dim, mixer.rope.width)

    def interleaved(self, rows: Tensor, first: int) -> Tensor:
        """``rows`` are the projection's outputs from ``first`` on."""
        count = min(max(self.count - first, 0), rows.shape[0])
        if count == 0:
            return rows
        rotated = interleave(rows[:count], self.head_dim, self.width)
        return rotated if count == rows.shape[0] else torch.cat([rotated, rows[count:]])


def interleave(rows: Tensor, head_dim: int, width: int) -> Tensor:
    """The first ``width`` rows of each head from ``[a0 a1 … b0 b1 …]`` to ``[a0 b0 a1 b1 …]``."""
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    turning = heads[:, :width]
    pairs = turning.reshape(len(heads), 2, width // 2, *rows.shape[1:]).transpose(1, 2).reshape(turning.shape)
    return torch.cat([pairs, heads[:, width:]], dim=1).reshape(rows.shape)


def load_weights(
    source: WeightSource,
    spec: ModelSpec,
    dtype: torch.dtype,
    packing: Packing | None = None,
    made: dict[tuple[str, ...], PackedLinear] | None = None,
) -> ModelWeights:
    """Read everything ``spec`` needs out of ``source``, which may be closed afterwards. ``packing``: of the
    projections of layers and of the LM head, which tied embeddings are rows of. If there is one, other heads are
    packed in float32; other embeddings and norms are not packed. ``made``: takes the packed weights, by the names of
    the weights in each."""
    reader = _Reader(source, dtype, spec.max_positions, packing, made)
    lm_head: AnyLinear | None = None
    own, name = f"{LM_HEAD}.weight" in reader.names, f"{spec.embeddings.name}.weight"
    masked = spec.masked if all(each in reader.names for each in spec.masked_tensors()) else None
    tied = (spec.lm_head == "tied" or masked is not None) and not own
    if own or (tied and (packing is not None or source.in_blocks(name))):
        lm_head = reader.head(f"{LM_HEAD}.weight" if own else name)
    embeddings = reader.embeddings(spec.embeddings, spec.max_positions, lm_head if tied else None)
    if tied and lm_head is None and isinstance(embeddings.tokens, Tensor):
        lm_head = Linear(embeddings.tokens)
    # Heads read a handful of rows: float32 costs nothing and spares the answer one rounding.
    exact = _Reader(source, torch.float32, packing=None if packing is None else "float32")
    found = ModelWeights(
        embeddings=embeddings,
        layers=tuple(map(reader.layer, watched(spec.layers, "loading", "layers", len(spec.layers)))),
        final_norm=None if spec.final_norm is None else reader.norm(spec.final_norm),
        lm_head=lm_head,
        classifier=None if spec.classifier is None else exact.classifier(spec.classifier),
        options=None if spec.options is None else exact.options(spec.options),
        masked=None if masked is None else exact.masked(masked),
        dtype=dtype,
    )
    return replace(found, used=source.used)
