"""Attention of one step, in two ways with one face: joined levels (FlashInfer), or explicit key lists (our kernel).

``run`` maps a layer's queries to outputs [rows, heads * D]. Rows stand as the shape says: prompts, then decode rows;
in a cut last layer the read prompt rows, then decode rows. Buffers for partial outputs are the workspace's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from prelude.cuda import kernels
from prelude.cuda.attention import Calls, LevelCall
from prelude.cuda.device import Device
from prelude.cuda.shapes import Shape, key_range
from prelude.cuda.staging import Area, Fields
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.workspace import Workspace

_KEPT_PLANS = 1024
"""Plans that one recorded shape keeps. A plan has some kilobytes."""


class Heads(NamedTuple):
    """A layer's queries, keys and values [rows, heads, D], and its keys and values in the pool."""

    q: Tensor
    k: Tensor
    v: Tensor
    pool: tuple[Tensor, Tensor]


class StepAttention(Protocol):
    def plan(self, area: Area) -> None:
        """Plan before the step's arrays are sent from ``area`` (recorded), or behind that (eager)."""
        ...

    def run(self, heads: Heads, out: Tensor, *, last: bool, window: int | None = None) -> None:
        """``window``: how many positions away a row's keys may be in this layer."""
        ...


class ReusedCalls:
    """Calls of eager steps: the n-th of a kind in a step is the n-th of that kind in every step, for making one is
    dear. ``begin`` starts a step."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._made: dict[tuple[object, ...], list[LevelCall]] = {}
        self._used: dict[tuple[object, ...], int] = {}

    def begin(self) -> None:
        self._used.clear()

    def _next(self, key: tuple[object, ...], make: Callable[[], LevelCall]) -> LevelCall:
        made, at = self._made.setdefault(key, []), self._used.get(key, 0)
        self._used[key] = at + 1
        if at == len(made):
            made.append(make())
        return made[at]

    @property
    def fa3(self) -> bool:
        return self.calls.fa3

    def ragged(self, buffers: dict[str, Tensor] | None, long: bool = False) -> LevelCall:
        return self._next(("ragged", long), lambda: self.calls.ragged(None, long))

    def paged(self, buffers: dict[str, Tensor] | None, page_size: int, split: bool = False) -> LevelCall:
        return self._next(("paged", page_size, split), lambda: self.calls.paged(None, page_size, split))

    def decode(self, buffers: dict[str, Tensor] | None, page_size: int, split: bool = True) -> LevelCall:
        return self._next(("decode", page_size, split), lambda: self.calls.decode(None, page_size, split))

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        self.calls.merge(out, lse, other, other_lse)


class KeysAttention:
    def __init__(self, device: Device, shape: Shape, fields: Fields, area: Tensor, kv_heads: int) -> None:
        def lists(prefix: str) -> tuple[Tensor, Tensor, Tensor]:
            keys, first, count = (fields.on(area, name) for name in ("keys", f"{prefix}first", f"{prefix}count"))
            return keys, first, count

        self.device = device
        self.kv_heads = kv_heads
        self.body = lists("")
        self.read = lists("read_") if shape.cut else self.body

    def plan(self, area: Area) -> None:
        pass

    def run(self, heads: Heads, out: Tensor, *, last: bool, window: int | None = None) -> None:
        span = kernels.EVERY if window is None else window + 1
        kernels.attend(self.device, *heads, self.read if last else self.body, self.kv_heads, out, span)


class LevelsAttention:
    """``record``: the calls read fixed places and belong to a graph. Other calls may split keys, as each plan finds
    by the number of its blocks."""

    def __init__(
        self,
        calls: Calls,
        shape: Shape,
        fields: Fields,
        area: Tensor,
        work: Workspace,
        *,
        record: bool = False,
    ) -> None:
        self.calls = calls
        self.record = record
        self.shape = shape
        self.fields = fields
        self.area = area
        self.work = work
        self.own: dict[bool, LevelCall] = {}
        self.more: dict[bool, list[LevelCall]] = {}
        self.reading: dict[tuple[bool, int], slice] = {}  # of eager calls: the rows that each plan is for
        self.decode: LevelCall | None = None
        for last in (False, True) if shape.cut else (False,):
            suffix = ".last.qo" if last else ".qo"

            def buffers(qo: str | None, level: str, *names: str) -> dict[str, Tensor] | None:
                if not record:
                    return None
                found = {} if qo is None else {"qo": fields.on(area, qo)}
                return found | {name: fields.on(area, f"{level}.{name}") for name in names}

            if shape.own:
                lists = buffers(f"own{suffix}", "own", "kv")
                self.own[last] = calls.ragged(lists, shape.long_query and not last)
            self.more[last] = [
                calls.paged(
                    buffers(f"{i}{suffix}", str(i), "indptr", "pages", "last"),
                    level.page_size,
                    level.split or not record,
                )
                for i, level in enumerate(shape.more)
            ]
        if shape.decoding:
            lists = buffers(None, "decode", "indptr", "pages", "last")
            self.decode = calls.decode(lists, work.block_size, shape.decode_split)

    def plan(self, area: Area) -> None:
        for call, given in self.planned(area):
            call.plan(given)

    def planned(self, area: Area) -> Iterator[tuple[LevelCall, dict[str, Tensor]]]:
        """Yield every call with the arrays that its plan is made of."""
        host = area.bytes

        def arrays(qo: str | None, level: str, *names: str) -> dict[str, Tensor]:
            found = {} if qo is None else {"qo": self.fields.on(host, qo)}
            found |= {name: self.fields.on(host, f"{level}.{name}") for name in names}
            if "last" in found:
                found["pages"] = self.fields.on(self.area, f"{level}.pages")
            return found

        for last, own in self.own.items():
            yield own, arrays("own.last.qo" if last else "own.qo", "own", "kv")
        for last, calls in self.more.items():
            for i, call in enumerate(calls):
                given = arrays(f"{i}.last.qo" if last else f"{i}.qo", str(i), "indptr", "last")
                if not self.record:
                    given, rows = self._reading(given)
                    self.reading[last, i] = rows
                    if rows.start == rows.stop:
                        continue
                yield call, given
        if self.decode is not None:
            yield self.decode, arrays(None, "decode", "indptr", "last")

    @staticmethod
    def _reading(given: dict[str, Tensor]) -> tuple[dict[str, Tensor], slice]:
        """A level from its first row with keys to its last one. FlashInfer counts the blocks of every row of a plan,
        and those of a long state would hide that the questions behind it leave the device idle."""
        held = np.flatnonzero(np.diff(given["indptr"].numpy()))
        first, end = int(held[0]), int(held[-1]) + 1
        qo = given["qo"][first : end + 1]
        rows = slice(int(qo[0]), int(qo[-1]))
        qo -= rows.start  # where it lies: an eager call reads no other copy of it
        return given | {"qo": qo, "indptr": given["indptr"][first : end + 1], "last": given["last"][first:end]}, rows

    def run(self, heads: Heads, out: Tensor, *, last: bool, window: int | None = None) -> None:
        """Every row of the step sees all before it: the executor takes key lists for a step that a window cuts."""
        q, k, v, pool = heads
        last = last and self.shape.cut
        prompts = self.shape.read_prompts if last else self.shape.prompts
        out = out.view(q.shape)
        if self.shape.own and prompts:
            self._prompts(q[:prompts], k, v, pool, out[:prompts], last)
        if self.decode is not None:
            self.decode.run(q[prompts:], *self.work.pages(pool), out[prompts:], None)

    def _prompts(self, q: Tensor, k: Tensor, v: Tensor, pool: tuple[Tensor, Tensor], out: Tensor, last: bool) -> None:
        rows, own, more = q.shape[0], self.own[last], self.more[last]
        tokens = self.shape.prompts
        k, v = k[:tokens], v[:tokens]
        if not more:
            own.run(q, k, v, out, None)
            return
        lse, part, part_lse = self.work.partial(rows, q.shape[1:])
        own.run(q, k, v, out, lse)
        for i, (call, level) in enumerate(zip(more, self.shape.more)):
            keys, values = self.work.pages(pool) if level.pool else (k.unsqueeze(1), v.unsqueeze(1))
            at = self.reading.get((last, i), slice(rows))
            if at.start == at.stop:
                continue
            call.run(q[at], keys, values, part[at], part_lse[at])
            self.calls.merge(out[at], lse[at], part[at], part_lse[at])


class RecordedLevels(LevelsAttention):
    """Calls that read fixed places and belong to a graph. Their plans are the field ``plans`` of the packed copy; one
    is kept for each content of the arrays that plans depend on."""

    def __init__(
        self, calls: Calls, shape: Shape, fields: Fields, area: Tensor, work: Workspace, device: Device
    ) -> None:
        super().__init__(calls, shape, fields, area, work, record=True)
        self.device = device
        self.key = key_range(fields, [name for name, _ in shape.lengths()])
        self.place = fields.places.get("plans")
        self._kept: OrderedDict[bytes, npt.NDArray[np.uint8]] = OrderedDict()
        self._parts: list[tuple[int, int]] = []  # where each call's plan lies in the field

    def sizes(self, area: Area) -> list[int]:
        """Bytes of each call's plan, by planning ``area``: the first plan fixes the most rows there will be."""
        return [len(call.plan(given)) for call, given in self.planned(area)]

    def bind(self, sizes: list[int]) -> None:
        """Puts the calls' workspaces into the field ``plans``, which has room for ``plan_room(sizes)``."""
        at = 0
        places = self.fields.on(self.area, "plans")
        for size, call in zip(sizes, self._calls()):
            call.bind(places[at : at + size])
            self._parts.append((at, size))
            at += plan_room([size])

    def _calls(self) -> Iterator[LevelCall]:
        yield from self.own.values()
        for calls in self.more.values():
            yield from calls
        if self.decode is not None:
            yield self.decode

    def plan(self, area: Area) -> None:
        place = self.place
        if place is None:
            return
        array = area.array
        key = array[self.key[0] : self.key[1]].tobytes()
        plans = self._kept.get(key)
        if plans is None:
            plans = self._make(area)
            self._kept[key] = plans
            while len(self._kept) > _KEPT_PLANS:
                self._kept.popitem(last=False)
        array[place.offset : place.end] = plans

    def _make(self, area: Area) -> npt.NDArray[np.uint8]:
        made = np.zeros(0 if self.place is None else self.place.count, np.uint8)
        with self.device.scope():
            for (at, size), (call, given) in zip(self._parts, self.planned(area)):
                planned = call.plan(given)
                if len(planned) != size:
                    raise RuntimeError(f"a plan has {len(planned)} bytes; the recorded one had {size}")
                made[at : at + size] = planned
        return made


def plan_room(sizes: list[int]) -> int:
    """Return bytes of plans that stand one behind the other, each aligned to 16."""
    return sum(-(-size // 16) * 16 for size in sizes)
