"""Fixed places for a step's small arrays: one packed copy in, one packed copy out.

    host (pinned, a ring)    [ ticket | ids | positions | slots | rows | indptrs | plans ... ]  ──one copy──▶  device
    device results           [ tokens | logprobs | finite ... ]  ──a kernel──▶  host (mapped, a ring): word | results

``Fields`` says where in an area each array lies; graphs bake the device addresses in. Every step has a number, its
*ticket*: the last kernel of a step (``publish``) writes its results into a host area and then the number into the
word in front of them, which the host polls. A host area is taken from its ring only when its last use is over, so
the host never overwrites memory that a copy has yet to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from prelude._native.gpu import reached
from prelude.cuda.device import Device, Mark
from torch import Tensor

_ALIGN = 16
HEADER = 16
"""Bytes in front of a step's results: its ticket (uint32), four unused ones, the device's clock in nanoseconds
(uint64)."""
_TORCH = {"i32": torch.int32, "f32": torch.float32, "f64": torch.float64, "u8": torch.uint8}
_NUMPY: dict[str, np.dtype[Any]] = {
    "i32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "u8": np.dtype(np.uint8),
}


@dataclass(frozen=True, slots=True)
class Field:
    offset: int  # bytes
    count: int
    kind: str

    @property
    def end(self) -> int:
        return self.offset + self.count * _NUMPY[self.kind].itemsize


class Fields:
    """Named arrays one behind the other, each aligned to 16 bytes."""

    def __init__(self, sizes: Iterable[tuple[str, int, str]]) -> None:
        self.places: dict[str, Field] = {}
        at = 0
        for name, count, kind in sizes:
            place = Field(at, count, kind)
            self.places[name] = place
            at = -(-place.end // _ALIGN) * _ALIGN
        self.nbytes = at

    def extended(self, sizes: Iterable[tuple[str, int, str]]) -> Fields:
        """These places, and more arrays behind them."""
        more = Fields(sizes)
        for name, place in more.places.items():
            more.places[name] = Field(place.offset + self.nbytes, place.count, place.kind)
        more.places = self.places | more.places
        more.nbytes += self.nbytes
        return more

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def on(self, area: Tensor, name: str) -> Tensor:
        """Return the array ``name`` in an area of bytes."""
        place = self.places[name]
        if place.end > area.shape[0]:
            raise IndexError(f"{name} ends at byte {place.end}, the area has {area.shape[0]}")
        return area[place.offset : place.end].view(_TORCH[place.kind])

    def array(self, area: Tensor, name: str) -> npt.NDArray[Any]:
        """Return the same, as numpy, of a host area."""
        place = self.places[name]
        found: npt.NDArray[Any] = area.numpy()[place.offset : place.end].view(_NUMPY[place.kind])
        return found


@dataclass(slots=True, eq=False)
class Area:
    """One host area, which stays where it is."""

    bytes: Tensor
    array: npt.NDArray[np.uint8]  # the same memory
    address: int
    index: int = 0  # in its ring
    busy: Mark | Ticket | None = None

    @classmethod
    def of(cls, memory: Tensor, index: int = 0) -> Area:
        return cls(memory, memory.numpy(), memory.data_ptr(), index)


class Ticket:
    """The end of a step as the host sees it: the word of its output area has come to its number."""

    __slots__ = ("area", "device", "number")

    def __init__(self, device: Device, area: Area, number: int) -> None:
        self.device = device
        self.area = area
        self.number = number

    def done(self) -> bool:
        return reached(self.area.address, self.number)

    def wait(self) -> None:
        self.device.await_word(self.area.address, self.number)


@dataclass(slots=True)
class Ring:
    """Areas used in turn. ``take`` waits for the oldest use if it has to."""

    areas: deque[Area]
    waits: int = 0

    @classmethod
    def of(cls, device: Device, nbytes: int, depth: int) -> Ring:
        return cls.over(device.pinned((nbytes,), torch.uint8) for _ in range(depth))

    @classmethod
    def over(cls, areas: Iterable[Tensor]) -> Ring:
        return cls(deque(Area.of(memory, index) for index, memory in enumerate(areas)))

    def take(self) -> Area:
        area = self.areas[0]
        self.areas.rotate(-1)
        if area.busy is not None:
            if not area.busy.done():
                self.waits += 1
                area.busy.wait()
            area.busy = None
        return area


@dataclass(slots=True)
class Staging:
    """The two rings and their device areas. Code that copies out of an input area sets its ``busy`` to the step's
    ticket. ``results`` is the memory of all output areas, one behind the other, each with its header."""

    inputs: Ring
    input_area: Tensor
    outputs: Ring
    output_area: Tensor
    results: Tensor
    stride: int  # bytes of an output area with its header
    number: int = 0  # of the last ticket

    @classmethod
    def of(cls, device: Device, input_bytes: int, output_bytes: int, depth: int = 3) -> Staging:
        stride = HEADER + output_bytes
        results = device.mapped((depth * stride,), torch.uint8)
        return cls(
            Ring.of(device, input_bytes, depth),
            device.zeros((input_bytes,), torch.uint8),
            Ring.over(results[i * stride : (i + 1) * stride] for i in range(depth)),
            device.zeros((output_bytes,), torch.uint8),
            results,
            stride,
        )

    def give_back(self, area: Area) -> None:
        """Give back the output area that was taken last: its step failed."""
        if self.outputs.areas[-1] is area:
            self.outputs.areas.rotate(1)

    def next_number(self) -> int:
        """Return number of a step, a uint32 that wraps around. The first is 1: areas that were not used have 0."""
        self.number = (self.number + 1) & 0xFFFF_FFFF
        return self.number
