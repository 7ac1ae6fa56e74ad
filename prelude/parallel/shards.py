"""The part of a model that one rank of a tensor-parallel group has: a pure function of the specification.

query heads, MLP inner width    a rank's share of the outputs of ``qkv`` and ``up``, and the same share of the
                                inputs of ``out`` and ``down``
key-value heads                 the same; if there are fewer heads than ranks, each is on several ranks
rows of the vocabulary          a run of the embeddings and of the LM head; on GPUs whole on every rank
all else                        whole on every rank: norms, classification heads
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from prelude.errors import ConfigError, UnsupportedModel
from prelude.models.spec import LM_HEAD, Attention, Layer, Mlp, ModelSpec, Projection
from prelude.records import dataclass, replace

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open runs of indices, ascending."""

_MOST = 64  # the largest size that a message names
INT8_BLOCK = 32
"""Inputs that share a scale in int8. A part that cut a block would have other scales than the whole weight."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a weight that a rank reads: ``runs`` of its axis ``axis``."""

    axis: int
    runs: Runs


@dataclass(frozen=True, slots=True)
class Shard:
    """``spec`` is the network of the rank's own part. Weights without a cut are whole. The rank has the rows
    [first, last) of the ``vocab`` rows of the embeddings."""

    rank: int
    size: int
    spec: ModelSpec
    cuts: dict[str, Cut]
    vocab: int
    first: int = 0

    @property
    def last(self) -> int:
        return self.first + self.spec.embeddings.vocab

    @property
    def widest(self) -> int:
        """The most rows of the vocabulary that a rank has."""
        return -(-self.vocab // self.size)


def check(spec: ModelSpec, size: int, *, int8: bool = False) -> None:
    """Raise ``ConfigError`` or ``UnsupportedModel`` if ``spec`` cannot be divided over ``size`` ranks."""
    where = f"tensor_parallel={size}"
    reason = _unsupported(spec)
    if reason is not None:
        raise UnsupportedModel(f"{where}: unsupported: {reason}; leave tensor_parallel at 1")
    for layer in spec.layers:
        wrong = _misfit(layer, size)
        if wrong is not None:
            fit = [str(n) for n in range(1, min(layer.attention.heads, _MOST) + 1) if _fits(spec, n)]
            takes = ", ".join(fit[:-1]) + " or " * (len(fit) > 1) + fit[-1]
            raise ConfigError(f"{where}: the model has {wrong}; it takes {takes}")
        widths = {"intermediate_size": layer.mlp.inner, "num_attention_heads * head_dim": layer.mixer.out.columns}
        for name, width in widths.items():
            if int8 and width // size % INT8_BLOCK:
                raise ConfigError(
                    f"{where} with quantization='int8': a rank's {width // size} of {name}={width} are no multiple "
                    f"of {INT8_BLOCK}, which share a scale; use fewer ranks, or leave quantization out"
                )
    if spec.embeddings.vocab < size:
        raise ConfigError(f"{where}: the vocabulary has {spec.embeddings.vocab} rows; a rank needs at least one")


def shard(spec: ModelSpec, rank: int, size: int, *, whole_vocabulary: bool = False) -> Shard:
    """The part of rank ``rank`` of ``size``. ``whole_vocabulary``: embeddings and LM head are whole on every rank.
    Raises as ``check`` does."""
    check(spec, size)
    cuts: dict[str, Cut] = {}
    layers = tuple(_layer(layer, rank, size, cuts) for layer in spec.layers)
    vocab = spec.embeddings.vocab
    if whole_vocabulary:
        return Shard(rank, size, replace(spec, layers=layers, longer=None), cuts, vocab)
    first, last = share(vocab, rank, size)
    for name in (spec.embeddings.name, LM_HEAD):
        cuts[f"{name}.weight"] = Cut(0, ((first, last),))
    own = replace(spec, embeddings=replace(spec.embeddings, vocab=last - first), layers=layers, longer=None)
    return Shard(rank, size, own, cuts, vocab, first)


def share(count: int, rank: int, size: int) -> tuple[int, int]:
    """[first, last) of ``count`` things: shares differ by at most one."""
    return count * rank // size, count * (rank + 1) // size


def _unsupported(spec: ModelSpec) -> str | None:
    """Return why a network cannot be divided here."""
    if spec.recurrent:
        return f"layers with a state of each sequence ({type(spec.recurrent[0]).__name__})"
    if spec.bidirectional:
        return "an encoder, whose tokens see those that follow them"
    if spec.options is not None:
        return "a head that reads options together"
    if any(layer.attention.gate or layer.attention.relative is not None for layer in spec.layers):
        return "attention with gates or a relative term"
    beside = spec.embeddings
    parts = (beside.positions, beside.types, beside.norm, beside.projection, *(layer.entry for layer in spec.layers))
    if any(part is not None for part in parts):
        return "embeddings with learned positions, types, a norm or a projection"
    return None


def _misfit(layer: Layer, size: int) -> str | None:
    """Return the count of a layer that ``size`` ranks cannot share."""
    heads, kv_heads, inner = layer.attention.heads, layer.attention.kv_heads, layer.mlp.inner
    if heads % size:
        return f"{heads} query heads (num_attention_heads), which {size} ranks cannot share evenly"
    if kv_heads % size and size % kv_heads:
        return (
            f"{kv_heads} key-value heads (num_key_value_heads), of which {size} is neither a divisor nor a multiple"
        )
    if inner % size:
        return f"{inner} inner values of the MLP (intermediate_size), which {size} ranks cannot share evenly"
    return None


def _fits(spec: ModelSpec, size: int) -> bool:
    return all(_misfit(layer, size) is None for layer in spec.layers)


def _layer(layer: Layer, rank: int, size: int, cuts: dict[str, Cut]) -> Layer:
    return replace(layer, mixer=_attention(layer.attention, rank, size, cuts), mlp=_mlp(layer.mlp, rank, size, cuts))


def _attention(mixer: Attention, rank: int, size: int, cuts: dict[str, Cut]) -> Attention:
    width, heads = mixer.head_dim, mixer.heads // size
    first, last = kv_share(mixer.kv_heads, rank, size)
    keys = mixer.heads * width  # where the keys begin among the outputs of qkv
    values = keys + mixer.kv_heads * width
    queries = (rank * heads * width, (rank + 1) * heads * width)
    runs = (queries, *((at + first * width, at + last * width) for at in (keys, values)))
    return replace(
        mixer,
        heads=heads,
        kv_heads=last - first,
        qkv=_outputs(mixer.qkv, runs, cuts),
        out=_inputs(mixer.out, queries, rank, cuts),
    )


def kv_share(kv_heads: int, rank: int, size: int) -> tuple[int, int]:
    """Return the key-value heads of a rank's query heads; one, which other ranks have too, if there are fewer than
    ranks."""
    if kv_heads >= size:
        return share(kv_heads, rank, size)
    first = rank * kv_heads // size
    return first, first + 1


def _mlp(mlp: Mlp, rank: int, size: int, cuts: dict[str, Cut]) -> Mlp:
    first, last = share(mlp.inner, rank, size)
    halves = (0, mlp.inner) if mlp.gated else (0,)
    return replace(
        mlp,
        inner=last - first,
        up=_outputs(mlp.up, [(at + first, at + last) for at in halves], cuts),
        down=_inputs(mlp.down, (first, last), rank, cuts),
    )


def _outputs(projection: Projection, runs: Iterable[tuple[int, int]], cuts: dict[str, Cut]) -> Projection:
    """Take some of the outputs, counted over all weights of the projection; the cut of each weight into ``cuts``."""
    wanted, rows, at = list(runs), [], 0
    for name, count in zip(projection.names, projection.rows):
        own = _within(wanted, at, at + count)
        for kind in ("weight", "bias") if projection.bias else ("weight",):
            cuts[f"{name}.{kind}"] = Cut(0, own)
        rows.append(sum(last - first for first, last in own))
        at += count
    return replace(projection, rows=tuple(rows))


def _within(runs: Sequence[tuple[int, int]], begin: int, end: int) -> Runs:
    """Return the parts of ``runs`` that lie in [begin, end), counted from ``begin``."""
    cut = ((max(first, begin) - begin, min(last, end) - begin) for first, last in runs)
    return tuple((first, last) for first, last in cut if first < last)


def _inputs(projection: Projection, run: tuple[int, int], rank: int, cuts: dict[str, Cut]) -> Projection:
    """Take some of the inputs. The sum over the ranks has the bias once: rank 0 adds it."""
    for name in projection.names:
        cuts[f"{name}.weight"] = Cut(1, (run,))
    return replace(projection, columns=run[1] - run[0], bias=projection.bias and rank == 0)
