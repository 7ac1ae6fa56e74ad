"""EngineConfig: the limits of an engine in one frozen value, checked for consistency when it is constructed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from prelude.errors import ConfigError
from prelude.records import dataclass, fields, replace
from prelude.tasks import CacheMode, strict_keywords
from prelude.values.policy import Policy

CPU_KV_BYTES = 256 << 20  # the default pool of a CPU if the system does not report its free memory
MAX_BLOCK_SIZE = 4096  # limit of the pool's allocator
MAX_THREADS = 1024  # limit of the kernels' pool
Quantization: TypeAlias = Literal["int8"]
_FROM_ZERO = ("defer_steps", "question_plan_bytes", "prefix_states", "host_kv_bytes")
_SECONDS_AND_SHARES = {"oneshot_share": (0.001, 1.0), "hang_seconds": (0.01, 1e9)}


def _check_fields(config: EngineConfig | ExpertConfig) -> None:
    """Check each field alone. A name of a policy or of attention is looked up when it is used."""
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if name == "expert":
            continue
        if name in ("prefix_cache", "fold", "deterministic"):
            if not isinstance(value, bool):
                raise ConfigError(f"{name} must be True or False, got {value!r}")
        elif name == "quantization":
            if value not in (None, *get_args(Quantization)):
                raise ConfigError(f"quantization={value!r} is not one of None, 'int8'")
        elif name == "overlap":
            if value is not None and not isinstance(value, bool):
                raise ConfigError(f"overlap must be True, False or None, got {value!r}")
        elif name in ("attention", "policy", "decode_policy"):
            policy = name != "attention" and isinstance(value, Policy) and not isinstance(value, type)
            if not policy and not isinstance(value, str):
                raise ConfigError(f"{name}={value!r} is neither a name nor a Policy")
        elif name == "cost_model":
            if value is not None and not isinstance(value, str | Path):
                raise ConfigError(f"cost_model={value!r} is not a path")
        elif name == "max_memory" and isinstance(value, float):
            _number(name, value, 0.001, 1.0)
        elif name in _SECONDS_AND_SHARES:
            _number(name, value, *_SECONDS_AND_SHARES[name])
        elif name == "default_cache":
            if value not in get_args(CacheMode):
                raise ConfigError(f"default_cache must be 'auto', 'always' or 'never', got {value!r}")
        elif value is not None:
            _positive(name, value, least=0 if name in _FROM_ZERO else 1)


def _number(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ConfigError(f"{name}={value!r} is not a number; it takes {least:g} to {most:g}")
    if not least <= value <= most:
        raise ConfigError(f"{name}={value} is out of range; it takes {least:g} to {most:g}")


def _positive(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        kind = "not a finite number" if isinstance(value, float) and not math.isfinite(value) else "not an integer"
        raise ConfigError(f"{name}={value!r} is {kind}; it must be an integer of at least {least}")
    if not least <= value < 1 << 62:
        raise ConfigError(f"{name}={value} is out of range; it must be an integer of at least {least}")


@strict_keywords
@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """Limits that few engines change, given as ``EngineConfig(expert=ExpertConfig(...))``. Numbers are tokens unless
    another unit is named. A value that is out of range raises ``ConfigError``.

    Steps

    ``group_tokens``          the most tokens that OneShot requests behind the first one bring to a step, so that a
                              short request does not wait for a long one beside it
    ``max_step_requests``     the most requests of one step
    ``logits_bytes``          temporary memory of a step for rows over the vocabulary
    ``unhealthy_after``       after so many failed steps in a row the engine is unhealthy and all waiting requests
                              fail
    ``hang_seconds``          after a step of so many seconds ``health()`` reports it and all waiting requests fail

    KV pool and prefixes

    ``block_size``            tokens of one KV block
    ``kv_blocks``             blocks of the KV pool; ``None``: as many as ``kv_bytes`` hold
    ``host_kv_tokens``        the shortest run of a prompt that comes back from host memory; a shorter one is computed
                              again
    ``prefix_states``         of how many cached prefixes a model with recurrent layers keeps the state; ``None``: as
                              many as take an eighth of the memory that the weights leave, 256 at most
    ``fold``                  a prefix that requests of one step share is computed once
    ``defer_steps``           the most steps that a request waits for another one that computes their common prefix,
                              if the two cannot run in one step; 0: it never waits
    ``defer_tokens``          the shortest common prefix that a request waits for

    Requests

    ``max_prompt_chars``      a longer text is refused before it is tokenised; ``None``: 16 for each token of
                              ``max_length``
    ``max_labels``            labels of one question
    ``max_top``               alternatives of one token
    ``max_queued_tokens``     bound of the queue; ``QueueFull`` beyond it, at once
    ``question_plan_bytes``   bytes of prepared questions that are kept for later decisions, estimated from above; 0:
                              none
    ``prepare_threads``       threads that prepare long prompts off the caller's event loop
    ``decode_policy``         the order of the prompts of Decode requests: a name or a Policy object
    ``cost_model``            the file of a cost model to start from, written by ``engine.cost_model.save``
    """

    group_tokens: int = 8192
    max_step_requests: int = 512
    logits_bytes: int = 256 << 20
    unhealthy_after: int = 8
    hang_seconds: float = 600.0
    block_size: int = 16
    kv_blocks: int | None = None
    host_kv_tokens: int = 64
    prefix_states: int | None = None
    fold: bool = True
    defer_steps: int = 8
    defer_tokens: int = 64
    max_prompt_chars: int | None = None
    max_labels: int = 4096
    max_top: int = 256
    max_queued_tokens: int = 1 << 31
    question_plan_bytes: int = 12 << 20
    prepare_threads: int = 2
    decode_policy: str | Policy = "first_come_first_served"
    cost_model: str | Path | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.block_size > MAX_BLOCK_SIZE:
            raise ConfigError(f"block_size={self.block_size} is out of range; it takes 1 to {MAX_BLOCK_SIZE}")


@strict_keywords
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and switches of an engine. Numbers are tokens unless another unit is named; ``None`` takes the model's
    value. A value that is out of range, or contradicts another, raises ``ConfigError``.

    Sizes

    ``max_length``            the longest sequence, prompt and output together; at most ``max_step_tokens`` less
                              ``max_running``
    ``max_step_tokens``       the most tokens of one step, all classes together
    ``max_running``           the most Decode requests that hold a row at the same time
    ``chunk_tokens``          the most tokens of one Decode prompt in a step beside running rows
    ``max_memory``            the most memory of weights, KV blocks and a step together, on a CPU the process's, on a
                              GPU the device's: bytes, or a share in (0, 1] of the free memory. A profile run at load
                              measures a step of full size, and the rest becomes KV blocks. ``None``: the free memory.
                              If the longest prompt does not fit, ``max_length`` is lowered, or refused if it was set;
                              see docs/MEMORY.md
    ``kv_bytes``              bytes of the KV pool. The default on a CPU is a quarter of the memory that the weights
                              leave, or up to a half if one sequence of ``max_length`` needs it, but no more than
                              ``max_running`` of them fill (256 MiB if the free memory is not known). A page
                              takes memory from its first write on. The default on a GPU is the memory that the
                              weights and a step of full size leave
    ``host_kv_bytes``         host memory for KV blocks that the prefix cache evicts, which come back if a later
                              prompt needs them; 0: they are dropped. Pinned memory on a GPU. On a CPU it is part of
                              ``max_memory``, and a larger pool does the same at less cost; see docs/MEMORY.md

    Execution

    ``prefix_cache``          reuse of prefixes across steps
    ``default_cache``         the mode that ``cache="auto"`` of a task stands for: "auto", "always" or "never"
    ``overlap``               plan, pack and submit the next step while the executor runs this one; ``None``: on CUDA
                              alone. On a CPU steps then run in a thread of their own
    ``threads``               of a step on a CPU, 1 to 1,024, no more run than the process has processors;
                              ``None``: OMP_NUM_THREADS, else one for each core that the process may use
    ``attention``             a backend by name: runs on a CPU, flashinfer or keys on CUDA. auto: the
                              environment's PRELUDE_ATTENTION, else the fastest backend that serves the model
    ``deterministic``         the bits of a row do not depend on the other rows
    ``tensor_parallel``       processes that share one model, each with a part of every layer. The caller starts them,
                              and all but one call ``prelude.serve_rank``; see docs/PARALLEL.md
    ``quantization``          "int8": the weights of the layers and of the LM head in 8 bits, embeddings
                              that are the head too among them, on a CPU; see docs/CPU.md. ``None``: in ``dtype``

    Requests

    ``max_questions``         questions of one decision; ``None``: as many as fit one step with all their tokens
    ``max_queued_requests``   bound of the queue; ``QueueFull`` beyond it, at once
    ``oneshot_share``         the share of a step's time, in (0, 1], that OneShot requests may take beside running
                              rows; docs/SERVICES.md has measured tokens of chats and decisions by share
    ``policy``                the order of OneShot requests: a name or a Policy object; see docs/PLANNING.md
    ``expert``                the limits that few engines change (``ExpertConfig``)
    """

    GROUP: ClassVar = ("expert", ExpertConfig)

    max_length: int | None = None
    max_step_tokens: int | None = None
    max_running: int = 64
    chunk_tokens: int = 512
    max_memory: int | float | None = None
    kv_bytes: int | None = None
    host_kv_bytes: int = 0
    prefix_cache: bool = True
    default_cache: CacheMode = "auto"
    overlap: bool | None = None
    threads: int | None = None
    attention: str = "auto"
    deterministic: bool = False
    tensor_parallel: int = 1
    quantization: Quantization | None = None
    max_questions: int | None = None
    max_queued_requests: int = 1 << 20
    oneshot_share: float = 0.7
    policy: str | Policy = "shortest_prefill_first"
    expert: ExpertConfig = ExpertConfig()

    def __post_init__(self) -> None:
        if not isinstance(self.expert, ExpertConfig):
            raise ConfigError(f"expert={self.expert!r} is not an ExpertConfig")
        _check_fields(self)
        if self.threads is not None and self.threads > MAX_THREADS:
            raise ConfigError(f"threads={self.threads} is out of range; it takes 1 to {MAX_THREADS}")
        if self.max_running > self.expert.max_step_requests:
            raise ConfigError(
                f"max_running={self.max_running} is above expert.max_step_requests={self.expert.max_step_requests}: "
                "every running request has a row in each step; lower it or raise that"
            )

        if self.host_kv_bytes and not self.prefix_cache:
            raise ConfigError(
                f"host_kv_bytes={self.host_kv_bytes} is for blocks of the prefix cache, and prefix_cache=False; set "
                "one of them otherwise"
            )
        if self.host_kv_bytes and self.tensor_parallel > 1:
            raise ConfigError(
                f"host_kv_bytes={self.host_kv_bytes} is for models in one process, and tensor_parallel="
                f"{self.tensor_parallel}; set it to 0"
            )

    # Presets; any field can be given as well.

    @classmethod
    def chat(cls, **limits: Any) -> EngineConfig:
        """Serve interactive text: small batches and small chunks, so that the next token of each text comes soon."""
        return cls(**{"max_running": 32, "chunk_tokens": 128, "oneshot_share": 0.1, **limits})

    @classmethod
    def bulk(cls, **limits: Any) -> EngineConfig:
        """Serve offline work: large batches, prompts in few chunks, most of the time for decisions."""
        usual = {"max_running": 256, "chunk_tokens": 4096, "oneshot_share": 0.9}
        return cls(**{**usual, "expert": ExpertConfig(max_step_requests=1024), **limits})

    def changed(self, **values: Any) -> EngineConfig:
        """Return a copy with other values of fields of its own or of ``expert``."""
        inner = {name: values.pop(name) for name in ExpertConfig.__dataclass_fields__ if name in values}
        expert = replace(self.expert, **inner) if inner else self.expert
        return replace(self, **{"expert": expert, **values})

    # The limits for a model of ``max_positions``. ``ConfigError`` if they contradict each other.

    def resolved_length(self, max_positions: int) -> int:
        """Return the longest sequence, prompt and output together."""
        if self.max_length is not None and self.max_length > max_positions:
            raise ConfigError(
                f"max_length={self.max_length} is above the model's {max_positions} positions; lower it"
            )
        longest = max_positions if self.max_length is None else self.max_length
        if self.max_step_tokens is None:
            return longest
        if self.max_step_tokens <= self.max_running:
            raise ConfigError(
                f"max_step_tokens={self.max_step_tokens} leaves no token for a prompt beside "
                f"max_running={self.max_running} rows; raise it or lower max_running"
            )
        return min(longest, self.max_step_tokens - self.max_running)

    def resolved_step(self, max_positions: int) -> int:
        """Return tokens of one step: the longest prompt fits beside a full set of running rows."""
        longest = self.resolved_length(max_positions)
        return max(8192, longest + self.max_running) if self.max_step_tokens is None else self.max_step_tokens

    def host_entries(self, block_bytes: int) -> int:
        """KV blocks that ``host_kv_bytes`` holds. ``ConfigError`` if it is given and holds none."""
        if self.host_kv_bytes and self.host_kv_bytes < block_bytes:
            raise ConfigError(f"host_kv_bytes={self.host_kv_bytes} does not hold a KV block of {block_bytes} bytes")
        return self.host_kv_bytes // block_bytes if self.host_kv_bytes else 0

    def check_host_kv(self, *, recurrent: bool, encoder: bool) -> None:
        """Raise ``ConfigError`` if a model of this kind keeps no prefixes in host memory."""
        if self.host_kv_bytes and (recurrent or encoder):
            why = (
                "a prefix of a model with recurrent layers needs its state as well, which is not copied"
                if recurrent
                else "an encoder keeps no keys and values"
            )
            raise ConfigError(f"host_kv_bytes={self.host_kv_bytes}: {why}; set it to 0")

    def oneshot_tokens(self, max_positions: int) -> int:
        """Return the most tokens of a OneShot request: a step less a full set of running rows."""
        return self.resolved_step(max_positions) - self.max_running
