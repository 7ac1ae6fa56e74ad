"""Recurrent layers on a CPU: their weights, the state that they keep of a sequence, and their forward pass over a
step.

    gated delta rule   in_proj ─ convolution, SiLU ─ lengths of q and k ─▶ S ─ norm, gate ─▶ out
    short convolution  in_proj ─ B u ─ convolution ─ times C ─▶ out

A sequence's state is float32 with weights of any type: for each layer the last inputs of its convolution and, of
the gated delta rule, a matrix for each value head. The states of all sequences lie in one tensor [entries, values].
The kernels go through the tokens one after another, so the bits of a row do not depend on where its prompt was cut,
forked or continued. The form with matrix products over chunks of tokens is not used: its sums depend on where a chunk
begins, and the rule is about 2 % of the arithmetic of a layer whose heads have 128 values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from prelude._native import cpu
from prelude._native.cpu import Sequences
from prelude.models.kernels import address, is_half
from prelude.models.ops import RowNorm
from prelude.models.spec import GatedDelta, ModelSpec, Norm, Recurrent, ShortConv

_F32 = 4  # bytes


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    spec: GatedDelta
    conv: Tensor  # [kernel, channels] float32, as the others
    rate: Tensor  # [value_heads]: exp(A_log)
    offset: Tensor  # [value_heads]: dt_bias
    gain: Tensor  # [value_dim]

    def tensors(self) -> list[Tensor]:
        return [self.conv, self.rate, self.offset, self.gain]


@dataclass(frozen=True, slots=True)
class ConvWeights:
    spec: ShortConv
    conv: Tensor  # [kernel, channels] float32
    bias: Tensor | None  # [channels] float32

    def tensors(self) -> list[Tensor]:
        return [self.conv] if self.bias is None else [self.conv, self.bias]


def read_recurrent(
    mixer: Recurrent, vector: Callable[[str], Tensor], norm: Callable[[Norm], RowNorm]
) -> DeltaWeights | ConvWeights:
    """``vector`` and ``norm`` read weights of a checkpoint as float32."""
    part = "conv1d" if isinstance(mixer, GatedDelta) else "conv"
    conv = vector(f"{mixer.name}.{part}.weight")[:, 0].t().contiguous()
    if isinstance(mixer, ShortConv):
        return ConvWeights(mixer, conv, vector(f"{mixer.name}.conv.bias") if mixer.bias else None)
    gain = norm(mixer.norm).gain
    if gain is None:
        raise TypeError("the norm of a gated delta rule has no gain")
    return DeltaWeights(mixer, conv, vector(f"{mixer.name}.A_log").exp_(), vector(f"{mixer.name}.dt_bias"), gain)


def shape_of(mixer: GatedDelta) -> tuple[int, int, int, int]:
    """As ``DeltaShape`` of the kernels."""
    return mixer.key_heads, mixer.value_heads, mixer.key_dim, mixer.value_dim


def state_values(mixer: Recurrent) -> int:
    """float32 values that a layer keeps of a sequence: the window of its convolution, then its matrices."""
    window = (mixer.kernel - 1) * mixer.channels
    return window + (cpu.state_floats(shape_of(mixer)) if isinstance(mixer, GatedDelta) else 0)


def state_bytes(spec: ModelSpec) -> int:
    """Bytes of one sequence's state in all layers; 0 for a model without recurrent layers."""
    return _F32 * sum(map(state_values, spec.recurrent))


@dataclass(frozen=True, slots=True)
class States:
    """The states of sequences, [entries, values] float32, and where in an entry each recurrent layer's begins."""

    tensor: Tensor
    begins: tuple[int, ...]

    @classmethod
    def of(cls, spec: ModelSpec, tensor: Tensor) -> States:
        return cls(tensor, tuple(accumulate(map(state_values, spec.recurrent), initial=0)))


class StepStates:
    """A step's sequences over ``States``, for all recurrent layers. One row of ``projected`` is the result of a
    layer's ``in_proj`` for a token."""

    def __init__(self, states: States, sequences: Sequences) -> None:
        self._states = states
        self._sequences = sequences

    def mix(self, place: int, weights: DeltaWeights | ConvWeights, projected: Tensor, made: Tensor) -> Tensor:
        """The output of the recurrent layer ``place`` (among the recurrent ones) for all tokens, [tokens, width] in
        the memory of ``projected``; every sequence's state moves on. ``made`` [tokens, ``room_of(spec)`` or more]
        float32 is room for it."""
        if isinstance(weights, ConvWeights):
            return self._convolve(place, weights, projected)
        return self._delta(place, weights, projected, made)

    def _convolve(self, place: int, weights: ConvWeights, projected: Tensor) -> Tensor:
        width = weights.spec.channels
        b, c, u = (projected[:, at : at + width] for at in (0, width, 2 * width))
        torch.mul(b, u, out=b)
        states = self._states.tensor
        self._sequences.convolve(
            b.data_ptr(),
            projected.stride(0),
            u.data_ptr(),
            projected.stride(0),
            c.data_ptr(),
            weights.conv.data_ptr(),
            address(weights.bias),
            states.data_ptr() + _F32 * self._states.begins[place],
            states.stride(0),
            width,
            len(projected),
            len(states),
            is_half(projected),
        )
        return u

    def _delta(self, place: int, weights: DeltaWeights, projected: Tensor, made: Tensor) -> Tensor:
        spec, states = weights.spec, self._states.tensor
        channels, values, half = spec.channels, spec.values, is_half(projected)
        at = states.data_ptr() + _F32 * self._states.begins[place]
        self._sequences.delta(
            projected.data_ptr(),
            projected.stride(0),
            projected[:, channels + values :].data_ptr(),
            made.data_ptr(),
            made.stride(0),
            weights.conv.data_ptr(),
            weights.rate.data_ptr(),
            weights.offset.data_ptr(),
            at,
            at + _F32 * (spec.kernel - 1) * channels,
            states.stride(0),
            shape_of(spec),
            len(projected),
            len(states),
            half,
        )
        outputs = made[:, channels - values : channels]
        out = projected[:, :values]
        cpu.gate_rows(
            outputs.data_ptr(),
            made.stride(0),
            False,
            projected[:, channels : channels + values].data_ptr(),
            projected.stride(0),
            out.data_ptr(),
            projected.stride(0),
            half,
            weights.gain.data_ptr(),
            len(projected),
            spec.value_heads,
            spec.value_dim,
            spec.norm.eps,
            True,
        )
        return out


def room_of(spec: ModelSpec) -> int:
    """float32 values of a token that ``StepStates.mix`` works in."""
    rules = (mixer for mixer in spec.recurrent if isinstance(mixer, GatedDelta))
    return max((rule.channels + 2 * rule.value_heads for rule in rules), default=0)


def gate_heads(attended: Tensor, gates: Tensor) -> None:
    """``attended *= sigmoid(gates)``, in place; both [tokens, width] of one dtype."""
    rows, width = attended.size(0), attended.size(1)
    if gates.shape != attended.shape or gates.dtype != attended.dtype or gates.stride(1) != 1:
        raise ValueError(f"gates {gates.dtype} {list(gates.shape)} for {attended.dtype} {list(attended.shape)}")
    half = is_half(attended)
    cpu.gate_rows(
        attended.data_ptr(),
        attended.stride(0),
        half,
        gates.data_ptr(),
        gates.stride(0),
        attended.data_ptr(),
        attended.stride(0),
        half,
        0,
        rows,
        1,
        width,
        0.0,
        False,
    )
