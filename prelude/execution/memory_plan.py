"""How the memory that an engine may take is divided: weights, states, the largest step, and KV blocks of the rest.

    available or max_memory ─ weights ─ states ─ a step of full size = KV blocks

If the largest step does not fit and the caller set no length, the length is lowered.
"""

from __future__ import annotations

import logging
from typing import Protocol

from prelude._native import cpu
from prelude.errors import InsufficientMemory
from prelude.models.memory import MAX_BLOCKS, default_blocks
from prelude.models.recurrent import room_of
from prelude.models.spec import ModelSpec
from prelude.models.transformer import kept_width
from prelude.records import dataclass, replace
from prelude.values.config import CPU_KV_BYTES, EngineConfig

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
    """Bytes of a step on a CPU. Its largest intermediates exist for one layer and one run of tokens at a time:
    they are fixed + tokens * per_token + readout + rows * row_bytes."""

    fixed: int
    per_token: int
    readout: int  # one chunk of the worst readout that a request may ask for
    row_bytes: int  # of its results, for each row that is read
    measured: bool  # by a profile run; False: from shapes

    def step_bytes(self, tokens: int) -> int:
        """Return the bytes of a step of so many tokens whose rows are all read."""
        return self.fixed + self.readout + tokens * (self.per_token + self.row_bytes)

    def most_tokens(self, room: int, beside: int) -> int:
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


log = logging.getLogger("prelude.engine")
HOST_BYTES = 16 << 20
"""Bytes of the control plane beside the tokenizer: prepared prompts, plans, words that were looked up before."""

SURE_EIGHTHS = 7
"""The share of a length by a profile run, in eighths: another run's peak differs by up to a tenth."""


class Step(Protocol):
    """The memory of a step: ``StepMemory`` on a CPU, ``DeviceStep`` on a GPU."""

    @property
    def measured(self) -> bool: ...

    def step_bytes(self, tokens: int) -> int:
        """Return the bytes of a step of so many tokens whose rows are all read."""
        ...

    def most_tokens(self, room: int, beside: int) -> int:
        """Return the tokens of the largest step that ``room`` bytes hold, with ``beside`` more for each token."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``available``: bytes that the machine has left; None if it does not say. ``held``: bytes of the weights and
    of the states of recurrent layers. ``host``: bytes of the tokenizer and the control plane, which count in the
    caller's own budget. ``block_bytes``: of a KV block over all layers. ``host_kv``: the config's ``host_kv_bytes``
    if they are of the same memory, as on a CPU."""

    config: EngineConfig
    spec: ModelSpec
    available: int | None
    held: int
    host: int
    block_bytes: int
    host_kv: int = 0

    @property
    def budget(self) -> int | None:
        """Bytes for everything; None if nothing bounds them."""
        share = self.config.max_memory
        if share is None:
            return self.available
        if isinstance(share, float):
            return None if self.available is None else int(share * self.available)
        return share if self.available is None else min(share, self.available)

    @property
    def room(self) -> int | None:
        """The memory less weights, states and ``host_kv``; of the caller's own budget, less ``host`` as well."""
        if self.budget is None:
            return None
        return max(0, self.budget - self.held - self.host_kv - (0 if self.config.max_memory is None else self.host))

    @property
    def step_tokens(self) -> int:
        return self.config.resolved_step(self.spec.max_positions)

    def is_close(self, step: Step) -> bool:
        """Whether a step that was reckoned from shapes has to be measured: the caller set a budget, or the step and
        its likely error come near to the memory there is."""
        return self.config.max_memory is not None or (
            self.room is not None and 2 * step.step_bytes(self.step_tokens) > self.room
        )

    def require_weights(self) -> None:
        """Raise ``InsufficientMemory``, before weights are read, if they leave no room for a block."""
        blocks = max(1, self._asked())
        needed = self.held + self.host_kv + blocks * self.block_bytes
        if self.budget is not None and needed > self.budget:
            raise InsufficientMemory(
                f"weights and states ({self.held:,} bytes){self._host_kv} and {blocks} KV blocks need {needed:,} "
                f"bytes, of which {self.budget:,} are there ({self._limit}); lower {self._lower}kv_bytes or "
                "kv_blocks, or choose a smaller dtype",
                needed=needed,
                available=self.budget,
            )

    def fitted(self, step: Step) -> EngineConfig:
        """The config with a length whose steps fit beside a block. ``InsufficientMemory`` if the caller asked for
        a length that does not fit; it names the longest one that does, or, of a measured step, one that another
        run's measure does not refuse."""
        room, config = self.room, self.config
        least = max(self.block_bytes, self._asked() * self.block_bytes)
        if room is None or step.step_bytes(self.step_tokens) + least <= room:
            return config
        fixed = config.expert.kv_blocks is not None or config.kv_bytes is not None or self.spec.bidirectional
        beside = 0 if fixed else self.token_bytes  # a sequence of the longest length has blocks
        tokens = step.most_tokens(room - least, beside)
        length = min(tokens - config.max_running, config.resolved_length(self.spec.max_positions))
        wanted = config.resolved_length(self.spec.max_positions)
        if length < 1:
            advice = f"lower {self._lower}max_running, logits_bytes or kv_bytes, or free memory"
            raise self._too_little(step, 1 + config.max_running, least, advice)
        if config.max_length is not None or config.max_step_tokens is not None:
            if length >= wanted and config.max_step_tokens is None:  # a step may hold fewer prompts than by default
                return replace(config, max_step_tokens=length + config.max_running)
            if step.measured:
                length = max(1, length * SURE_EIGHTHS // 8)
            also = f", beside host_kv_bytes={self.host_kv}" if self.host_kv else ""
            advice = f"the largest max_length that surely fits is {length}{also}"
            raise self._too_little(step, self.step_tokens, least, advice)
        log.warning(
            "max_length is lowered from %d to %d: a step of more tokens does not fit into the %d bytes that the "
            "weights%s leave",
            wanted,
            length,
            room,
            f" and host_kv_bytes={self.host_kv}" if self.host_kv else "",
        )
        return replace(config, max_length=length, max_step_tokens=length + config.max_running)

    def blocks(self, step: Step) -> int:
        """KV blocks beside a step of full size; the config is ``fitted``."""
        if self.spec.bidirectional:
            return 1  # no keys and values are kept, so a block takes no memory
        if self._asked():
            return self._asked()
        room = self.room
        rest = None if room is None else max(0, room - step.step_bytes(self.step_tokens))
        if self.config.max_memory is not None and rest is not None:
            return max(1, min(MAX_BLOCKS, rest // self.block_bytes))
        return default_blocks(
            rest,
            self.block_bytes,
            block_size=self.config.expert.block_size,
            longest=self.config.resolved_length(self.spec.max_positions),
            running=self.config.max_running,
            fallback=CPU_KV_BYTES,
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return self.block_bytes // self.config.expert.block_size

    @property
    def _limit(self) -> str:
        return "free" if self.config.max_memory is None else f"max_memory={self.config.max_memory}"

    @property
    def _host_kv(self) -> str:
        return f", host_kv_bytes ({self.host_kv:,})" if self.host_kv else ""

    @property
    def _lower(self) -> str:
        """What to lower before all else."""
        return "host_kv_bytes, " if self.host_kv else ""

    def _asked(self) -> int:
        """Return blocks that the caller asks for; 0 if the engine chooses."""
        if self.spec.bidirectional:
            return 0
        if self.config.expert.kv_blocks is not None:
            return self.config.expert.kv_blocks
        return 0 if self.config.kv_bytes is None else max(1, self.config.kv_bytes // self.block_bytes)

    def _too_little(self, step: Step, tokens: int, blocks: int, advice: str) -> InsufficientMemory:
        available = self.budget or 0
        held = self.held + (0 if self.config.max_memory is None else self.host)
        needed = held + self.host_kv + step.step_bytes(tokens) + blocks
        return InsufficientMemory(
            f"weights, states and tokenizer ({held:,} bytes){self._host_kv}, a step of {tokens} tokens "
            f"({step.step_bytes(tokens):,}) and KV blocks ({blocks:,}) need {needed:,} bytes, of which "
            f"{available:,} are there ({self._limit}): {advice}",
            needed=needed,
            available=available,
        )
