"""Attention of one step, in two ways with one face: joined levels (FlashInfer), or explicit key lists (our kernel).

``run`` maps a layer's queries to outputs [rows, heads * D]. Rows stand as the shape says: prompts, then decode rows;
in a cut last layer the read prompt rows, then decode rows. Buffers for partial outputs are the workspace's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from prelude.cuda import kernels
from prelude.cuda.attention import Calls, LevelCall
from prelude.cuda.device import Device
from prelude.cuda.shapes import Shape
from prelude.cuda.staging import Fields
from torch import Tensor

if TYPE_CHECKING:
    from prelude.cuda.workspace import Workspace


class StepAttention(Protocol):
    def plan(self, host: Tensor) -> None:
        """Before the step is launched; ``host`` is the area its arrays have been sent from."""
        ...

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, pool: tuple[Tensor, Tensor], out: Tensor, *, last: bool
    ) -> None: ...


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

    def ragged(self, buffers: dict[str, Tensor] | None, *, causal: bool) -> LevelCall:
        return self._next(("ragged", causal), lambda: self.calls.ragged(None, causal=causal))

    def paged(self, buffers: dict[str, Tensor] | None, page_size: int) -> LevelCall:
        return self._next(("paged", page_size), lambda: self.calls.paged(None, page_size))

    def decode(self, buffers: dict[str, Tensor] | None, page_size: int) -> LevelCall:
        return self._next(("decode", page_size), lambda: self.calls.decode(None, page_size))

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        self.calls.merge(out, lse, other, other_lse)


class KeysAttention:
    def __init__(self, device: Device, shape: Shape, fields: Fields, area: Tensor, kv_heads: int) -> None:
        def lists(prefix: str) -> tuple[Tensor, Tensor, Tensor]:
            return (
                fields.on(area, "keys"),
                fields.on(area, f"{prefix}first"),
                fields.on(area, f"{prefix}count"),
            )

        self.device = device
        self.kv_heads = kv_heads
        self.body = lists("")
        self.read = lists("read_") if shape.cut else self.body

    def plan(self, host: Tensor) -> None:
        pass

    def run(self, q: Tensor, k: Tensor, v: Tensor, pool: tuple[Tensor, Tensor], out: Tensor, *, last: bool) -> None:
        kernels.attend(self.device, q, k, v, pool, self.read if last else self.body, self.kv_heads, out)


class LevelsAttention:
    """``record``: the calls read fixed places and belong to a graph."""

    def __init__(
        self, calls: Calls, shape: Shape, fields: Fields, area: Tensor, work: Workspace, record: bool
    ) -> None:
        self.calls = calls
        self.shape = shape
        self.fields = fields
        self.area = area
        self.work = work
        self.own: dict[bool, LevelCall] = {}
        self.more: dict[bool, list[LevelCall]] = {}
        self.decode: LevelCall | None = None
        for last in (False, True) if shape.cut else (False,):
            suffix = ".last.qo" if last else ".qo"

            def buffers(qo: str | None, level: str, *names: str) -> dict[str, Tensor] | None:
                if not record:
                    return None
                found = {} if qo is None else {"qo": fields.on(area, qo)}
                return found | {name: fields.on(area, f"{level}.{name}") for name in names}

            if shape.own:
                self.own[last] = calls.ragged(buffers(f"own{suffix}", "own", "kv"), causal=not last)
            self.more[last] = [
                calls.paged(buffers(f"{i}{suffix}", str(i), "indptr", "pages", "last"), level.page_size)
                for i, level in enumerate(shape.more)
            ]
        if shape.decoding:
            self.decode = calls.decode(buffers(None, "decode", "indptr", "pages", "last"), work.block_size)

    def plan(self, host: Tensor) -> None:
        def arrays(qo: str | None, level: str, *names: str) -> dict[str, Tensor]:
            found = {} if qo is None else {"qo": self.fields.on(host, qo)}
            found |= {name: self.fields.on(host, f"{level}.{name}") for name in names}
            if "last" in found:
                found["pages"] = self.fields.on(self.area, f"{level}.pages")
            return found

        for last, own in self.own.items():
            qo = "own.last.qo" if last else "own.qo"
            given = arrays(qo, "own", "kv")
            own.plan(_bytes(given, "qo", "kv"), given)
        for last, calls in self.more.items():
            for i, call in enumerate(calls):
                given = arrays(f"{i}.last.qo" if last else f"{i}.qo", str(i), "indptr", "last")
                call.plan(_bytes(given, "qo", "indptr", "last"), given)
        if self.decode is not None:
            given = arrays(None, "decode", "indptr", "last")
            # Where keys are cut follows from the pages; how full the last one is, from the staged array.
            self.decode.plan(_bytes(given, "indptr"), given)

    def run(self, q: Tensor, k: Tensor, v: Tensor, pool: tuple[Tensor, Tensor], out: Tensor, *, last: bool) -> None:
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
        for call, level in zip(more, self.shape.more):
            keys, values = self.work.pages(pool) if level.pool else (k.unsqueeze(1), v.unsqueeze(1))
            call.run(q, keys, values, part, part_lse)
            self.calls.merge(out, lse, part, part_lse)


def _bytes(arrays: dict[str, Tensor], *names: str) -> bytes:
    return b"".join(arrays[name].numpy().tobytes() for name in names)
