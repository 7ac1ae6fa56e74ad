"""The one reading of JSON: what it takes, what it refuses and in which words, and that its time is linear."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prelude.values.strict_json import ANY, loads

MAX_DEPTH, MAX_VALUES = 128, 1 << 18
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=15,
)


@given(VALUES, st.booleans(), st.booleans())
def test_every_value_that_json_has_is_read(value: Any, ascii: bool, as_bytes: bool) -> None:
    written = json.dumps(value, ensure_ascii=ascii)
    assert loads(written.encode("utf-8", "surrogatepass") if as_bytes and ascii else written) == value


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"1 2", "Extra data"),
        (b'"\xff"', "can't decode byte 0xff"),
        (b'"\xed\xa0\x80"', "can't decode"),  # half a character
        ("[1]".encode("utf-16"), "can't decode"),
        (b'{"a": 1, "b": 2, "a": 1}', "the key 'a' appears twice"),
        (b'{"a": 1, "\\u0061": 2}', "the key 'a' appears twice"),
        (b"NaN", "NaN is not a finite number"),
        (b"[-Infinity]", "-Infinity is not a finite number"),
        (b"[1e999]", "1e999 is not a finite number"),
        (b"[-1" + b"0" * 400 + b".0]", "is not a finite number"),
        (b"[" + b"1" * 5000 + b"]", "4300 digits"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested too deeply"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"[]," * MAX_VALUES + b"0]", "limit of 262,144 values"),
        (b"[" + b"0," * MAX_VALUES + b"0]", "limit of 262,144 values"),
        (b'"' + b'\\"' * 500_000 + b"[{" * 100, "Unterminated string"),
    ],
    ids=range(19),
)
def test_the_refusals(data: bytes, said: str) -> None:
    for given_data in (data, data.decode("latin-1")) if data.isascii() else (data,):
        with pytest.raises(ValueError) as caught:
            loads(given_data)
        assert said in str(caught.value) and len(str(caught.value)) <= 200


def test_brackets_and_commas_of_texts_do_not_count() -> None:
    text = '\\"[{,' * MAX_VALUES + "\\"
    assert loads(json.dumps({"state": [text, '"', "[{" * 500, "\\"]})) == {"state": [text, '"', "[{" * 500, "\\"]}
    assert loads(json.dumps({"a": "\\", "b": "[" * 500 + "]" * 500}))
    assert loads(json.dumps(["\\", "," * MAX_VALUES]))  # the quote behind an escaped backslash ends a text
    assert loads(json.dumps(['\\"', "," * MAX_VALUES]))
    assert loads(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) and loads(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH)
    for first in (b"[[],", b"[{},"):  # counted bracket by bracket
        assert loads(first + b"[" * (MAX_DEPTH - 1) + b"]" * MAX_DEPTH)
        with pytest.raises(ValueError, match="nested too deeply"):
            loads(first + b"[" * MAX_DEPTH + b"]" * (MAX_DEPTH + 1))
    assert loads(b"\xef\xbb\xbf[]") == []
    assert loads("[Infinity]", numbers=ANY) == [float("inf")]


def test_a_key_that_comes_twice_among_many_is_found_in_linear_time() -> None:
    """A look through all keys for each would be 10^10 steps."""
    keys = ",".join(f'"{index}":0' for index in range(100_000))
    with pytest.raises(ValueError, match="the key '99999' appears twice"):
        loads("{" + keys + ',"99999":0}')
