"""Bodies that a stranger sends: whatever they are, the answer is short, soon, and an error of Prelude's own."""

from __future__ import annotations

import asyncio
import json
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prelude import Engine, EngineConfig, errors
from prelude.systemone import SystemOne, SystemOneError, aread_body, problem, read_body, write_body

NAMES = {
    "letters": "n" * 3_000, "pictures": "🎯" * 1_000, "half characters": "\ud800" * 1_000,
    "quotation marks": "\"'\\" * 1_000, "control characters": "\x00\x1f\x7f" * 1_000,
    "invisible": "\u2028\u200b\U000e0001" * 1_000, "79 pictures": "🎯" * 79, "none": "", "x_": "x_",
}  # fmt: skip
NOUL = {"type": "noul", "instructions": "?"}
PREDICATE = {"type": "predicate", "instructions": "?"}


@pytest.fixture(scope="module")
def one() -> Iterator[SystemOne]:
    with Engine.from_pretrained(dtype="float32", config=EngineConfig(kv_bytes=1 << 23, max_length=256)) as made:
        yield SystemOne(made)
        assert made.health().ok


def answered(one: SystemOne, data: bytes, route: str) -> tuple[int, Any]:
    """As a service answers; an error that is not Prelude's own fails the test."""
    try:
        body = read_body(data)
        return 200, one.answer(body) if route == "systemone" else one.decisions(body)
    except errors.PreludeError as error:
        return problem(error)


def check(one: SystemOne, data: bytes) -> None:
    for route in ("systemone", "decisions"):
        status, body = answered(one, data, route)
        assert status in (200, 404, 413, 422)
        for written in (write_body(body), json.dumps(body).encode()):  # other services escape non-ASCII text
            assert len(written) <= 10 * len(data) + (1 << 16), (route, len(data), len(written), written[:300])
        if status == 422:
            assert len(body["detail"]) <= 100
            assert all(len(part) <= 80 for one in body["detail"] for part in one["loc"] if isinstance(part, str))


def nested(depth: int, inside: Any = 1, table: bool = False) -> Any:
    for _ in range(depth):
        inside = {"a": inside} if table else [inside]
    return inside


def shapes(name: str) -> Iterator[Any]:
    """Bodies of either form that are wrong in many places, with ``name`` where a name or a text may stand."""
    many = {f"{name[:80]}{index}": index for index in range(200)}
    yield name
    yield [name] * 50
    yield many
    yield {name: {"a": 1}}
    few = {f"{index}": index for index in range(120)}
    yield {"state": "x", "questions": {name[:79]: {**NOUL, **few}}}
    yield {"input": "x", "questions": [{**PREDICATE, **few}], **few}
    yield {"model": name, "state": "x", "input": "x", "questions": {"a": NOUL}}
    for state in (name, {name: name}, many, [name], nested(63, name), nested(63, {name: float(1)}, True), nested(70)):
        yield {"state": state, "questions": {name: NOUL}}
        yield {"input": state, "questions": [PREDICATE]}
        part = {"type": "input_json", "data": state}
        yield {"input": [{"role": "user", "content": [part]}], "questions": [PREDICATE]}
        yield {"input": [{"type": name, "arguments": state}], "questions": [PREDICATE]}
    for wrong in (None, 5, name, [name], {name: name}, many, nested(70)):
        yield {"state": "x", "input": "x", "questions": wrong}
        yield {"state": wrong, "input": wrong, name: wrong}
        for kind in ("noul", "choice", "score", name, wrong):
            question = {"type": kind, "instructions": wrong, "criteria": wrong, name: wrong, **many}
            yield {"state": "x", "questions": {name: question}}
            yield {"state": "x", "questions": {name: {"type": kind, "instructions": wrong, "criteria": wrong}}}
            yield {"state": "x", "questions": {name: {"type": kind, "criteria": {name: wrong, "b": name}}}}
            yield {"state": "x", "questions": {name: {"type": kind, "criteria": [wrong, name]}}}
        for kind in ("predicate", "choice", "score", name, wrong):
            one = {"type": kind, "name": wrong, "instructions": wrong, "choices": wrong, "levels": wrong}
            yield {"input": "x", "questions": [{**one, name: wrong, **many}]}
            for part in ({"value": wrong}, {"value": name, "description": wrong}, {"label": wrong}, {"label": name}):
                yield {"input": "x", "questions": [{**one, "choices": [part, {"value": "b"}], "levels": [part] * 2}]}
    for wrong in (None, 5, name[:100], [name[:100]], {name[:100]: name[:100]}):
        for count in (120, 401):
            yield {"state": "x", "questions": {f"{name[:80]}{index}": wrong for index in range(count)}}
            yield {"input": [wrong] * count, "questions": [wrong] * count}
            yield {"input": [{"role": "user", "content": [wrong] * count}], "questions": [wrong] * count}
    options = {f"{name[:80]}{index}": index for index in range(255)}
    yield {
        "state": "x",
        "questions": {f"{name[:80]}{at}": {"type": "choice", "criteria": options} for at in range(9)},
    }
    yield {
        "state": "x",
        "questions": {str(at): {"type": "score", "criteria": ["a", "b", "c"] * 3} for at in range(99)},
    }


@pytest.mark.feature("G21")
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_at_most_ten_times_the_body_and_64_kb(one: SystemOne, name: str) -> None:
    for body in shapes(NAMES[name]):
        check(one, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace"))


FIELDS = """state input questions model assets type instructions criteria choices levels value label description name
role content text data input_text input_json noul choice score predicate true false user function_call output x_a"""
WORDS = st.sampled_from([*FIELDS.split(), "", "\ud800", "🎯", "a" * 100])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(WORDS, inside, max_size=6),
    max_leaves=20,
)
QUESTION = st.fixed_dictionaries(
    {"type": st.sampled_from(["noul", "choice", "score", "predicate"])},
    optional={name: VALUES for name in ("name", "instructions", "criteria", "choices", "levels")},
)
BODIES = st.fixed_dictionaries(
    {"state": VALUES, "input": VALUES, "questions": st.dictionaries(WORDS, QUESTION) | st.lists(QUESTION) | VALUES},
    optional={"model": VALUES, "assets": VALUES, "prompt_cache_key": VALUES},
)


@settings(max_examples=75, suppress_health_check=list(HealthCheck))
@given(body=BODIES | VALUES)
def test_any_body_has_an_answer_or_an_error_of_its_own(one: SystemOne, body: Any) -> None:
    """As bytes, and as the object that another parser may have made of them, with numbers that are not finite."""
    check(one, json.dumps(body).encode())
    for ask in (one.answer, one.decisions):
        try:
            write_body(ask(body))
        except errors.PreludeError as error:
            write_body(problem(error)[1])


class Endless(Mapping[str, Any]):
    """An object of a million wrong fields. ``seen``: how many were looked at."""

    def __init__(self) -> None:
        self.seen = 0

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, key: str) -> Any:
        return {"type": "noul", "instructions": "?", "choices": 5}[key]

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            self.seen += 1
            yield f"field {index}"


def test_the_check_ends_at_a_hundred_errors(one: SystemOne) -> None:
    for ask, body, fields in (
        (one.answer, lambda fields: {"state": "x", "questions": {"a": fields}}, Endless()),
        (one.answer, lambda fields: {"state": "x", "questions": fields}, Endless()),  # more questions than the limit
        (one.decisions, lambda fields: fields, Endless()),
    ):
        with pytest.raises(SystemOneError) as caught:
            ask(body(fields))
        assert len(caught.value.errors) <= 100 and fields.seen <= 102
    assert caught.value.errors[-1]["msg"] == "and more: the check ends after 99 errors"
    assert str(caught.value).endswith("(and 99 more)")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), nested(950), nested(950, table=True)], ids=range(4))
def test_values_that_no_json_has_and_deep_ones_are_refused_in_either_form(one: SystemOne, value: Any) -> None:
    part = {"type": "input_json", "data": value}
    for ask, body in (
        (one.answer, {"state": {"a": value}, "questions": {"a": NOUL}}),
        (one.answer, {"state": [value], "questions": {"a": NOUL}}),
        (one.decisions, {"input": [{"role": "user", "content": [part]}], "questions": [PREDICATE]}),
        (one.decisions, {"input": [{"type": "function_call", "arguments": value}], "questions": [PREDICATE]}),
    ):
        with pytest.raises(SystemOneError) as caught:
            ask(body)
        assert caught.value.errors[0]["loc"][1] == ("state" if ask == one.answer else "input")


def test_questions_that_are_always_new_take_bounded_memory(one: SystemOne) -> None:
    def ask(number: int) -> None:
        question = {**NOUL, "instructions": f"{number}" + "x" * 20_000}
        with pytest.raises(SystemOneError, match="there is no model"):
            one.answer({"model": "x", "state": "x", "questions": {"a": question}})

    ask(0)
    tracemalloc.start()
    try:
        for number in range(1000):
            ask(number)
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------ compressed bodies
def refusal(data: bytes, encoding: str | None, **options: Any) -> tuple[int, str]:
    with pytest.raises(SystemOneError) as caught:
        read_body(data, encoding, **options)
    return caught.value.status, caught.value.errors[0]["msg"]


def test_a_compressed_body_asks_for_no_more_memory_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    packer = zstandard.ZstdCompressor().compressobj(size=300 << 20)
    large = b"".join([packer.compress(b" " * (1 << 20)) for _ in range(300)] + [packer.flush()])
    wide = []
    for bits in (23, 24):  # windows of 8 and 16 MB
        params = zstandard.ZstdCompressionParameters(window_log=bits, write_content_size=False)
        packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
        wide.append(packer.compress(b"[]") + packer.flush())
    tracemalloc.start()
    try:
        assert refusal(large, "zstd") == (413, f"the body has more than {16 << 20} bytes")
        assert refusal(large, "zstd", max_bytes=1000) == (413, "the body has more than 1000 bytes")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(large) < 50_000 and peak < 80 << 20
    with pytest.raises(SystemOneError, match="more than 60000 bytes"):  # which the packed ones have not
        asyncio.run(aread_body(in_parts(large), "zstd", max_bytes=60_000))
    assert read_body(wide[0], "zstd") == [] and refusal(wide[1], "zstd")[1].startswith("the body is not zstd")
    whole = zstandard.compress(b'{"a": ') + zstandard.compress(b"1}")
    assert read_body(whole, " ZSTD ") == {"a": 1}  # two frames
    assert refusal(zstandard.compress(b"{}") + b"more", "zstd")[0] == 422
    assert refusal(zstandard.compress(b"{}") + zstandard.compress(b"{}"), "zstd")[0] == 422
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert refusal(b"", "zstd") == (415, "zstd needs zstandard: pip install zstandard")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd, zstd", "é" * 1000])
def test_an_encoding_that_is_not_read_is_named(encoding: str) -> None:
    status, said = refusal(b"{}", encoding)
    assert status == 415 and encoding[:40] in said and len(said) < 120


# ------------------------------------------------------------------ in an event loop
async def in_parts(data: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(data), 1 << 16):
        yield data[first : first + (1 << 16)]
        await asyncio.sleep(0)


def test_a_body_in_parts_is_the_body_and_ends_at_its_limits() -> None:
    async def refused(parts: AsyncIterator[bytes], **options: Any) -> int:
        with pytest.raises(SystemOneError) as caught:
            await aread_body(parts, **options)
        return caught.value.status

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 100
            await asyncio.sleep(0)

    async def main() -> None:
        data = json.dumps({"a": "x" * 300_000}).encode()
        assert await aread_body(in_parts(data)) == json.loads(data)
        assert await refused(endless(), max_bytes=1000) == 413
        assert await refused(endless(), max_bytes=1 << 40, seconds=0.01) == 408
        assert await refused(in_parts(b"{")) == 422
        assert await aread_body(in_parts(b"[1] "), "identity", max_bytes=4) == [1]
        assert await refused(in_parts(b"[1]  "), max_bytes=4) == 413
        assert await refused(in_parts(b"{}"), encoding="br") == 415

    asyncio.run(main())


def test_a_body_has_ten_seconds_to_come() -> None:
    async def main(later: float) -> Any:
        loop = asyncio.get_running_loop()
        clock = loop.time

        async def parts() -> AsyncIterator[bytes]:
            yield b"[1"
            loop.time = lambda: clock() + later  # type: ignore[method-assign]
            await asyncio.sleep(0.001)
            yield b"]"

        return await aread_body(parts())

    assert asyncio.run(main(9.9)) == [1]
    with pytest.raises(SystemOneError, match="within 10 s"):
        asyncio.run(main(10.1))
