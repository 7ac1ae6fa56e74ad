"""The ranks of one tensor-parallel model: the collectives, and their end.

A collective waits for all ranks. So an error of one rank ends the group: that rank closes its connections, gloo's
next operation fails in the ranks beside it, and those close theirs. A rank that neither answers nor ends is waited
for up to the time limit. ``RankLost`` is the error of all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from prelude.errors import ConfigError, RankLost
from prelude.records import dataclass, field
from prelude.values.arrays import F32

HEADER = 4096
"""Bytes of a message's first broadcast, in which the messages of small steps are whole."""
_SIZES = 16  # of them its number and its length
MAX_MESSAGE = 1 << 30
"""Bytes of a message; one that says more is none of ours."""
_MAX_SAID = 1 << 20
"""Bytes of a rank's facts."""
_LIMITS = (1.0, 86400.0)  # seconds
_LOADING = 1800.0
"""Seconds that a rank waits for the others while they load, which one may do from a slower disk."""


@dataclass(slots=True)
class RankGroup:
    """``steady``: sums are added in the order of the ranks, so that a value's bits do not depend on its place in the
    tensor. Methods raise ``RankLost``; the group is left then. One thread at a time uses it."""

    rank: int
    size: int
    steady: bool
    limit: float
    """Seconds that an operation of a step may take."""
    lost: RankLost | None = None
    _group: Any = None
    _device_group: Any = None  # NCCL's, of the ranks' GPUs
    _own: bool = False  # the default group of torch.distributed was made here
    _sent: int = 0
    _room: dict[str, Tensor] = field(default_factory=dict)

    # -------------------------------------------------------------- begin and end

    @classmethod
    def join(cls, size: int, *, steady: bool, limit: float, gpus: bool = False) -> RankGroup:
        """Waits for the other ranks. ``gpus``: each has a GPU, and NCCL adds what lies there. ``ConfigError`` if
        this process is not one of ``size`` processes of torch.distributed."""
        limit = min(max(limit, _LIMITS[0]), _LIMITS[1])
        own = not _initialized(size)
        if gpus and not dist.is_nccl_available():
            raise ConfigError(f"tensor_parallel={size} on GPUs: this build of torch has no NCCL")
        made = cls(rank_here(), size, steady, limit, _own=own)
        try:
            if own:
                dist.init_process_group("gloo", timeout=timedelta(seconds=_LOADING), **_meeting(size))
            if dist.get_world_size() == size:
                patience = timedelta(seconds=made.loading_limit)
                made._group = dist.new_group(list(range(size)), backend="gloo", timeout=patience)
                if gpus:
                    made._device_group = dist.new_group(list(range(size)), backend="nccl", timeout=patience)
                return made
        except Exception as error:
            raise made.lose(error, "joining the others") from error
        there = dist.get_world_size()
        made.leave()
        raise ConfigError(
            f"tensor_parallel={size}: torch.distributed has {there} processes; start as many as tensor_parallel says"
        )

    @property
    def loading_limit(self) -> float:
        """Seconds that an operation may take until ``loaded``."""
        return max(self.limit, _LOADING)

    def loaded(self) -> None:
        """Waits for the others; from here on operations are those of steps, with their time limit."""
        self.gather(np.zeros(1, np.int64))
        try:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.limit), self._open())
        except Exception as error:
            raise self.lose(error, "setting the time limit") from error

    def leave(self, *, abort: bool = False) -> None:
        """Closes the connections: an operation of another rank that waits for this one fails at once. After a loss,
        or with ``abort``, this rank's operations of the GPU that wait for other ranks end with nonsense."""
        device_group, self._device_group = self._device_group, None
        if device_group is not None:
            with contextlib.suppress(Exception):
                if abort or self.lost is not None:
                    dist.distributed_c10d._abort_process_group(device_group)
                else:
                    dist.destroy_process_group(device_group)
        group, self._group = self._group, None
        for one in (group, dist.group.WORLD if self._own else None):
            if one is not None:
                with contextlib.suppress(Exception):  # of a group that is broken
                    dist.destroy_process_group(one)
        self._own = False

    def lose(self, reason: BaseException, doing: str) -> RankLost:
        """The end of the group; the first reason is kept, without its traceback: the frames in it would keep the
        group, and so its connections, alive. No ``with`` stands around an operation for the same reason."""
        reason.__traceback__ = None
        if self.lost is None:
            said = str(reason).strip().splitlines() or [type(reason).__name__]
            self.lost = RankLost(
                f"a process of tensor_parallel={self.size} was lost (rank {self.rank}, {doing}: "
                f"{type(reason).__name__}: {said[0][:200]}); no step runs any more: end all {self.size} processes "
                "and start them again"
            )
            self.lost.__cause__ = reason
        self.leave()
        return self.lost

    def _open(self) -> Any:
        """Return the group. Without one torch.distributed would take its default group."""
        if self._group is None:
            raise RuntimeError("this process has left the group")
        return self._group

    # -------------------------------------------------------------- numbers

    def sum(self, values: F32) -> None:
        """``values``, without gaps, become the sum of all ranks' values. All ranks get the same bits."""
        try:
            self._sum(torch.from_numpy(values), self._open())
        except Exception as error:
            raise self.lose(error, "adding up") from error

    def sum_on_device(self, tensor: Tensor) -> None:
        """The same of a tensor on the GPU: enqueued on torch's current stream, and recorded where that is."""
        try:
            if self._device_group is None:
                raise RuntimeError("this process has left the group")
            self._sum(tensor, self._device_group)
        except Exception as error:
            raise self.lose(error, "adding up on the GPU") from error

    def _sum(self, tensor: Tensor, group: Any) -> None:
        if not self.steady or self.size == 2:
            dist.all_reduce(tensor, group=group)
            return
        parts = self._gathered(tensor, group)  # gloo and NCCL add parts of a tensor in different orders
        torch.add(parts[0], parts[1], out=tensor)
        for part in parts[2:]:
            tensor.add_(part)

    def gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[size, ...]: the arrays of all ranks, which have one shape and type."""
        try:
            own = torch.from_numpy(np.ascontiguousarray(values))
            found: npt.NDArray[Any] = self._gathered(own, self._open()).numpy()
        except Exception as error:
            raise self.lose(error, "gathering") from error
        return found

    def _gathered(self, tensor: Tensor, group: Any) -> Tensor:
        parts = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        dist.all_gather(list(parts.unbind(0)), tensor, group=group)
        return parts

    # -------------------------------------------------------------- agreement

    def gather_said(self, said: Any) -> list[Any]:
        """Return the message of each rank, as JSON."""
        text = np.frombuffer(json.dumps(said).encode(), np.uint8)
        lengths = self.gather(np.array([len(text)], np.int64))[:, 0]
        if not 0 <= lengths.min() <= lengths.max() <= _MAX_SAID:
            error = ValueError(f"a rank says facts of {lengths.tolist()} bytes, the limit is {_MAX_SAID}")
            raise self.lose(error, "comparing settings") from error
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(text)] = text
        rows = self.gather(padded)
        try:
            return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths.tolist())]
        except (ValueError, RecursionError) as error:
            raise self.lose(error, "comparing settings") from error

    def agree(self, facts: dict[str, Any]) -> None:
        """``ConfigError`` on every rank if one of ``facts`` differs between them."""
        everyone = self.gather_said(facts)
        for name in facts:
            values = [said.get(name) for said in everyone]
            other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if other is not None:
                self.leave()
                raise ConfigError(
                    f"tensor_parallel={self.size}: {name} is {values[0]!r} on rank 0 and {values[other]!r} on rank "
                    f"{other}; all ranks load the same model with the same config"
                )

    def least(self, value: int) -> int:
        """Return the smallest of the ranks' values."""
        return int(self.gather(np.array([value], np.int64)).min())

    def on_this_host(self) -> int:
        """Return how many ranks this machine has."""
        return self.gather_said(socket.gethostname()).count(socket.gethostname())

    # -------------------------------------------------------------- messages of rank 0

    def send(self, message: bytes) -> None:
        """Send from rank 0 to all others."""
        try:
            self._send(message)
        except Exception as error:
            raise self.lose(error, "sending a batch") from error

    def receive(self) -> bytearray:
        """Receive in the other ranks. Rank 0 sends a message at least every ``limit`` seconds."""
        try:
            return self._receive()
        except Exception as error:
            raise self.lose(error, "waiting for rank 0") from error

    def _send(self, message: bytes) -> None:
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(message)} bytes, the limit is {MAX_MESSAGE}")
        self._sent += 1
        first = torch.zeros(HEADER, dtype=torch.uint8)
        first.numpy()[:_SIZES].view(np.int64)[:] = self._sent, len(message)
        body = np.frombuffer(message, np.uint8)
        inside = min(len(body), HEADER - _SIZES)
        first.numpy()[_SIZES : _SIZES + inside] = body[:inside]
        dist.broadcast(first, 0, group=self._open())
        if inside < len(body):
            dist.broadcast(torch.from_numpy(body[inside:].copy()), 0, group=self._open())

    def _receive(self) -> bytearray:
        self._sent += 1
        first = torch.zeros(HEADER, dtype=torch.uint8)
        dist.broadcast(first, 0, group=self._open())
        number, length = first.numpy()[:_SIZES].view(np.int64).tolist()
        if number != self._sent:
            raise ValueError(f"message {number} of rank 0 came where {self._sent} was due")
        if not 0 <= length <= MAX_MESSAGE:
            raise ValueError(f"message {number} of rank 0 says {length} bytes, the limit is {MAX_MESSAGE}")
        inside = min(length, HEADER - _SIZES)
        message = bytearray(first.numpy()[_SIZES : _SIZES + inside].tobytes())
        if inside < length:
            rest = torch.empty(length - inside, dtype=torch.uint8)
            dist.broadcast(rest, 0, group=self._open())
            message += rest.numpy().tobytes()
        return message


def rank_here() -> int:
    """This process's rank, in torch.distributed or as torchrun says it."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])


def _meeting(size: int) -> dict[str, Any]:
    """Return the ranks' meeting place: rank 0 listens at MASTER_ADDR alone, and not on every interface as torch. With
    torchrun its agent listens."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return {}
    host, port, rank = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank_here()
    listener = None
    if rank == 0:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=size).detach()
    patience = timedelta(seconds=_LOADING)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, size, rank == 0, patience, wait_for_workers=False, master_listen_fd=listener
    )
    return {"store": store, "rank": rank, "world_size": size}


def _initialized(size: int) -> bool:
    """Return whether torch.distributed is in use. ``ConfigError`` if this process is none of several."""
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError(f"tensor_parallel={size}: this build of torch has no torch.distributed with gloo")
    if dist.is_initialized():
        return True
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise ConfigError(
            f"tensor_parallel={size}: this process is not one of {size}: start the program with torchrun "
            f"--nproc-per-node {size}, or call torch.distributed.init_process_group before"
        )
    said = os.environ["WORLD_SIZE"]
    if said != str(size):
        raise ConfigError(
            f"tensor_parallel={size}: WORLD_SIZE is {said}; start as many processes as tensor_parallel says"
        )
    return False
