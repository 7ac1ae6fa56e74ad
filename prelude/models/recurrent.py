"""Recurrent layers on a CPU: their weights, the state that they keep of a sequence, and their forward pass over a
step.

    gated delta rule   in_proj ─ convolution, SiLU ─ lengths of q and k ─▶ S ─ norm, gate ─▶ out
    short convolution  in_proj ─ B u ─ convolution ─ times C ─▶ out

A sequence's state is float32 with weights of any type: for each layer the last inputs of its convolution and, of
the gated delta rule, a matrix for each value head. The states of all sequences lie in one array [entries, values].
The kernels go through the tokens one after another, so the bits of a row do not depend on where its prompt was cut,
forked or continued. The form with matrix products over chunks of tokens is not used: its sums depend on where a chunk
begins, and the rule is about 2 % of the arithmetic of a layer whose heads have 128 values.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np

from prelude._native import cpu
from prelude._native.cpu import Sequences
from prelude.models.arrays import BF16, F32, Array, narrow, widen
from prelude.models.ops import RowNorm, Weights
from prelude.models.spec import GatedDelta, ModelSpec, Norm, Recurrent, ShortConv
from prelude.records import dataclass

_F32 = 4  # bytes


@dataclass(frozen=True, slots=True)
class DeltaWeights(Weights):
    spec: GatedDelta
    conv: F32  # [kernel, channels] float32, as the others
    rate: F32  # [value_heads]: exp(A_log)
    offset: F32  # [value_heads]: dt_bias
    gain: F32  # [value_dim]


@dataclass(frozen=True, slots=True)
class ConvWeights(Weights):
    spec: ShortConv
    conv: F32  # [kernel, channels] float32
    bias: F32 | None  # [channels] float32


def read_recurrent(
    mixer: Recurrent, vector: Callable[[str], F32], norm: Callable[[Norm], RowNorm]
) -> DeltaWeights | ConvWeights:
    """``vector`` and ``norm`` read weights of a checkpoint as float32."""
    part = "conv1d" if isinstance(mixer, GatedDelta) else "conv"
    conv = vector(f"{mixer.name}.{part}.weight")[:, 0].T.copy()
    if isinstance(mixer, ShortConv):
        return ConvWeights(mixer, conv, vector(f"{mixer.name}.conv.bias") if mixer.bias else None)
    gain = norm(mixer.norm).gain
    if gain is None:
        raise TypeError("the norm of a gated delta rule has no gain")
    return DeltaWeights(mixer, conv, np.exp(vector(f"{mixer.name}.A_log")), vector(f"{mixer.name}.dt_bias"), gain)


def shape_of(mixer: GatedDelta) -> tuple[int, int, int, int]:
    """Return the ``DeltaShape`` of the kernels."""
    return mixer.key_heads, mixer.value_heads, mixer.key_dim, mixer.value_dim


def state_values(mixer: Recurrent) -> int:
    """float32 values that a layer keeps of a sequence: the window of its convolution, then its matrices."""
    window = (mixer.kernel - 1) * mixer.channels
    return window + (cpu.state_floats(shape_of(mixer)) if isinstance(mixer, GatedDelta) else 0)


def state_bytes(spec: ModelSpec) -> int:
    """Return bytes of one sequence's state in all layers; 0 for a model without recurrent layers."""
    return _F32 * sum(map(state_values, spec.recurrent))


@dataclass(frozen=True, slots=True)
class States:
    """The states of sequences, [entries, values] float32, and where in an entry each recurrent layer's begins."""

    values: F32
    begins: tuple[int, ...]

    @classmethod
    def of(cls, spec: ModelSpec, values: F32) -> States:
        return cls(values, tuple(accumulate(map(state_values, spec.recurrent), initial=0)))


class StepStates:
    """A step's sequences over ``States``, for all recurrent layers. One row of ``projected`` is the result of a
    layer's ``in_proj`` for a token."""

    def __init__(self, states: States, sequences: Sequences) -> None:
        self._states = states
        self._sequences = sequences

    def mix(self, place: int, weights: DeltaWeights | ConvWeights, projected: Array, made: F32) -> Array:
        """The output of the recurrent layer ``place`` (among the recurrent ones) for all tokens, [tokens, width] in
        the memory of ``projected``; every sequence's state moves on. ``made`` [tokens, ``room_of(spec)`` or more]
        is room for it."""
        if isinstance(weights, ConvWeights):
            return self._convolve(place, weights, projected)
        return self._delta(place, weights, projected, made)

    def _convolve(self, place: int, weights: ConvWeights, projected: Array) -> Array:
        width = weights.spec.channels
        b, c, u = (projected[:, at : at + width] for at in (0, width, 2 * width))
        if b.dtype == BF16:
            b[:] = narrow(widen(b) * widen(u))
        else:
            np.multiply(b, u, out=b)
        states = self._states
        self._sequences.convolve(b, u, c, weights.conv, weights.bias, states.values, states.begins[place])
        return u

    def _delta(self, place: int, weights: DeltaWeights, projected: Array, made: F32) -> Array:
        spec, states = weights.spec, self._states
        channels, values = spec.channels, spec.values
        self._sequences.delta(
            projected[:, :channels],
            projected[:, channels + values : channels + values + 2 * spec.value_heads],
            made,
            weights.conv,
            weights.rate,
            weights.offset,
            states.values,
            states.begins[place],
            shape_of(spec),
        )
        out, gates = projected[:, :values], projected[:, channels : channels + values]
        cpu.gate(made[:, channels - values : channels], gates, out, weights.gain, spec.norm.eps, silu=True)
        return out


def room_of(spec: ModelSpec) -> int:
    """float32 values of a token that ``StepStates.mix`` works in."""
    rules = (mixer for mixer in spec.recurrent if isinstance(mixer, GatedDelta))
    return max((rule.channels + 2 * rule.value_heads for rule in rules), default=0)
