"""Rotary position embeddings as a config describes them: base, scaling, inverse frequencies.

transformers 4 writes ``rope_theta`` and ``rope_scaling``; transformers 5 writes one object
``rope_parameters``. Both are read, and files that say both must say the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from prelude.errors import ModelError, UnsupportedModel, shown
from prelude.models.fields import Fields
from prelude.records import dataclass

if TYPE_CHECKING:
    from prelude.values.arrays import C64, F64

RopeKind = Literal["linear", "llama3", "yarn", "longrope"]
MAX_POSITIONS = 1 << 24


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """A change to the plain inverse frequencies; the fields that its ``kind`` does not use keep their defaults."""

    kind: RopeKind
    factor: float
    original_max_positions: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()
    """Longrope: the divisor of each plain inverse frequency."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first ``width`` values of a head, an even number, the second half of them paired with
    the first."""

    theta: float
    width: int
    scaling: RopeScaling | None = None

    def frequencies(self) -> tuple[F64, float]:
        """Inverse frequencies [width / 2], and the factor on cosine and sine.

        In float64 from the exponents on, as the angles are that are made of them: of float32, whose last bit far
        positions multiply, there is one rounding, that of cosine and sine.
        """
        import numpy as np

        plain = 1.0 / np.power(self.theta, np.arange(0, self.width, 2) / self.width)
        return _scaled(plain, self)

    def turns(self, first: int, last: int) -> C64:
        """[last - first, width / 2]: ``cos + i sin`` of positions from ``first`` on, times the factor. Computed in
        float64 and rounded once."""
        import numpy as np

        frequencies, factor = self.frequencies()
        angles = np.outer(np.arange(first, last), frequencies)
        turns: C64 = ((np.cos(angles) + 1j * np.sin(angles)) * factor).astype(np.complex64)
        return turns


@dataclass(frozen=True, slots=True)
class Ropes:
    """Rotary positions as a config describes them, of contexts of up to ``positions`` tokens."""

    rope: Rope
    positions: int
    longer: Ropes | None = None
    """Those of longer contexts, if they turn every token by other angles."""


def parse_rope(
    fields: Fields,
    head_dim: int,
    max_positions: int,
    partial: bool = False,
    longrope: tuple[str, ...] = (),
    turning: float = 1.0,
) -> Ropes:
    """Return the one rope out of a config of either spelling. ``partial``: the family's classes read
    ``partial_rotary_factor``, which is ``turning`` if the file does not say. ``longrope``: other names that mean
    it."""
    rope = Fields(_merged(fields), f"{fields.where}: rope parameters", fields.defaults)
    theta = rope.number("rope_theta", 1.0, 1e15)
    turning = rope.number("partial_rotary_factor", 0.0, 1.0, turning)
    if turning != 1.0 and not partial:
        raise UnsupportedModel(f"{fields.where}: partial_rotary_factor other than 1 is not supported")
    width = int(head_dim * turning)
    if width < 2 or width % 2:
        raise rope.wrong("partial_rotary_factor", f"of heads of {head_dim} values an even number has to turn")
    kind = rope.text("rope_type", "default")
    if kind == "default":
        return Ropes(Rope(theta, width), max_positions)
    if kind == "longrope" or kind in longrope:
        return _longrope(fields, rope, theta, width, max_positions)
    if kind not in ("linear", "llama3", "yarn"):
        raise UnsupportedModel(
            f"{fields.where}: unsupported: rope_type {shown(kind)}; supported are default, linear, llama3, yarn and "
            "longrope"
        )
    scaling = _scaling(rope, kind, max_positions)
    return Ropes(Rope(theta, width, scaling), _stretched(fields, scaling, max_positions))


def _longrope(fields: Fields, rope: Fields, theta: float, width: int, max_positions: int) -> Ropes:
    """A text longer than the original context turns every token by other angles than a shorter one. A prefix that
    texts of any length share needs one kind of angles, so the context ends at the original one unless a longer one is
    asked for."""
    original = fields.get("original_max_position_embeddings", None)
    if original is None:
        original = rope.integer("original_max_position_embeddings", 1, MAX_POSITIONS, max_positions)
    else:
        original = fields.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
    factor = max_positions / original
    if rope.get("factor", None) is not None:
        factor = rope.number("factor", 0.0, 1e6)
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    if rope.get("attention_factor", None) is not None:
        attention = rope.number("attention_factor", 0.0, 1e3)

    def scaling(key: str) -> RopeScaling:
        factors = rope.get(key)
        good = isinstance(factors, list) and len(factors) == width // 2
        if not good or not all(type(one) in (int, float) and 0 < one <= 1e6 for one in factors):
            raise rope.wrong(key, f"a list of {width // 2} numbers above 0 is needed, one for each pair that turns")
        return RopeScaling(
            "longrope", factor, original, attention_factor=attention, factors=tuple(float(one) for one in factors)
        )

    short, long = (Rope(theta, width, scaling(f"{length}_factor")) for length in ("short", "long"))
    if original >= max_positions:
        return Ropes(short, max_positions)
    return Ropes(short, original, Ropes(long, max_positions))


def _merged(fields: Fields) -> dict[str, Any]:
    """Return the one rope object that the two spellings describe together."""
    merged: dict[str, Any] = {}
    sources: list[dict[str, Any]] = []
    for key in ("rope_parameters", "rope_scaling"):
        value = fields.get(key, None)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise fields.wrong(key, "an object is needed")
        if any(isinstance(item, dict) for item in value.values()):
            raise UnsupportedModel(f"{fields.where}: unsupported: {key} with one entry per layer type")
        source = dict(value)
        old = source.pop("type", None)  # the spelling before rope_type
        if old is not None and source.setdefault("rope_type", old) != old:
            raise ModelError(
                f"{fields.where}: {key} says type {shown(old)} and rope_type {shown(source['rope_type'])}"
            )
        sources.append(source)
    top = ("rope_theta", "partial_rotary_factor")
    sources.append({key: fields.values[key] for key in top if fields.values.get(key) is not None})
    for source in sources:
        for key, value in source.items():
            if merged.setdefault(key, value) != value and value == value:
                raise ModelError(
                    f"{fields.where}: {key} is given twice, as {shown(merged[key])} and as {shown(value)}"
                )
    return merged


def _scaling(rope: Fields, kind: str, max_positions: int) -> RopeScaling:
    factor = rope.number("factor", 0.0, 1e6)
    if factor < 1.0:
        raise rope.wrong("factor", "it must be at least 1")
    if kind == "linear":
        return RopeScaling("linear", factor, max_positions)
    original = rope.integer("original_max_position_embeddings", 1, MAX_POSITIONS, max_positions)
    if kind == "llama3":
        low = rope.number("low_freq_factor", 0.0, 1e6)
        high = rope.number("high_freq_factor", 0.0, 1e6)
        if high <= low:
            raise rope.wrong("high_freq_factor", f"it must be above low_freq_factor = {low:g}")
        return RopeScaling("llama3", factor, original, low, high)
    fast, slow = (rope.number(key, 0.0, 1e6, default) for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    if fast < slow:
        raise rope.wrong("beta_fast", f"it must be at least beta_slow = {slow:g}")
    return RopeScaling(
        "yarn",
        factor,
        original,
        attention_factor=_yarn_attention(rope, factor),
        beta_fast=fast,
        beta_slow=slow,
        truncate=rope.boolean("truncate", True),
    )


def _stretched(fields: Fields, scaling: RopeScaling, max_positions: int) -> int:
    """Return the longest context. The recipe of Qwen's model cards adds YaRN's ``rope_scaling`` and leaves
    ``max_position_embeddings`` as it was: the context is then ``factor`` times the original one that it names."""
    if scaling.kind != "yarn" or "original_max_position_embeddings" not in _merged(fields):
        return max_positions
    return min(MAX_POSITIONS, max(max_positions, int(scaling.factor * scaling.original_max_positions)))


def get_mscale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's factor of cosine and sine: the rule of the paper (arXiv 2309.00071)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _yarn_attention(rope: Fields, factor: float) -> float:
    """Return the factor of cosine and sine; the paper's rule if the file has none."""
    if rope.get("attention_factor", None) is not None:
        return rope.number("attention_factor", 0.0, 1e3)
    if rope.get("mscale", None) and rope.get("mscale_all_dim", None):
        of_all = get_mscale(factor, rope.number("mscale_all_dim", 0.0, 1e3))
        return get_mscale(factor, rope.number("mscale", 0.0, 1e3)) / of_all
    return get_mscale(factor)


def _scaled(plain: F64, rope: Rope) -> tuple[F64, float]:
    """Return the inverse frequencies that the scaling makes of ``plain`` ones, and the factor."""
    import numpy as np

    scaling, theta, width = rope.scaling, rope.theta, rope.width
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "longrope":
        return plain / np.array(scaling.factors), scaling.attention_factor
    original = scaling.original_max_positions
    if scaling.kind == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        wavelengths = 2 * math.pi / plain
        smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
        return (1 - smooth) * plain / scaling.factor + smooth * plain, 1.0
    first, last = (
        width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = np.clip((np.arange(width // 2) - first) / (last - first if first != last else 0.001), 0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp), scaling.attention_factor
