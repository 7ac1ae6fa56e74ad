"""Multinomial logistic regression by L-BFGS.

    loss = Σ weight_i · -log softmax(W x_i + b)[label_i] / Σ weight  +  |W|² / (2 · strength · Σ weight)

``strength`` is scikit-learn's ``C``. The products are those of ``PackedLinear`` in float32, so that a fit has the
same bits with any number of threads. Parameters and gradients are float32; the loss is summed in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from prelude.models.packed import PackedLinear
from prelude.records import dataclass
from prelude.values.arrays import F32, F64, I32

STEPS, PAIRS = 200, 6
TOLERANCE = 1e-5  # of the largest component of the gradient
CLOSE, ROUGH = 1e-4, 1e-3  # the least fall of the loss in a step, as a share
_ARMIJO, _HALVINGS = 1e-4, 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Vectors [n, d], packed for both products of a step. They are centred, which L-BFGS needs to be quick."""

    forward: PackedLinear  # [n outputs, d inputs]
    backward: PackedLinear  # [d outputs, n inputs]

    @classmethod
    def of(cls, vectors: F32, middle: F64) -> Rows:
        centred = (vectors - middle).astype(np.float32)
        turned = np.ascontiguousarray(centred.T)
        return cls(PackedLinear(centred, None, "float32"), PackedLinear(turned, None, "float32"))

    def logits(self, weight: F32, bias: F32) -> F32:
        """[K, n] of ``weight`` [K, d] and ``bias`` [K]."""
        found = self.forward(weight)
        found += bias[:, None]
        return found


def log_shares(logits: F64) -> F64:
    """Log-softmax over the labels, of logits [K, n]."""
    top = logits - logits.max(axis=0)
    found: F64 = top - np.log(np.exp(top).sum(axis=0))
    return found


def fit(
    rows: Rows,
    labels: I32,
    count: int,
    weights: F64,
    strength: float,
    start: F32 | None = None,
    least_fall: float = CLOSE,
) -> F32:
    """Parameters [count * (d + 1)], the biases last. ``labels`` [n] are numbers below ``count``."""
    total, inputs = float(weights.sum()), rows.forward.inputs
    pull, at, shared = 1.0 / (strength * total), np.arange(len(labels)), (weights / total).astype(np.float32)

    def loss(parameters: F32) -> tuple[float, F32]:
        weight, bias = parted(parameters, inputs)
        shares = rows.logits(weight, bias)
        shares -= shares.max(axis=0)
        chosen = shares[labels, at].astype(np.float64)
        np.exp(shares, out=shares)
        sums = shares.sum(axis=0)
        value = float((weights * (np.log(sums.astype(np.float64)) - chosen)).sum()) / total
        shares *= shared / sums
        shares[labels, at] -= shared
        gradient = np.float32(pull) * parameters
        up, down = parted(gradient, inputs)
        rows.backward.add_to(up, shares)
        np.sum(shares, axis=1, out=down)
        return value + pull / 2 * _dot(weight.reshape(-1), weight.reshape(-1)), gradient

    return minimum(loss, np.zeros(count * (inputs + 1), np.float32) if start is None else start, least_fall)


def parted(parameters: F32, inputs: int) -> tuple[F32, F32]:
    """Weight [K, inputs] and bias [K], in the memory of ``parameters``."""
    count = len(parameters) // (inputs + 1)
    return parameters[:-count].reshape(count, inputs), parameters[-count:]


def uncentred(parameters: F32, middle: F64) -> tuple[F64, F64]:
    """Weight [K, d] and bias [K] for vectors as they are."""
    weight, bias = parted(parameters, len(middle))
    wide = weight.astype(np.float64)
    return wide, bias - (wide * middle).sum(axis=1)


def minimum(loss: Callable[[F32], tuple[float, F32]], at: F32, least_fall: float) -> F32:
    """Of a smooth convex function, by L-BFGS with backtracking. ``loss`` gives the value and the gradient."""
    value, gradient = loss(at)
    pairs: list[tuple[F32, F32, float]] = []
    spare = np.empty_like(at)
    for _ in range(STEPS):
        if np.abs(gradient).max() <= TOLERANCE:
            break
        direction = _direction(gradient, pairs, spare)
        slope = _dot(direction, gradient)
        size = 1.0 if pairs else 1.0 / max(1e-12, np.sqrt(_dot(gradient, gradient)))
        for _ in range(_HALVINGS):
            there = at + np.float32(size) * direction
            found, steeper = loss(there)
            if found <= value + _ARMIJO * size * slope:
                break
            size /= 2
        else:
            break  # the rounding of the loss is reached
        moved, turned = there - at, steeper - gradient
        curved = _dot(moved, turned)
        if curved > 1e-12 * _dot(turned, turned):
            pairs = [*pairs[1 - PAIRS :], (moved, turned, curved)]
        fell, at, value, gradient = value - found, there, found, steeper
        if fell <= least_fall * abs(value):
            break
    return at


def _direction(gradient: F32, pairs: list[tuple[F32, F32, float]], spare: F32) -> F32:
    """The two loops of L-BFGS."""
    found = -gradient
    shares = []
    for moved, turned, curved in reversed(pairs):
        share = _dot(moved, found) / curved
        shares.append(share)
        found -= np.multiply(turned, np.float32(share), out=spare)
    if pairs:
        _, turned, curved = pairs[-1]
        found *= np.float32(curved / _dot(turned, turned))
    for (moved, turned, curved), share in zip(pairs, reversed(shares)):
        found += np.multiply(moved, np.float32(share - _dot(turned, found) / curved), out=spare)
    return found


def _dot(x: F32, y: F32) -> float:
    """By numpy's own sum, which no number of threads changes."""
    return float(np.einsum("i,i->", x, y))
