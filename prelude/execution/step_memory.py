"""The memory of a step beside the weights, the states and the KV pool.

A step's largest intermediates exist for one layer and one run of tokens at a time (``models/transformer.py``), so its
memory is a constant, a number of bytes for each token, and the arrays of its readout:

    fixed + tokens * per_token + readout + rows * row_bytes
"""

from __future__ import annotations

from prelude._native import cpu
from prelude.models.recurrent import room_of
from prelude.models.spec import ModelSpec
from prelude.models.transformer import kept_width
from prelude.records import dataclass

TOKEN_CHUNK = 256
"""Tokens between two attentions at a time. Their activations stay in the second-level cache: longer runs of the
packaged model's products reach 65 Gflop/s on a core, these reach 97."""
_UNIT_ROWS = 192  # of the native attention: pairs of a query and a head on one KV head
_UNITS_A_THREAD = 8
_PAIR_BYTES = 152  # a tuple of an id and a logprob, and the references to all three
_TOKEN_BYTES = 480  # a TokenLogprob, its numbers and its place in the arrays
_HOST_BYTES = 96  # for each token: ids, positions, slots and segments in the arrays of a plan


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes of a step on a CPU; see the module's docstring."""

    fixed: int
    per_token: int
    readout: int  # one chunk of the worst readout that a request may ask for
    row_bytes: int  # of its results, for each row that is read
    measured: bool  # by a profile run; False: from shapes

    def step_bytes(self, tokens: int) -> int:
        """Return the bytes of a step of so many tokens whose rows are all read."""
        return self.fixed + self.readout + tokens * (self.per_token + self.row_bytes)

    def most_tokens(self, room: int, beside: int = 0) -> int:
        """Return the tokens of the largest step that ``room`` bytes hold, with ``beside`` more for each token."""
        return max(0, room - self.fixed - self.readout) // (self.per_token + self.row_bytes + beside)

    @classmethod
    def of_shapes(cls, spec: ModelSpec, itemsize: int, chunk_rows: int, top: int) -> StepMemory:
        """``itemsize``: bytes of a value between two products; ``chunk_rows``: rows that meet the vocabulary at a
        time; ``top``: alternatives of a token that a request may ask for. Queries exist for one run of a long step at
        a time."""
        wide = max(layer.mlp.up.outputs for layer in spec.layers) + 3 * spec.hidden
        chunk = TOKEN_CHUNK * wide * max(itemsize, 4) + query_run(spec) * _query_bytes(spec, itemsize)
        with_head = spec.lm_head is not None
        logits = 3 * chunk_rows * spec.embeddings.vocab * 4 if with_head else 2 * chunk_rows * spec.hidden * 8
        return cls(chunk, _token_bytes(spec, itemsize), logits, _row_bytes(top if with_head else 0), measured=False)


def query_run(spec: ModelSpec) -> int:
    """Tokens whose queries exist at a time in a longer step: whole chunks, with work for every thread to the end of
    their attention, whose units the threads take one after the other."""
    heads = spec.attention
    units = -(-TOKEN_CHUNK * heads.heads // (_UNIT_ROWS * heads.kv_heads)) * heads.kv_heads
    return TOKEN_CHUNK * max(4, -(-_UNITS_A_THREAD * cpu.threads() // units))


def _token_bytes(spec: ModelSpec, itemsize: int) -> int:
    """The residual stream, projections kept for a layer, and the rotation."""
    stream = 4 * (spec.hidden + room_of(spec))
    tables = sum(4 * rope.width for rope in {heads.rope for heads in spec.attentions} if rope is not None)
    return stream + kept_width(spec, cut=True) * itemsize + tables + _HOST_BYTES


def _query_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Queries, gates, and the result of attention if it is apart."""
    return max(heads.in_proj.outputs + heads.query_width for heads in spec.attentions) * itemsize


def _row_bytes(top: int) -> int:
    """Bytes of a row's results: ids and logprobs of the alternatives in the arrays of batch and request, then as
    objects of Python; logprob and rank."""
    return top * (2 * 12 + _PAIR_BYTES) + _TOKEN_BYTES


def from_runs(shapes: StepMemory, short: tuple[int, int], long: tuple[int, int], with_readout: int) -> StepMemory:
    """Fit three runs: (tokens, peak bytes) of two that read one row, and the peak of the first with a chunk of the
    worst readout. A tenth is added, since another run's heap may lie otherwise; no part becomes less than that of
    ``shapes``."""
    (few, small), (many, large) = short, long
    per_token = max(1, (large - small) // max(1, many - few)) + _HOST_BYTES
    fixed = max(0, small - few * per_token)
    return StepMemory(
        max(shapes.fixed, fixed * 11 // 10 + (1 << 20)),
        max(shapes.per_token, per_token) * 11 // 10,
        max(shapes.readout, max(0, with_readout - small) * 11 // 10),
        shapes.row_bytes,
        measured=True,
    )
