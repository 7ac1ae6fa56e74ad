"""Weights on the device in the places the forward wants: q, k and v merged, gate and up merged, gains in float32.

Read once out of the files through two pinned buffers, straight into the merged places: while one buffer is on its
way to the device the next tensor is read. The heads stay as the files have them (halves, not interleaved).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from prelude.cuda.device import Device
from prelude.cuda.staging import Area, Ring
from torch import Tensor

from prelude.models.arrays import BF16, Array
from prelude.models.read_weights import WeightSource
from prelude.models.spec import LM_HEAD, Layer, ModelSpec, Norm, Projection, Rope
from prelude.terminal.progress import watched

_CHUNK = 64 << 20


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    input_gain: Tensor
    mlp_gain: Tensor
    q_gain: Tensor | None
    k_gain: Tensor | None
    rope_table: Tensor
    """[positions, D] cosines and sines; of angles of 0 in a layer that does not rotate."""


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    embeddings: Tensor  # [vocab, hidden]
    layers: tuple[DeviceLayer, ...]
    final_gain: Tensor
    lm_head: Tensor | None  # the embeddings themselves if it is tied
    score: Tensor | None  # float32
    rope_table: Tensor
    """Table of the first layer that rotates: as many rows as there are positions."""

    def tensors(self) -> Iterator[Tensor]:
        owners: tuple[Any, ...] = (self, *self.layers)
        for owner in owners:
            for name in owner.__slots__:
                value = getattr(owner, name)
                if isinstance(value, Tensor):
                    yield value

    @property
    def nbytes(self) -> int:
        """Resident bytes, shared memory counted once."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.tensors()}
        return sum(storages.values())


def torch_of(array: Array) -> Tensor:
    """Return a tensor in the memory of ``array``, which stays alive with it."""
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def rope_table(rope: Rope, positions: int) -> Tensor:
    """[positions, D] float32: cosines, then sines of position times frequency."""
    turns = rope.turns(0, positions)
    return torch_of(np.concatenate([turns.real, turns.imag], axis=1))


def rope_tables(device: Device, loader: Loader, spec: ModelSpec, positions: int) -> dict[Rope | None, Tensor]:
    """Return a table for each kind of rotation in ``spec``, a rotating layer's first."""
    tables: dict[Rope | None, Tensor] = {}
    for rope in sorted(dict.fromkeys(heads.rope for heads in spec.attentions), key=lambda rope: rope is None):
        if rope is None:
            half = spec.attention.head_dim // 2
            table = torch.cat([torch.ones(positions, half), torch.zeros(positions, half)], dim=1)
        else:
            table = rope_table(rope, positions)
        tables[rope] = device.empty(tuple(table.shape), torch.float32)
        loader.to(table, tables[rope])
    return tables


class Loader:
    """Copies tensors of a source to the device, converted to the type of their place on the way."""

    def __init__(self, device: Device, source: WeightSource) -> None:
        self.device = device
        self.source = source
        self.names = frozenset(source.names())
        self.ring = Ring.of(device, _CHUNK, 2)

    def to(self, value: Tensor, place: Tensor) -> None:
        """``value`` into ``place``, contiguous and of the same shape."""
        if value.shape != place.shape:
            raise ValueError(f"a weight of shape {list(value.shape)} does not fit its place, {list(place.shape)}")
        flat, target = value.reshape(-1), place.view(-1)
        step = _CHUNK // place.itemsize
        for at in range(0, flat.shape[0], step):
            part = flat[at : at + step]
            area: Area = self.ring.take()
            pinned = area.bytes[: part.shape[0] * place.itemsize].view(place.dtype)
            pinned.copy_(part)
            self.device.copy(pinned, target[at : at + part.shape[0]])
            area.busy = self.device.mark()

    def whole(self, name: str, dtype: torch.dtype) -> Tensor:
        value = torch_of(self.source.tensor(name))
        place = self.device.empty(tuple(value.shape), dtype)
        self.to(value, place)
        return place

    def stacked(self, projection: Projection) -> tuple[Tensor, Tensor | None]:
        """Return the projection's weights one under the other, and their biases if it has some."""
        weight = self._stack([f"{name}.weight" for name in projection.names])
        return weight, self._stack([f"{name}.bias" for name in projection.names]) if projection.bias else None

    def gain(self, norm: Norm | None) -> Tensor | None:
        return None if norm is None else self.whole(f"{norm.name}.weight", torch.float32)

    def _stack(self, names: list[str]) -> Tensor:
        shapes = [self.source.tensor(name).shape for name in names]
        place = self.device.empty((sum(s[0] for s in shapes), *shapes[0][1:]), self.device.element)
        at = 0
        for name, shape in zip(names, shapes):
            self.to(torch_of(self.source.tensor(name)), place[at : at + shape[0]])
            at += shape[0]
        return place

    def layer(self, spec: Layer, tables: dict[Rope | None, Tensor]) -> DeviceLayer:
        f32 = torch.float32
        if spec.mixer_norm is None:
            raise ValueError("a layer without a norm before attention")
        return DeviceLayer(
            *self.stacked(spec.attention.qkv),
            *self.stacked(spec.mixer.out),
            *self.stacked(spec.mlp.up),
            *self.stacked(spec.mlp.down),
            input_gain=self.whole(f"{spec.mixer_norm.name}.weight", f32),
            mlp_gain=self.whole(f"{spec.mlp_norm.name}.weight", f32),
            q_gain=self.gain(spec.attention.q_norm),
            k_gain=self.gain(spec.attention.k_norm),
            rope_table=tables[spec.attention.rope],
        )


def load(device: Device, source: WeightSource, spec: ModelSpec, positions: int) -> DeviceWeights:
    """Everything ``spec`` needs out of ``source``, which may be closed when this returns. ``positions`` bounds the
    rotary tables. ``spec`` is one that ``check_supported`` lets pass."""
    if spec.final_norm is None:
        raise ValueError("a model without a final norm")
    loader = Loader(device, source)
    embeddings = loader.whole(f"{spec.embeddings.name}.weight", device.element)
    lm_head: Tensor | None = None
    if f"{LM_HEAD}.weight" in loader.names:
        lm_head = loader.whole(f"{LM_HEAD}.weight", device.element)
    elif spec.lm_head == "tied":
        lm_head = embeddings
    tables = rope_tables(device, loader, spec, positions)
    classifier = spec.classifier
    loaded = DeviceWeights(
        embeddings,
        tuple(loader.layer(layer, tables) for layer in watched(spec.layers, "loading", "layers", len(spec.layers))),
        loader.whole(f"{spec.final_norm.name}.weight", torch.float32),
        lm_head,
        None if classifier is None else loader.whole(f"{classifier.out.names[0]}.weight", torch.float32),
        next(iter(tables.values())),
    )
    device.mark().wait()
    return loaded
