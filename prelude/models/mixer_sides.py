"""A layer on the two sides of its mixer: each side is one native call if the native one knows its operations, else
the same operations one by one, with the same bits.

    before   x ─ norm ─ in_proj ─ norm and rotation of heads ─▶ out
    behind   mixed ─ out ─ + ─▶ x ─ norm ─ up ─ activation, gate ─ down ─ + ─▶ x
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from prelude._native import cpu
from prelude._native.cpu import layer_norm, rotate
from prelude.models.arrays import F32, FLOAT32, Array, aligned, as_type
from prelude.models.ops import ACTIVATIONS, NORMS, RowNorm, activate
from prelude.models.packed import OutLinear, PackedLinear
from prelude.models.spec import Attention
from prelude.models.weights import LayerWeights
from prelude.records import dataclass

_NativeNorm: TypeAlias = tuple[str, float, F32 | None, F32 | None]


class SomeOutputs:
    """Some outputs of a projection, made by a product of more of them: with the bits that all outputs have."""

    __slots__ = ("_first", "_of")

    def __init__(self, of: PackedLinear, first: int) -> None:
        """Take the outputs from ``first`` on, as many as the memory that they go to has."""
        self._of = of
        self._first = first

    def into(self, x: Array, out: Array) -> Array:
        made = self._of.into(x, aligned((len(x), self._of.outputs), out.dtype))
        out[:] = made[:, self._first : self._first + out.shape[1]]
        return out


InProj: TypeAlias = PackedLinear | SomeOutputs


@dataclass(frozen=True, slots=True)
class Rotation:
    """Heads of a row that are normed and rotated: ``first`` heads of ``width`` values stand before them."""

    first: int
    heads: int
    width: int
    eps: float
    gain: F32 | None  # [heads, width] float32

    def native(self) -> tuple[int, int, int, float, F32 | None]:
        return self.first * self.width, self.heads, self.width, self.eps, self.gain

    @classmethod
    def of(cls, layer: LayerWeights, first_head: int, last_head: int, before: int) -> Rotation | None:
        """Heads ``[first_head, last_head)`` of queries and keys, behind ``before`` heads in the rows; None without
        rotation."""
        mixer, gain = layer.spec.attention, layer.qk_gain
        if mixer.rope is None:
            return None
        eps = 0.0 if mixer.q_norm is None else mixer.q_norm.eps
        gain = None if gain is None else gain[first_head:last_head]
        return cls(before, last_head - first_head, mixer.head_dim, eps, gain)


class BeforeMixer:
    """``in_proj`` of the normed rows of x; see the module."""

    __slots__ = ("_in_proj", "_norm", "_rotation", "native")

    def __init__(self, layer: LayerWeights, in_proj: InProj, dtype: np.dtype[Any], rotation: Rotation | None) -> None:
        """``dtype``: of the rows that go out."""
        self._in_proj = in_proj
        self._norm = layer.mixer_norm if layer.spec.norm_first else None
        self._rotation = rotation
        self.native: cpu.BeforeMixer | None = None
        if isinstance(in_proj, PackedLinear) and _reads(in_proj, self._norm, dtype) and _are_native(self._norm):
            turning = None if rotation is None else rotation.native()
            self.native = cpu.BeforeMixer(in_proj.product, _native(self._norm), turning)

    def __call__(
        self,
        x: F32,
        out: Array,
        chunk: int,
        normed: Array,
        table: Array | None = None,
        positions: Array | None = None,
    ) -> None:
        """Map ``x`` [T, hidden] float32 to ``out`` [T, outputs], ``chunk`` rows at a time. ``normed`` [chunk or
        all rows, hidden] is room, of the type of ``out``. ``table`` [positions, width / 2] complex64 if heads
        turn; ``positions`` [T] int64."""
        if self.native is not None:
            self.native(x, out, chunk, normed, table, positions)
            return
        for rows in _slices(len(x), chunk):
            some = part_of(out, rows)
            self._in_proj.into(_read(self._norm, part_of(x, rows), normed), some)
            turn = self._rotation
            if turn is None:
                continue
            if table is None or positions is None:
                raise ValueError("heads that turn need a rope table and positions")
            heads = some.reshape(len(some), some.shape[1] // turn.width, turn.width)[
                :, turn.first : turn.first + turn.heads
            ]
            rotate(heads, turn.gain, turn.eps, table, part_of(positions, rows))


class BehindMixer:
    """Everything behind a layer's mixer, added to x; see the module."""

    __slots__ = ("_layer", "inner", "makes", "native")

    def __init__(self, layer: LayerWeights, dtype: np.dtype[Any]) -> None:
        """``dtype``: of the rows that products read and of the MLP."""
        self._layer = layer
        self.inner = layer.spec.mlp.up.outputs
        """Values of a row of ``up``."""
        self.native: cpu.BehindMixer | None = None
        mlp, first = layer.spec.mlp, layer.spec.norm_first
        out, up, down = layer.out, layer.up, layer.down
        mixer_norm = None if first else layer.mixer_norm
        norms = (mixer_norm, layer.mlp_norm, layer.mixer_after, layer.mlp_after)
        if (
            isinstance(out, PackedLinear)
            and isinstance(up, PackedLinear)
            and isinstance(down, PackedLinear)
            and _are_native(*norms)
            and _reads(up, layer.mlp_norm if first else None, dtype)
            and all(linear.packing in cpu.PACKED_KERNELS for linear in (out, down))
            and mlp.activation in cpu.ACTIVATIONS
            and mlp.activation not in ACTIVATIONS
        ):
            products = out.product, up.product, down.product
            self.native = cpu.BehindMixer(*products, mlp.activation, mlp.gated, first, *map(_native, norms))
        after = layer.mixer_after is not None or layer.mlp_after is not None
        self.makes = after and self.native is not None
        """Whether a product is normed before it is added, and the native call needs room for it."""

    def __call__(self, x: F32, mixed: Array, chunk: int, normed: Array, up: Array, sums: F32 | None) -> None:
        """Adds to ``x`` [T, hidden] float32 in place, for the mixer's output ``mixed`` [T, width]; ``chunk`` rows at
        a time. ``normed`` and ``up`` [chunk or all rows, hidden; outputs] are room of one type, ``sums`` [the same,
        hidden] room of float32 if ``makes``."""
        if self.native is not None:
            self.native(x, mixed, chunk, normed, up, sums)
            return
        layer, mlp = self._layer, self._layer.spec.mlp
        first = layer.spec.norm_first
        for rows in _slices(len(x), chunk):
            part = part_of(x, rows)
            _add(part, layer.out, part_of(mixed, rows), layer.mixer_after)
            if not first and layer.mixer_norm is not None:
                layer.mixer_norm(part, part)
            read = _read(layer.mlp_norm if first else None, part, normed)
            wide = layer.up.into(read, up[: len(part)])
            _add(part, layer.down, activate(wide, mlp.inner, mlp.activation, mlp.gated), layer.mlp_after)
            if not first:
                layer.mlp_norm(part, part)


def part_of(x: Array, rows: slice) -> Array:
    """Return those rows of ``x``, no new view if they are all of them."""
    return x if rows.start == 0 and rows.stop == len(x) else x[rows]


def _slices(rows: int, chunk: int) -> Sequence[slice]:
    return [slice(at, at + chunk) for at in range(0, rows, chunk)]


def _read(norm: RowNorm | None, x: F32, normed: Array) -> Array:
    """Rows of the residual stream as a projection reads them, of the type of ``normed``, which is room for them."""
    if norm is not None:
        return norm(x, normed)
    return as_type(x, normed.dtype)


def _add(x: F32, linear: OutLinear, read: Array, after: RowNorm | None) -> None:
    """``x += linear(read)``, in place; normed before it is added if there is ``after``."""
    if after is None:
        linear.add_to(x, read)
        return
    made = linear(read)
    x += after(made, made)


def _reads(linear: PackedLinear, norm: RowNorm | None, dtype: np.dtype[Any]) -> bool:
    """Whether the native call reads the values that ``linear`` reads. Without a norm it reads float32: products of
    bfloat16 round those themselves, products of int8 do not."""
    return linear.packing in cpu.PACKED_KERNELS and (
        norm is not None or dtype == FLOAT32 or linear.packing == "bfloat16"
    )


def _are_native(*norms: RowNorm | None) -> bool:
    known = {"rms"} | ({"layer"} if NORMS["layer"] is layer_norm else set())
    return all(norm is None or norm.kind in known for norm in norms)


def _native(norm: RowNorm | None) -> _NativeNorm | None:
    return None if norm is None else (norm.kind, norm.eps, norm.gain, norm.bias)


def before_attention(
    layer: LayerWeights, queries: InProj, keys: InProj, dtype: np.dtype[Any]
) -> tuple[BeforeMixer, BeforeMixer, BeforeMixer]:
    """Split attention: all heads at once, queries and their gates alone, keys and values alone. ``queries``
    and ``keys`` are those parts of its projection."""
    mixer: Attention = layer.spec.attention
    gates = mixer.heads if mixer.gate else 0
    both = mixer.heads + mixer.kv_heads
    return (
        BeforeMixer(layer, layer.in_proj, dtype, Rotation.of(layer, 0, both, gates)),
        BeforeMixer(layer, queries, dtype, Rotation.of(layer, 0, mixer.heads, gates)),
        BeforeMixer(layer, keys, dtype, Rotation.of(layer, mixer.heads, both, 0)),
    )
