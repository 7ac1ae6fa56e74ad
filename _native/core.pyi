from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, final

import numpy as np
import numpy.typing as npt

Int32s: TypeAlias = npt.NDArray[np.int32]
# What is taken for int32s: an array or buffer of them (no copy), or other integers (checked and copied).
IntsLike: TypeAlias = Any
# One value for all rows, or one a row.
PerRow: TypeAlias = int | npt.NDArray[Any]

class NativeError(Exception): ...

class OutOfBlocks(NativeError):
    needed: int
    available: int
    def __init__(self, needed: int, available: int) -> None: ...

class BlockError(NativeError, ValueError):
    block: int
    def __init__(self, message: str, block: int) -> None: ...

class ForeignBlock(BlockError): ...
class DoubleFree(BlockError): ...

class NodeError(NativeError, ValueError):
    node: int
    def __init__(self, message: str, node: int) -> None: ...

class StaleNode(NodeError): ...
class ConcurrentUse(NativeError, RuntimeError): ...

class AuditError(NativeError):
    counts: dict[str, int]
    def __init__(self, message: str, counts: dict[str, int]) -> None: ...

@final
class BlockAllocator:
    def __init__(self, num_blocks: int, block_size: int = 16) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    @property
    def num_used(self) -> int: ...
    @property
    def num_cached(self) -> int: ...
    def allocate(self, n: int) -> Int32s: ...
    def release(self, blocks: IntsLike, generations: npt.NDArray[np.uint32] | None = None) -> None: ...
    def retain(self, blocks: IntsLike, generations: npt.NDArray[np.uint32] | None = None) -> None: ...
    def references(self, block: int) -> int: ...
    def generations(self, blocks: IntsLike) -> npt.NDArray[np.uint32]: ...
    def audit(self) -> None: ...

@final
class Match:
    @property
    def node(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def promised(self) -> int: ...
    @property
    def blocks(self) -> Int32s: ...

@final
class Inserted:
    @property
    def node(self) -> int: ...
    @property
    def num_taken(self) -> int: ...
    @property
    def duplicates(self) -> Int32s: ...

class NodeDump(TypedDict):
    node: int
    parent: int
    children: list[int]
    block: int
    depth: int
    tokens: Int32s
    salt: int
    state: Literal["ready", "promised"]
    protected: bool
    locks: int
    references: int
    rank: int

@final
class PrefixTrie:
    alloc: BlockAllocator
    def __init__(self, allocator: BlockAllocator, *, seed: int | None = None, hash_bits: int = 32) -> None: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def num_promised(self) -> int: ...
    def match(self, tokens: IntsLike, salt: int = 0, max_blocks: int = -1, touch: bool = True) -> Match: ...
    def match_batch(
        self,
        tokens: IntsLike,
        indptr: IntsLike,
        salts: PerRow = 0,
        max_blocks: PerRow = -1,
        touch: bool = True,
    ) -> tuple[Int32s, Int32s, Int32s]: ...
    def watch(self, tokens: IntsLike, salt: int = 0, max_blocks: int = -1) -> tuple[int, int]: ...
    def rewatch(self, watch: int, tokens: IntsLike, salt: int = 0, max_blocks: int = -1) -> int: ...
    def unwatch(self, watch: int) -> None: ...
    def moved(self) -> Int32s: ...
    @property
    def num_watches(self) -> int: ...
    def would_hit(self, tokens: IntsLike, salt: int = 0) -> int: ...
    def lock(self, node: int) -> None: ...
    def unlock(self, node: int) -> None: ...
    def lock_batch(self, nodes: IntsLike) -> None: ...
    def unlock_batch(self, nodes: IntsLike) -> None: ...
    def blocks(self, node: int) -> Int32s: ...
    def blocks_batch(self, nodes: IntsLike) -> tuple[Int32s, Int32s]: ...
    def allocate(self, n: int, spare_protected: bool = False) -> Int32s: ...
    def evict(self, n: int) -> int: ...
    def clear(self) -> int: ...
    def insert(
        self, tokens: IntsLike, blocks: IntsLike, salt: int = 0, first_block: int = 0, promoted: bool = False
    ) -> Inserted: ...
    def insert_batch(
        self,
        tokens: IntsLike,
        indptr: IntsLike,
        blocks: IntsLike,
        block_indptr: IntsLike,
        salts: PerRow = 0,
        first_blocks: PerRow = 0,
        promoted: PerRow = 0,
    ) -> tuple[Int32s, Int32s, Int32s]: ...
    def promise(self, tokens: IntsLike, blocks: IntsLike, salt: int = 0, first_block: int = 0) -> int: ...
    def fulfil(self, node: int, num_blocks: int = -1) -> None: ...
    def break_promise(self, node: int) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def audit(self) -> None: ...
    def dump(self) -> list[NodeDump]: ...

def ids_below(x: object, limit: int) -> Int32s | None: ...
def block_hashes(
    tokens: IntsLike, block_size: int = 16, salt: int = 0, key: bytes | None = None
) -> npt.NDArray[np.uint64]: ...

# token_ids, positions, starts, parents, begin, end, parent, context, context_len, slot_blocks, slot_start, slot_count
PromptRow: TypeAlias = tuple[
    IntsLike,
    IntsLike | None,
    IntsLike | None,
    IntsLike | None,
    int,
    int,
    int,
    IntsLike | None,
    int,
    IntsLike | None,
    int,
    int,
]

def pack_prompt(
    rows: Sequence[PromptRow], block_size: int, out: Sequence[Int32s] | None = None
) -> tuple[Int32s, Int32s, Int32s, Int32s, Int32s, Int32s, Int32s, Int32s | None, Int32s, Int32s]: ...

# tokens, num_known, shared_blocks, own_blocks
DecodeRow: TypeAlias = tuple[IntsLike, int, IntsLike | None, IntsLike | None]

def pack_decode(
    rows: Sequence[DecodeRow], block_size: int, out: Sequence[Int32s] | None = None
) -> tuple[Int32s, Int32s, Int32s, Int32s, Int32s, Int32s]: ...

# ------------------------------------------------------------------ leases

@final
class Lease:
    @property
    def growable(self) -> bool: ...
    @property
    def released(self) -> bool: ...
    @property
    def node(self) -> int: ...
    @property
    def promise(self) -> int: ...
    @property
    def promised(self) -> int: ...
    @property
    def borrowed(self) -> int: ...
    @property
    def ahead(self) -> int: ...
    @property
    def num_shared(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def shared(self) -> Int32s: ...
    @property
    def own(self) -> list[int]: ...
    def table(self) -> Int32s: ...

class KvPool:
    allocator: BlockAllocator
    trie: PrefixTrie
    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def caching(self) -> bool: ...
    @property
    def live_leases(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    def begin_plan(self) -> None: ...
    def attach(self, tokens: IntsLike, salt: int, max_tokens: int, *, growable: bool) -> Lease: ...
    def grow(self, lease: Lease, num_blocks: int) -> bool: ...
    def take_for_publishing(self, lease: Lease, num_blocks: int, *, evict_promoted: bool) -> bool: ...
    def promise(self, lease: Lease, tokens: IntsLike, salt: int) -> None: ...
    def borrow(self, lease: Lease, tokens: IntsLike, salt: int) -> bool: ...
    def withdraw(self, lease: Lease) -> None: ...
    def publish(self, lease: Lease, tokens: IntsLike, salt: int, *, promoted: bool = False) -> None: ...
    def release(self, lease: Lease) -> None: ...
    def audit(self, leases: Sequence[Lease]) -> None: ...

# ------------------------------------------------------------------ requests, and what is done to all of a step

@dataclass(slots=True)
class RequestStats:
    execution_class: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    deferred_ticks: int = 0
    chunks: int = 0
    preemptions: int = 0
    queue_ms: float = 0.0
    forward_ms: float = 0.0
    tokenize_ms: float = 0.0
    detok_ms: float = 0.0
    finish_reason: str | None = None
    truncated_tokens: int = 0
    estimated_jct: float = 0.0
    batch_size_seen: int = 0
    replays: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    request_id: str | None = None
    timeline: tuple[Any, ...] | None = None

class Record:
    """The fields whose type is said here are C's; what the others hold is the control plane's business."""

    id: int
    order: int
    queued_at: int
    turn: int
    account: Any
    ending: Any
    execution_class: Any
    history: Any
    key: Any
    known: Int32s
    options: Any
    outbox: Any
    output: Any
    alike: Any
    given: Any
    sink: Any
    state: Any
    timeline: Any
    sampling: Any
    cache: str
    stats: RequestStats
    lease: Lease | None
    num_known: int
    cached_len: int
    staged_len: int
    queued_tokens: int
    failures: int
    deferred: int
    max_new_tokens: int
    arrived: float
    planned: float
    first_token: float
    expires: float
    cancelled: bool
    def bind(
        self,
        tokens: IntsLike,
        positions: IntsLike | None,
        starts: IntsLike | None,
        parents: IntsLike | None,
        read: int,
        unread: int,
        logits_rows: int,
        salt: int,
        cache: str,
    ) -> None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def trunk(self) -> int: ...
    @property
    def unread(self) -> int: ...
    @property
    def first_read(self) -> int: ...
    @property
    def logits_rows(self) -> int: ...
    @property
    def salt(self) -> int: ...
    @property
    def reusable(self) -> int: ...

RecordT = TypeVar("RecordT", bound=Record)

def clones(
    like: RecordT,
    prompts: list[Int32s],
    ids: Iterator[int],
    ending: Any,
    sink: Any,
    options: Any,
    expires: float,
    outbox: Any,
    now: float,
) -> list[RecordT]: ...

@final
class OneShotRow:
    def __init__(self, request: Record, skip: int, publish: int = 0) -> None: ...
    @property
    def request(self) -> Any: ...
    @property
    def skip(self) -> int: ...
    @property
    def publish(self) -> int: ...

@final
class Outcome:
    def __init__(
        self,
        output: Any,
        token_ids: tuple[int, ...],
        stats: RequestStats,
        text: str | None = None,
        logprobs: tuple[Any, ...] | None = None,
    ) -> None: ...
    @property
    def output(self) -> Any: ...
    @property
    def token_ids(self) -> tuple[int, ...]: ...
    @property
    def stats(self) -> RequestStats: ...
    @property
    def text(self) -> str | None: ...
    @property
    def logprobs(self) -> tuple[Any, ...] | None: ...

def number_all(requests: Sequence[Record], order: int, queued_at: int) -> tuple[int, int, bool]: ...
def totals(requests: Sequence[Record]) -> tuple[int, int, bool]: ...
def plain(requests: Sequence[Record], oneshot: object) -> bool: ...
def leave_all(requests: Sequence[Record]) -> tuple[int, int]: ...
def charge_all(requests: Sequence[Record]) -> None: ...
def tokens_of(requests: Sequence[Record]) -> int: ...
def plan_all(requests: Sequence[RecordT], now: float, coefficients: tuple[float, ...]) -> list[RecordT]: ...
def admit_group(
    pool: KvPool,
    requests: Iterable[Record],
    limits: tuple[int | bool, ...],
    waiting: object,
    planned: object,
    defer: Callable[[Any, int], None],
) -> tuple[list[OneShotRow], int, int, int]: ...
def folds_of(pool: KvPool, rows: list[OneShotRow]) -> list[tuple[tuple[int, ...], int]]: ...
def keep_all(
    pool: KvPool,
    rows: list[OneShotRow],
    folds: list[tuple[tuple[int, ...], int]],
    seen: bool,
    common: Callable[[Any, int], int],
) -> None: ...
def pack_step(
    rows: Sequence[OneShotRow],
    folds: Sequence[tuple[tuple[int, ...], int]],
    more: Sequence[PromptRow],
    block_size: int,
) -> tuple[tuple[Any, ...], Int32s, Int32s]: ...
def pack_running(
    requests: Sequence[Record], block_size: int
) -> tuple[Int32s, Int32s, Int32s, Int32s, Int32s, Int32s]: ...
def sampling_arrays(settings: list[Any]) -> tuple[Any, Int32s, Any, Any, Any, int, bool, bool]: ...
def drawn_rows(rows: Sequence[OneShotRow], shifts: Int32s) -> tuple[list[Any], Int32s]: ...
def settle_group(
    pool: KvPool,
    rows: Sequence[OneShotRow],
    computed: Int32s,
    row_ends: Int32s | None,
    pair_ends: Int32s | None,
    output: object,
    cut: Callable[[Any, tuple[int, int], tuple[int, int]], Any],
    token_ids: Int32s | None,
    bad: frozenset[int],
    vocab_size: int,
    forward_ms: float,
    batch_size: int,
    planned: object,
    finished: object,
) -> tuple[list[Any], list[Outcome], list[tuple[Any, int | None]]]: ...
def traced(requests: list[RecordT]) -> list[RecordT]: ...
def end_all(
    requests: list[RecordT], outcomes: list[Outcome], live: dict[int, Any], now: float
) -> tuple[list[RecordT], list[Outcome], list[tuple[RecordT, Outcome]]]: ...
def runs_by_sink(
    requests: list[RecordT], outcomes: list[Outcome]
) -> list[tuple[Any, list[RecordT], list[Outcome]]]: ...
def put_ends(ends: dict[int, Any], requests: Sequence[Record], outcomes: list[Outcome]) -> None: ...
