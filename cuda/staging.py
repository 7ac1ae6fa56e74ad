"""Fixed places for a step's small arrays: one packed copy in, one packed copy out.

    host (pinned, a ring)    [ ids | positions | slots | rows | indptrs ... ]  ──one copy──▶  device area
    device results           [ tokens | logprobs | finite ... ]                ──one copy──▶  host (pinned, a ring)

``Fields`` says where in an area each array lies; graphs bake the device addresses in. A host area is taken from the
ring only when the mark behind its last use is done, so the host never overwrites memory that a copy has yet to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from prelude.cuda.device import Device, Mark
from torch import Tensor

_ALIGN = 16
_TORCH = {"i32": torch.int32, "f32": torch.float32, "f64": torch.float64}
_NUMPY: dict[str, np.dtype[Any]] = {
    "i32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
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

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def on(self, area: Tensor, name: str) -> Tensor:
        """The array ``name`` in an area of bytes."""
        place = self.places[name]
        if place.end > area.shape[0]:
            raise IndexError(f"{name} ends at byte {place.end}, the area has {area.shape[0]}")
        return area[place.offset : place.end].view(_TORCH[place.kind])

    def array(self, area: Tensor, name: str) -> npt.NDArray[Any]:
        """The same, as numpy, of a host area."""
        place = self.places[name]
        found: npt.NDArray[Any] = area.numpy()[place.offset : place.end].view(_NUMPY[place.kind])
        return found


@dataclass(slots=True)
class Area:
    """One host area of a ring."""

    bytes: Tensor
    busy: Mark | None = None


@dataclass(slots=True)
class Ring:
    """Pinned areas used in turn. ``take`` waits for the oldest use if it has to."""

    areas: deque[Area]
    waits: int = 0

    @classmethod
    def of(cls, device: Device, nbytes: int, depth: int) -> Ring:
        return cls(deque(Area(device.pinned((nbytes,), torch.uint8)) for _ in range(depth)))

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
    """The two rings and their device areas. Code that copies out of a host area sets its ``busy`` to a mark behind
    the copy."""

    inputs: Ring
    input_area: Tensor
    outputs: Ring
    output_area: Tensor

    @classmethod
    def of(cls, device: Device, input_bytes: int, output_bytes: int, depth: int = 3) -> Staging:
        return cls(
            Ring.of(device, input_bytes, depth),
            device.zeros((input_bytes,), torch.uint8),
            Ring.of(device, output_bytes, depth),
            device.zeros((output_bytes,), torch.uint8),
        )
