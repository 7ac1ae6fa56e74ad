"""Calls every public name of an extension module with bad and missing state: objects made by ``__new__`` alone,
numbers out of range, arrays of the wrong shape, things of other types. Any exception is fine; the process must live.

    python tests/native/abuse.py prelude._native.core --seed 1 --calls 1000000

The name of each call is written to standard error before it is made, so that the last line names a crash. Left out
are functions that take addresses: their callers vouch for the memory there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
import random
import re
import resource
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ROOM = 1 << 30  # bytes of address space beyond those of the process: larger requests are a MemoryError
NUMBERS = [-(2**31), -3, -1, 0, 1, 2, 3, 7, 16, 4097, 2**31, 2**40, 2**63, 2**70]


class Hollow:
    """Has every attribute, and all of them are of no use."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.get("value")


def arrays() -> list[np.ndarray]:
    numbers = np.arange(8, dtype=np.int32)
    fixed = numbers.copy()
    fixed.setflags(write=False)
    crooked = np.frombuffer(b"\x01" * 33, np.uint8)[1:].view(np.int32)  # not aligned
    return [
        numbers, fixed, crooked, numbers[::2], numbers[:0], numbers[:1], numbers.reshape(2, 4), numbers - 5,
        np.array([0, 4, 8], np.int32), np.array([0, 2**31 - 1], np.int32), numbers.astype(np.int64),
        numbers.astype(np.uint64), np.array([np.nan, np.inf]), np.array(3), np.array([None, 1], object),
    ]  # fmt: skip


def classes_of(module: Any) -> dict[str, type]:
    return {
        name: item
        for name, item in vars(module).items()
        if isinstance(item, type) and item.__module__ == module.__name__ and not issubclass(item, BaseException)
    }


def core_objects(module: Any) -> list[Any]:
    """Objects in good order, which bad ones meet."""
    pool = module.KvPool(16, 4)
    record = module.Record()
    record.bind(np.arange(8, dtype=np.int32), None, None, None, None, 0, 7, 1, 7, 1, 0, "auto")
    names = ("step_tokens", "step_requests", "logits_bytes", "logits_row_bytes", "logits_chunk_rows", "group_tokens")
    limits = module.StepLimits(**dict.fromkeys([*names, "defer_tokens", "defer_steps"], 64), fold=True)
    lease = pool.attach(np.arange(8, dtype=np.int32), 0, 7, growable=True)
    return [
        pool, record, lease, limits, module.Inbox(4, 100),
        module.OneShotGroup(pool, limits, [], 64, 64, 64, -1, False, True, True), module.StepLock(),
        types.SimpleNamespace(request=record, lease=lease, skip=0, publish=0, known=np.arange(8, dtype=np.int32)),
    ]  # fmt: skip


def gpu_objects(module: Any) -> list[Any]:
    """A step that was measured, and places for arrays."""

    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    slices = types.SimpleNamespace(
        token_ids=ints(1, 2, 3),
        positions=ints(0, 1, 2),
        starts=ints(0, 2, 3),
        parents=ints(-1, 0),
        context_lens=ints(0, 0),
        context_indptr=ints(0, 0, 0),
        context_blocks=ints(),
        write_slots=None,
    )
    limits = {"block_size": 16, "vocab": 64, "positions": 128, "rows": 256, "cut": True, "seen_whole": 128}
    limits |= {"long_query": 64, "split_keys": 64, "whole_rows": 8, "whole_tiles": 64, "group": 2}
    packer = module.StepPacker(limits | {"by_keys": False})
    packer.measure(slices, None, ((ints(2), False),), 8, 0)
    offsets = dict.fromkeys(("ids", "positions", "slots", "read", "read_positions"), 0)
    sizes = dict.fromkeys(
        ("prompts", "own", "decoding", "entries", "scratch_block", "read_prompts", "read_decoding", "keys"), 8
    )
    return [packer, module.Places(offsets, sizes, (0, 0), ())]


def tokenizer_objects(module: Any) -> list[Any]:
    text = (
        '{"added_tokens":[{"id":2,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,'
        '"normalized":false,"special":true}],"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":3},"merges":["a b"]}}'
    )
    return [module.CoreTokenizer.from_json(text)]


class Abuse:
    def __init__(self, module: Any, seed: int) -> None:
        self.random = random.Random(seed)
        self.classes = classes_of(module)
        self.good = core_objects(module) if hasattr(module, "KvPool") else []
        self.good += gpu_objects(module) if hasattr(module, "StepPacker") else []
        self.good += tokenizer_objects(module) if hasattr(module, "CoreTokenizer") else []
        self.others = [
            None, True, 1.5, float("nan"), "", "x", "auto", b"", b"k" * 16, (), [], {}, frozenset(), [None], (None,),
            [1, 2, 3], (1, 2, 3), [-1, 2**31], [0.5], object(), Hollow(), Hollow(1), Hollow(()), len, lambda *_: 0,
            int, Hollow, {1: 2}, "\ud800", "ab<s>" * 40,
        ]  # fmt: skip
        self.calls = [call for call in self._calls(module) if "uintptr_t" not in (call[1].__doc__ or "")]

    def _calls(self, module: Any) -> Iterator[tuple[str, Any, type | None]]:
        for name, item in vars(module).items():
            if callable(item) and not isinstance(item, type) and getattr(item, "__module__", "") == module.__name__:
                yield name, item, None
        for name, kind in self.classes.items():
            yield name, kind, None
            for member in dir(kind):
                found = inspect.getattr_static(kind, member)
                if member in ("__class__", "__new__", "__init_subclass__", "__subclasshook__", "__getattribute__"):
                    continue
                if getattr(found, "__objclass__", kind) is kind:
                    yield f"{name}.{member}", found, kind

    def made(self, kind: type) -> Any:
        """An object of the type: by ``__new__`` alone, by a call with anything, or a good one."""
        ready = [one for one in self.good if type(one) is kind]
        if ready and self.random.random() < 0.4:
            return self.random.choice(ready)
        with contextlib.suppress(Exception):
            return kind.__new__(kind)
        with contextlib.suppress(Exception):
            return kind.__new__(kind, *[self.value() for _ in range(self.random.randrange(4))])
        return ready[0] if ready else None

    def value(self, depth: int = 0) -> Any:
        pick = self.random.random()
        if pick < 0.2:
            return self.random.choice(NUMBERS)
        if pick < 0.35:
            return self.random.choice(arrays())
        if pick < 0.55 and self.classes:
            return self.made(self.random.choice(list(self.classes.values())))
        if pick < 0.7 and depth < 2:
            items = [self.value(depth + 1) for _ in range(self.random.randrange(5))]
            return self.random.choice([list, tuple])(items * self.random.choice([1, 1, 3]))
        return self.random.choice(self.others)

    def of_type(self, kind: str) -> Any:
        """Mostly a value of the signature's type."""
        if self.random.random() < 0.2:
            return self.value()
        if kind in self.classes:
            return self.made(self.classes[kind])
        if kind in ("list", "tuple"):
            some = self.made(self.random.choice(list(self.classes.values())))
            items = self.random.choice([[], [some], [some, some], [self.value(1), some], [self.value(1)]])
            return items if kind == "list" else tuple(items)
        if kind in ("dict", "frozenset", "bytes", "str"):
            return {"dict": {}, "frozenset": frozenset(), "bytes": b"k" * 16, "str": "auto"}[kind]
        if re.fullmatch(r"u?int\w*|double|float|bint|cbool|size_t|Py_ssize_t", kind):
            return self.random.choice(NUMBERS)
        return self.value()

    def arguments(self, call: Any) -> tuple[list[Any], dict[str, Any]]:
        signature = re.match(r"[\w.]+\((.*)\)", (getattr(call, "__doc__", "") or "").split("\n")[0])
        if signature is None or self.random.random() < 0.1:
            return [self.value() for _ in range(self.random.randrange(5))], {}
        given, named, keywords = list[Any](), dict[str, Any](), False
        for part in [part.strip() for part in signature[1].split(",") if part.strip()]:
            if part.startswith("*"):
                keywords = True
                continue
            words = part.split("=")[0].split(":")[0].split()
            if words[-1] == "self" or ("=" in part and self.random.random() < 0.5):
                keywords |= words[-1] != "self"
                continue
            value = self.of_type(words[0] if len(words) > 1 else part.partition(":")[2].split("=")[0].strip())
            if keywords:
                named[words[-1]] = value
            else:
                given.append(value)
        return given, named

    def one(self) -> None:
        name, call, kind = self.random.choice(self.calls)
        os.write(2, f"{name}\n".encode())
        with contextlib.suppress(Exception):
            self._call(name, call, kind)

    def _call(self, name: str, call: Any, kind: type | None) -> None:
        given, named = self.arguments(call)
        if kind is None:
            call(*given, **named)
            return
        of = self.made(kind)
        if hasattr(call, "__set__") and not callable(call):
            if self.random.random() < 0.4:
                setattr(of, name.rpartition(".")[2], self.value())
            else:
                getattr(of, name.rpartition(".")[2])
            return
        bound: Callable[..., Any] = getattr(of, name.rpartition(".")[2])
        bound(*given, **named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=20_000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    abuse = Abuse(importlib.import_module(given.module), given.seed)
    with open("/proc/self/statm", encoding="utf-8") as sizes:
        has = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + ROOM, has + ROOM))
    for _ in range(given.calls):
        abuse.one()
    print(f"{given.calls} calls of {len(abuse.calls)} names: the process lives")


if __name__ == "__main__":
    main()
