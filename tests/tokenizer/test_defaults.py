"""A keyword that is left out means what it means in the library whose calls these are; filters give jinja2's text."""

# ruff: noqa: E501 - a table of expressions
from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from prelude.tokenizer import TiktokenEncoding, Tokenizer
from prelude.tokenizer._core import CoreTokenizer
from prelude.tokenizer.backends.reference import ReferenceCore
from prelude.tokenizer.hf import calls

from tests.tokenizer.templates import render

tokenizers = pytest.importorskip("tokenizers")


def defaults(call: Any) -> dict[str, Any]:
    try:
        given = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # a class of the library that tells no signature
        return {}
    return {one.name: one.default for one in given if one.default is not one.empty}


@pytest.mark.parametrize("module", ["", ".models", ".decoders", ".implementations"])
def test_keywords_have_the_defaults_of_tokenizers(module: str) -> None:
    theirs = importlib.import_module(f"tokenizers{module}")
    ours = importlib.import_module(f"prelude.tokenizer{module}")
    compared = 0
    for name, other in vars(theirs).items():
        if name.startswith("_") or not inspect.isclass(other) or issubclass(other, str):
            continue
        own = getattr(ours, name, None)
        calls = [(own, other)]
        calls += [
            (getattr(own, one), getattr(other, one)) for one in dir(other) if one[0] != "_" and hasattr(own, one)
        ]
        for call, twin in calls:
            expected = defaults(twin)
            if name == "AddedToken":
                expected.pop("normalized", None)  # None here: not of a special token, as tokenizers reads its own
            shown = {key: value for key, value in defaults(call).items() if key in expected}
            compared += len(shown)
            assert shown == {key: expected[key] for key in shown}, (name, call)
    assert compared > 1


def test_one_keyword_has_one_default_in_all_calls() -> None:
    found: dict[str, set[Any]] = {}
    calls = [getattr(Tokenizer, name) for name in dir(Tokenizer) if name[0] != "_" and name != "encode_segments"]
    for call in [*filter(callable, calls), TiktokenEncoding, TiktokenEncoding.like]:
        for name, value in defaults(call).items():
            found.setdefault(name, set()).add(repr(value))
    on, off = ("cache", "add_special_tokens", "skip_special_tokens", "parse_special"), ("is_pretokenized", "overflow")
    assert all(found[name] == {"True"} for name in on) and all(found[name] == {"False"} for name in off)
    assert defaults(Tokenizer.encode_segments) == {"add_special_tokens": False}


def test_calls_of_one_name_have_one_default() -> None:
    fast = pytest.importorskip("transformers").PreTrainedTokenizerFast
    pairs = [(calls.encode_plus, fast._encode_plus), (calls.decode, fast._decode), (calls.pad, fast.pad)]
    for own, other in (ReferenceCore, CoreTokenizer), (TiktokenEncoding, pytest.importorskip("tiktoken").Encoding):
        names = [name for name in dir(other) if name[0] != "_" and callable(getattr(own, name, None))]
        pairs += [(getattr(own, name), getattr(other, name)) for name in names]
    for call, twin in pairs:
        expected = {name: value for name, value in defaults(twin).items() if type(value) in (bool, int, str)}
        given = {name: defaults(call).get(name, value) for name, value in expected.items() if name != "most"}
        assert given == {name: expected[name] for name in given}, call


EXPRESSIONS = [
    *("['a'|center, 'ab'|center(5)]", "('word ' * 60)|truncate", "('word ' * 52)|truncate", "('w' * 261)|truncate"),
    *("'one two three'|truncate(9)", "'one two three'|truncate(9, true)", "'one two three'|truncate(9, false, '..', 0)"),
    *("'one two three'|truncate(8)", "'onetwothree'|truncate(5, leeway=5)", "'onetwothree'|truncate(5, leeway=6)"),
    *("'a\\nb\\n\\nc'|indent", "'a\\nb\\n\\nc'|indent(2, true)", "'a\\n\\nc'|indent(2, blank=true)", "'a\\nb'|indent('>')"),
    *("{'é': [1, 'ü'], 'a': none}|tojson", "{'b': 1, 'a': 2}|tojson(sort_keys=true)", "['é']|tojson(ensure_ascii=true)"),
    *("[1, [2]]|tojson(indent=1)", "[1, 2]|tojson(separators=(';', ':'))", "{'a': '<&>'}|tojson", "'x'|tojson(indent='-')"),
    *("'7'|int + 1", "'x'|int", "'x'|int(5)", "'ff'|int(0, 16)", "'12'|int(base=8)", "'1.9'|int", "'x'|float", "'x'|float(2)"),
    *("2.5|round", "2.567|round(2)", "2.1|round(0, 'ceil')", "2.9|round(method='floor')", "1234|round(-2)", "(-3)|abs"),
    *("[1, 2]|sum", "[1, 2]|sum(start=3)", "[{'n': 2}, {'n': 3}]|sum('n')", "[{'n': 2}]|sum(attribute='n', start=1)"),
    *("[3, 1, 2]|sort", "['b', 'A', 'c']|sort", "['b', 'A']|sort(case_sensitive=true)", "[1, 3, 2]|sort(true)"),
    *("['b', 'A', 'B']|min", "['b', 'C']|max", "['a', 'B']|max(case_sensitive=true)", "['b', 'A', 'a']|min(true)"),
    *("[{'n': 2}, {'n': 1}]|sort(attribute='n')", "[{'n': 2}, {'n': 1}]|min(attribute='n')", "[]|max is undefined"),
    *("{'b': 1, 'A': 2}|dictsort", "{'b': 1, 'A': 2}|dictsort(true)", "{'b': 1, 'a': 2}|dictsort(by='value')"),
    *("{'b': 1, 'a': 2}|dictsort(reverse=true)", "['a', 'A', 'b']|unique|list", "['a', 'A']|unique(true)|list"),
    *("[{'n': 'a'}, {'n': 'A'}]|unique(attribute='n')|list", "[1, 2, 3]|batch(2)|list", "[1, 2, 3]|batch(2, 0)|list"),
    *("[1, 2, 3, 4]|slice(3)|list", "[1, 2, 3, 4]|slice(3, 'x')|list", "[1, 2]|join", "['a', 'b']|join('-')"),
    *("[{'n': 1}, {'n': 2}]|join(', ', 'n')", "['', none]|map('string')|join(d='/')", "'aXbX'|replace('X', 'y')"),
    *("'aXbX'|replace('X', 'y', 1)", "'aXbX'|replace('X', 'y', 0)", "'  a '|trim", "'xax'|trim('x')", "'a b'|title"),
    *("'it\\'s a-b (c)'|title", "'a b-c d_e'|wordcount", "''|wordcount", "'aB'|capitalize", "'ab'|first", "[]|last is undefined"),
    *("(1, 2)|last", "'abc'|reverse", "[1, 2]|reverse|list", "(1, 2)|reverse|list", "{'a': 1, 'b': 2}|items|list"),
    *("{'a': 1}|list", "'ab'|list", "nothing|default('d')", "''|default('d')", "''|default('d', true)", "none|d('x')"),
    *("'%s-%03d'|format('a', 7)", "'%(k)s'|format(k=1)", "[1, 2, 3]|select('odd')|list", "[1, 2, 3]|reject('odd')|list"),
    *("[0, 1, '']|select|list", "[0, 1]|reject|list", "messages|map(attribute='role')|list", "['a']|map('upper')|list"),
    *("messages|selectattr('role', 'equalto', 'user')|list|length", "messages|rejectattr('role')|list|length"),
    *("messages|map(attribute='x', default='-')|list", "'a\\nb\\r\\nc'.splitlines()", "'a\\nb'.splitlines(true)"),
    *("'a\\tb'.expandtabs()", "'a\\tb'.expandtabs(3)", "'ab'.center(6)", "'ab'.center(5, '*')", "'ab'.ljust(4, '.')"),
    *("'ab'.rjust(4)", "'-7'.zfill(4)", "'a,b,c'.split(',', 1)", "' a  b '.split()", "'a,b,c'.rsplit(',', 1)", "'a b'.split(' ', -1)"),
    *("'aXbX'.replace('X', '-', 1)", "'abcb'.find('b', 2)", "'abcb'.rfind('b', 0, 3)", "'abcb'.count('b', 2)"),
    *("'abc'.startswith('b', 1)", "'abc'.endswith(('b', 'c'))", "'abc'.endswith('b', 0, 2)", "'a=b=c'.partition('=')"),
    *("'a=b=c'.rpartition('=')", "'xxaxx'.strip('x')", "'xxa'.lstrip('x')", "'axx'.rstrip('x')", "'aßB'.casefold()"),
    *("'aB'.swapcase()", "'ab'.removeprefix('a')", "'ab'.removesuffix('b')", "'-'.join(['a', 'b'])", "'{:>4}|{}'.format(1, 2)"),
    *("'{:.2f}|{:>6}'.format(2.5, 1.25)", "'{:c}'.format(97)", "'%.1f|%5d'|format(2.25, 7)"),
    *("{'a': 1}.get('b')", "{'a': 1}.get('b', 2)", "{'a': 1}.copy()", "{'a': 1}.keys()|list", "[1, 2, 1].count(1)"),
    *("[1, 2].index(2)", "7 // 2", "-7 // 2", "-7 % 3", "7 / 2", "2 ** 3", "'ab' * 2", "[1] + [2]", "(1,) + (2,)", "1 < 2 < 2"),
    *("'a' ~ 1 ~ none", "[1, 2, 3][1:]", "'abc'[::-1]", "'abc'[-1]", "[1, 2, 3][:2]", "range(5)|list", "range(1, 9, 3)|list"),
    *("1 is odd", "2 is even", "4 is divisibleby 2", "1 is number", "'a' is string", "{} is mapping", "[] is sequence"),
    *("[] is iterable", "none is none", "1 is sameas 1", "'A' is upper", "'a' is lower", "true is boolean", "true is true"),
    *("1 is integer", "1.0 is float", "1 is in [1]", "1 is eq 1", "1 is ne 1", "1 is lt 1", "1 is le 1", "1 is gt 1", "1 is ge 1"),
    *("nothing is defined", "nothing is undefined", "'upper' is filter", "'odd' is test", "range is callable", "0 is false"),
    *("'a'.__len__ is defined", "{}.__len__ is defined", "[].__class__ is defined"),
    *("{'a': 1}.items()", "{'a': 1}.keys()", "{'a': 1}.values()", "1 not in [2]", "'a' not in 'ab'", "'c' not in 'ab'"),
]  # fmt: skip


def test_expressions_have_the_text_of_transformers() -> None:
    compile_template = pytest.importorskip("transformers.utils.chat_template_utils")._compile_jinja_template
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]
    for expression in EXPRESSIONS:
        template = "{{ " + expression + " }}"
        assert render(template, messages) == compile_template(template).render(messages=messages), expression
