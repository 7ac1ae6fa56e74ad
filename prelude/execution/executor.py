"""The boundary between the control plane and a device: submit a batch, wait for its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from prelude.readouts.batch import ForwardBatch, StepResult
from prelude.records import dataclass

if TYPE_CHECKING:
    from prelude.execution.host_blocks import HostBlocks
    from prelude.execution.step_memory import StepMemory


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """The properties of a loaded model and its device that the control plane reads; they do not change after
    loading."""

    vocab_size: int  # rows of the embedding and the LM head
    max_positions: int
    hidden_size: int
    num_labels: int  # of the classification head; 0 if there is none
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int
    logits_chunk_rows: int  # the LM head meets at most this many rows at a time
    weight_bytes: int
    device: str
    dtype: str
    weights: str = ""  # the type that the weights of layers and LM head are kept in
    quantization: str | None = None  # of the weights of layers and LM head
    lm_head: bool = True  # False: no logits over the vocabulary, only vectors and class logits
    masked_lm: bool = False  # an encoder whose logits over the vocabulary have a meaning at a mask
    running_states: int = 0  # sequences whose recurrent state it keeps at a time
    prefix_states: int = 0  # of cached prefixes, in entries behind those
    bytes_per_state: int = 0  # of such a state; 0 for a model without recurrent layers
    head_pooling: str = (
        "last"  # the token that a classification head reads: "first", "last", "mean" of all, "markers", "tokens"
    )
    step_memory: StepMemory | None = None  # of a step, beside weights, states and blocks; None: not known
    bidirectional: bool = False  # an encoder: every prompt is computed whole, in one step, and shares nothing
    overlap: bool = False  # it is faster if a step is submitted before the one before it is waited for
    poolings: tuple[str, ...] | None = None  # those that it computes; None: all, and several at once


class KeepsOnHost(Protocol):
    """An executor that can keep KV blocks in host memory has one method more."""

    def host_blocks(self, entries: int) -> HostBlocks:
        """Host memory for so many blocks, until the executor is closed. Once."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Runs batches in the order they were submitted. It never sees a request. A step may be submitted before the one
    before it was waited for, and may name tokens that it draws (``DecodeRows.token_ids``).

    ``submit`` raises ``TypeError`` for anything but a ``ForwardBatch`` variant. ``wait`` returns the result of
    that handle or raises the step's error. After a failed step the executor takes the next one as usual. These are
    then undefined: the pool's contents in that step's write slots, the states in its state entries, and the numbers
    of rows that name a token which the step should have drawn. One thread at a time submits; any thread may wait.
    """

    def submit(self, batch: ForwardBatch) -> Any: ...

    def wait(self, handle: Any) -> StepResult: ...

    def limits(self) -> ExecutorLimits: ...

    def close(self) -> None: ...
