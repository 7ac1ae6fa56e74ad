"""The boundary between the control plane and a device: submit a batch, wait for its numbers.

A decode row may name a token before the host has seen it: its id -1 - j is the j-th token that the last sampling step
draws, its sample readouts one after another. A step that failed drew nothing, and the rows that name its tokens are
read by no request. They read token 0, so that the other rows of their step do not fail with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from prelude.readouts.batch import ForwardBatch, StepResult, readouts_of
from prelude.records import dataclass

if TYPE_CHECKING:
    from prelude.execution.memory_plan import StepMemory


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


@runtime_checkable
class Executor(Protocol):
    """Runs batches in the order they were submitted. It never sees a request. A step may be submitted before the one
    before it was waited for, and may name tokens that it draws (``DecodeRows.token_ids``).

    ``submit`` raises ``TypeError`` for anything but a ``ForwardBatch`` variant. ``wait`` returns the result of
    that handle or raises the step's error. After a failed step the executor takes the next one as usual. These are
    then undefined: the pool's contents in that step's write slots, the states in its state entries, and the numbers
    of rows that name a token which the step should have drawn. One thread at a time submits; any thread may wait.

    One that can keep KV blocks in host memory has ``host_blocks(entries)`` as well: the ``HostBlocks`` for so many
    blocks, until the executor is closed. It is called once.
    """

    def submit(self, batch: ForwardBatch) -> Any: ...

    def wait(self, handle: Any) -> StepResult: ...

    def limits(self) -> ExecutorLimits: ...

    def close(self) -> None: ...


def num_sampled(batch: ForwardBatch) -> int:
    """Return how many tokens a step draws."""
    return sum(readout.draws for readout in readouts_of(batch))
