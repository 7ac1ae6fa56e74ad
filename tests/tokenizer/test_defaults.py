"""A keyword that is left out means what it means in the library whose calls these are; filters give jinja2's text."""

# ruff: noqa: E501 - a table of expressions
from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from prelude.tokenizer import ChatTemplateError, TiktokenEncoding, Tokenizer
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
    *("'7'|int + 1", "'x'|int", "'x'|int(5)", "'x'|int('y')", "'ff'|int(0, 16)", "'12'|int(base=8)", "'1.9'|int", "'x'|float", "'x'|float(2)"),
    *("2.5|round", "2.567|round(2)", "2.1|round(0, 'ceil')", "2.9|round(method='floor')", "1234|round(-2)", "(-3)|abs"),
    *("[1, 2]|sum", "[1, 2]|sum(start=3)", "[{'n': 2}, {'n': 3}]|sum('n')", "[{'n': 2}]|sum(attribute='n', start=1)"),
    *("[3, 1, 2]|sort", "['b', 'A', 'c']|sort", "['B', 'a', 'C']|sort", "['b', 'A']|sort(case_sensitive=true)", "[1, 3, 2]|sort(true)"),
    *("['b', 'A', 'B']|min", "['b', 'C']|max", "['a', 'B']|max(case_sensitive=true)", "['b', 'A', 'a']|min(true)"),
    *("[{'n': 2}, {'n': 1}]|sort(attribute='n')", "[{'n': 2}, {'n': 1}]|min(attribute='n')", "[]|max is undefined"),
    *("{'b': 1, 'A': 2}|dictsort", "{'B': 1, 'a': 2}|dictsort", "{'b': 1, 'A': 2}|dictsort(true)", "{'b': 1, 'a': 2}|dictsort(by='value')"),
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
    *("'a'.__len__ is defined", "range.fromkeys is defined", "dict.nope is defined", "{}.__len__ is defined", "[].__class__ is defined"),
    *("{'a': 1}.items()", "{'a': 1}.keys()", "{'a': 1}.values()", "1 not in [2]", "'a' not in 'ab'", "'c' not in 'ab'"),
    *("'%5s|%-5s|%.1s|%r|%a'|format('ab', 'ab', 'ab', 'é', 'é')", "'%d%%'|format(7)"),
    *("'%x %X %#x %o %e %E %G'|format(255, 255, 255, 8, 1.5, 1.5, 1.5)", "'%+d|% d|%05d|%-5d|'|format(7, 7, 7, 7)"),
    *("'%(a)5.2f'|format(a=2)", "'%c%c'|format(97, 'b')", "'%5.2s|'|format('abc')", "'%i%u'|format(1, 2)", "'%s' % 1"),
    *("'%s' % none", "'%s' % [[1]]", "'%s %s' % (1, 'a')", "'%(k)s' % {'k': 1}", "'%s' % {'k': 1}", "'a' % {}"),
    *("'a' % ()", "'%.s|' % ('ab',)", "'%.0f' % 2.5", "'%ld' % 3", "'{} {}'.format(1, none)", "'{1}{0}'.format('a', 'b')"),
    *("'{k}'.format(k='v')", "'{{}}'.format()", "'{!r}{!s}{!a}'.format('é', 'é', 'é')"),
    *("'{:>3}|{:<3}|{:^3}'.format('a', 'b', 'c')", "'{:05d} {:x} {:,} {:_} {:+} {:%}'.format(7, 255, 1234, 1234, 5, 0.5)"),
    *("'{:*^7}'.format('a')", "'{!r}'.format([1, 'a'])", "'{!r}'.format(nothing)", "'{!r}'.format(none)"),
    *("'{!r}'.format({'a': 1})", "'{!a}'.format(['é'])", "'{:#x}'.format(255)", "'{:s}'.format('a')"),
    *("'{:.1}'.format('ab')", "'{:e}'.format(12)", "'{:d}'.format(true)", "'{}'.format(true)", "'{:>6}'.format(true)"),
    *("'{0}{0}'.format('a')", "'{!r:>5}'.format('a')", "'{!s:>5}'.format(1)", "'{:1000}'.format('a')", "'%1000d' % 7"),
    *("'{:.1000f}'.format(0.5)|length", "'%.1000f' % 0.5", "[1, 2, 3, 4, 5][::2]", "[1, 2, 3][::-1]", "(1, 2, 3)[1:]"),
    *("range(9)[2:8:3]|list", "'abc'[1:2]", "[1,2][-1]", "'é'[0]", "messages[0]['role']", "messages[-1].role"),
    *("range(3)[1]", "'a' + 'b' + 'c'", "[1] + [2] + [3]", "1 + 2.5", "1 - 2 - 3", "-(1)", "-1.5", "+2", "2 ** -1"),
    *("2 ** 0.5", "7.5 // 2", "7.5 % 2", "2 * 3", "'ab' * 0", "'ab' * -1", "2 * 'ab'", "[1] * 2", "2 * [1]", "(1,) * 2"),
    *("'é' * 2", "true + 1", "'a' * true", "1 / 4", "5 % -3", "2 ** 10 ** 2", "nothing ~ 'a'", "1 ~ 2"),
    *("1.5 ~ 'a' ~ true", "[1] ~ {}", "nothing ~ nothing", "1 == 1.0", "[1] == [1]", "'a' == 'b'", "{'a': 1} == {'a': 1}"),
    *("(1,) == [1]", "'a' < 'b'", "[1] < [2]", "1 != 2", "nothing == none", "nothing == nothing", "1 <= 1", "2 >= 3"),
    *("1 > 0", "1 in [1, 2]", "'a' in 'abc'", "'a' in {'a': 1}", "'a' in ['a']", "1 in (1,)", "3 in range(5)"),
    *("'a' in {'a': 1}.keys()", "1 in {'a': 1}.values()", "('a', 1) in {'a': 1}.items()", "1 in nothing"),
    *("none in [none]", "2 in [1, 2]|map('abs')", "5 in [1, 2]|map('abs')", "900 in [-900]|map('abs')", "none in {none: 1}", "1.5 in {1.5: 1}"),
    *("{1: 'a', none: 'b', 1.5: 'c'}", "{true: 1}", "{nothing: 1}", "{1: 'a'}[1]", "{'a': 1}['a']", "{'a': 1}['b']"),
    *("{'a': 1}.a", "{'a': 1}.b", "{1152921504606846975: 1}", "{-1152921504606846975: 1}", "{1: 2}[nothing]", "[nothing]"),
    *("[none, true, 1.5, 'a', [], {}, (), range(2)]", "[[1, [2, [3]]]]", "{'a': {'b': ['é']}}", "range(1, 5, 2)"),
    *("[range(2)]", "{}.keys()", "{'a': [1]}.items()", "'\"'~\"'\"", "['\"', \"'\"]", "['\\n']", "'a-b'.split('-')"),
    *("'a b  c'.split(none, 1)", "'a-b-c'.split('-', maxsplit=1)", "'a-b-c'.split(sep='-')", "'a-b-c'.rsplit('-', 1)"),
    *("'a b c'.rsplit(none, 1)", "'a b c'.rsplit()", "'a-b'.split('-', 0)", "''.split('-')", "''.split()"),
    *("'a\\n'.splitlines()", "''.splitlines()", "'a\\r\\nb\\x0bc\\x0cd\\x1ce\\x85f\\u2028g'.splitlines()"),
    *("'a\\nb'.splitlines(keepends=true)", "'abc'.replace('', '-')", "'abc'.replace('b', '')"),
    *("'aaa'.replace('a', 'b', 2)", "'aaa'.replace('a', 'b', -1)", "'aé'.replace('é', 'e')", "'Ab'.upper()"),
    *("'ß'.upper()", "'Ab'.lower()", "'İ'.lower()", "'ab cd'.title()", "'ab'.capitalize()", "'ab'.center(1)"),
    *("'ab'.zfill(5)", "'+1'.zfill(4)", "'ab'.ljust(5)", "'ab'.rjust(5, 'é')", "'a\\tb\\tc'.expandtabs(0)"),
    *("'\\ta'.expandtabs(tabsize=2)", "'a\\tb'.expandtabs(-1)", "','.join('abc')", "','.join([])", "','.join(['a', 'b'])"),
    *("''.join(['a', 'b'])", "','.join({'a': 1})", "'ab'.find('z')", "'a'.count('')", "'abc'.startswith(('x', 'a'))"),
    *("'  a'.lstrip()", "'a  '.rstrip()", "' a '.strip()", "'abcab'.strip('ab')", "'a'.partition('-')"),
    *("'a'.rpartition('-')", "'aab'.removeprefix('b')", "'aab'.removesuffix('ab')", "[1, 2, 1].index(1, 1)"),
    *("[1, 2, 1].index(1, 0, 1)", "[1, 2, 1].index(1, -1)", "(1, 2).index(2)", "(1, 1).count(1)", "[none].index(none)"),
    *("[1, 2, 3].index(2, true)", "[[1]].index([1])", "[].copy()", "[1].copy()", "{}.copy()", "{'a': none}.get('a', 1)"),
    *("{'a': 1}.get('a')", "{}.get('x')", "'a'|center(3)", "'abc'|center(1)", "'a'|indent(width=2, first=true)"),
    *("'a\\nb\\n'|indent", "'a\\n\\nb'|indent(1, true, true)", "''|indent(first=true)", "'a'|string", "[1]|string"),
    *("'a'|e", "'<a href=\"x\">&\\'</a>'|escape", "'<'|safe", "[1, '<']|e", "none|e", "'3'|float", "3|float"),
    *("'1e3'|float", "'nan'|float", "none|int", "none|float", "true|int", "2.9|int", "'0x1f'|int(0, 16)"),
    *("'0b11'|int(0, 2)", "'z'|int(default=3)", "'z'|float(default=1)", "'12'|int(9, 3)", "-2.5|round"),
    *("2.55|round(1, 'floor')", "2.5|round(precision=0)", "15|round(-1, 'ceil')", "3|round", "(-1.5)|abs", "1|abs"),
    *("[1.5, 2]|sum", "[[1], [2]]|sum(start=[])", "[]|sum", "[{'n': {'m': 1}}]|sum('n.m')"),
    *("[(1, 2)]|map(attribute=0)|list", "[(1, 2), (3, 4)]|sum(1)", "[(2, 'a'), (1, 'b')]|sort"),
    *("['b', 'a']|sort(reverse=true)", "[{'n': 2, 'm': 1}, {'n': 2, 'm': 0}]|sort(attribute='n,m')", "'cba'|sort"),
    *("{'b': 1, 'a': 2}|sort", "[3, 1]|min", "[3, 1]|max", "[]|min is undefined", "['a', 'B']|max"),
    *("[{'n': 1}, {'n': 5}]|max(attribute='n')", "{'B': 1, 'a': 0}|dictsort(false, 'value', true)"),
    *("{'B': 1, 'a': 0}|dictsort(case_sensitive=true)", "[1, 1, 2]|unique|list", "'aAb'|unique|list"),
    *("[none, none]|unique|list", "[1, 2, 3]|batch(linecount=2, fill_with='x')|list", "[]|batch(3)|list"),
    *("[1, 2, 3]|slice(2)|list", "[]|slice(2)|list", "[1]|slice(3, 0)|list", "range(5)|slice(slices=2, fill_with=9)|list"),
    *("'abc'|batch(2)|list", "'abcd'|slice(2)|list", "{'a': 1}|items|list", "nothing|items|list", "{'b': 1}.items()|list"),
    *("{'a': 1}.values()|list", "[]|first is undefined", "range(3)|last", "{'a': 1}|first", "range(3)|reverse|list"),
    *("{'a': 1, 'b': 2}|reverse|list", "'é1'|reverse", "[1, 2]|map('string')|reverse|list", "[1, 2]|map('string')|join"),
    *("['a b']|map('replace', 'a', 'c')|list", "['a', 'b']|map('upper')|join(',')", "[['a']]|map('map', 'upper')|map('list')|list"),
    *("messages|map(attribute='role')|join(', ')", "messages|map('length')|list"),
    *("messages|selectattr('role')|list|length", "messages|selectattr('x')|list"),
    "messages|rejectattr('role', 'eq', 'tool')|map(attribute='content')|list",
    *("messages|selectattr('x', 'defined')|list", "messages|selectattr('x', 'undefined')|list|length"),
    *("[1, 2, 3]|select('gt', 1)|list", "[1, 2, 3]|reject('in', [1])|list", "none|select|list", "''|map('upper')|list"),
    *("nothing|map('upper')|list", "nothing|default", "none|default('x', true)", "0|d(1, boolean=true)"),
    *("nothing|d(default_value=2)", "'a.b'|replace('.', '-')", "1|replace(1, 2)", "'aaa'|replace('a', 'b', count=1)"),
    *("'aaa'|replace('a', 'b', none)", "none|trim", "' a'|trim", "'xa'|trim(chars='x')", "'foo bar'|wordcount"),
    *("1|wordcount", "'x y'|title", "'a'|title", "1.5|title", "{'a': [1, {'b': none}]}|tojson(indent=2)", "'é'|tojson"),
    *("(1, 2)|tojson", "[]|tojson(indent=2)", "{1: 2}|tojson", "[1, 2]|tojson(separators=(',', ':'))"),
    *("{'b': [1], 'a': 2}|tojson(indent=1, sort_keys=true)", "'</script>'|tojson", "{'a': 1}|tojson(indent='\\t')"),
    *("[1]|tojson(indent=true)", "[1]|tojson(indent=0)", "[1]|tojson(indent=-1)", "'abc'|truncate(3)"),
    *("'abcdefgh'|truncate(3, true, '', 0)", "'abc def ghi'|truncate(length=7, end='…', leeway=0)"),
    *("'abcdef'|truncate(5, leeway=1)", "[1, 2]|truncate(3)", "1 is divisibleby 1", "4 is divisibleby(3)", "2.0 is even"),
    *("3 is even", "2 is odd", "true is odd", "'a' is upper", "'AB' is upper", "1 is lower", "'a' is filter"),
    *("'zz' is test", "'in' is test", "1 is callable", "none is callable", "'a' is callable", "1 is lessthan 2"),
    *("1 is greaterthan 2", "1 is equalto 1", "'a' is in 'abc'", "1 is ge(2)", "(1, 2)", "[1, 'a', (1,)]", "dict(a=1)"),
    *("dict([('a', 1)])", "dict({'a': 1}, b=2)", "range(5, 0, -2)|list", "namespace(a=1).a", "cycler('a', 'b').next()"),
    *("'a' is eq 'a'", "1 < 2 == true", "1 < 3 > 2", "1 == 1 != 2", "3 > 2 > 1", "1 < 2 < 2 < 3", "1 not in [1]"),
    "strftime_now('%Y')|length",
]  # fmt: skip


def test_expressions_have_the_text_of_transformers() -> None:
    compile_template = pytest.importorskip("transformers.utils.chat_template_utils")._compile_jinja_template
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]
    for expression in EXPRESSIONS:
        template = "{{ " + expression + " }}"
        assert render(template, messages) == compile_template(template).render(messages=messages), expression


FAILING = [
    *("'%d' % 'a'", "'%d' % none", "'%d' % [[1]]", "'%' % 1", "'%s%s' % 1", "'%s' % (1, 2)", "'%(a)s' % 1"),
    *("'%(a)s' % {}", "'%s' % ()", "'a' % 1", "'%c' % 'ab'", "'%c' % 1.5", "'%x' % 1.5", "'{}'.format()"),
    *("'{a}'.format()", "'{'.format()", "'{!x}'.format(1)", "'{:d}'.format('a')", "'{:s}'.format(1)"),
    *("'{:>3}'.format(none)", "'{:>3}'.format([])", "'{1}'.format(0)", "nothing + 1", "1 + 'a'", "'a' + 1", "'a' - 1"),
    *("[1] + (1,)", "1 // 0", "1 % 0", "1 / 0", "1.5 % 0", "0 ** -1", "-'a'", "-none", "+[]", "-nothing", "nothing * 2"),
    *("'a' * 1.5", "'a' * 'b'", "{} + {}", "[] * 1.0", "'%s' - 'a'", "'a' + ['b']", "['b'] + 'a'", "[1] + nothing", "none + none", "'a' ** 2", "[][0].x", "{}.a.b", "none.a.b"),
    *("1 in 'abc'", "1 in 5", "none in 'a'", "1 < 'a'", "none < 1", "[1] < ['a']", "{} < {}", "nothing < 1"),
    *("'a'.split('')", "'a'.split(1)", "'a'.partition('')", "'a'.index('b')", "'a'.rindex('b')", "'a'.replace('a')"),
    *("'a'.replace(1, 2)", "'a'.join(1)", "'a'.center(5, 'bc')", "'a'.startswith(1)", "'a'.count()", "'a'.strip(1)"),
    *("[].index()", "[].count()", "{}.get()", "'a'.zfill()", "'a'.zfill(3, '0')", "'a'.upper(1)", "'a'.nope()"),
    *("[].nope()", "{}.nope()", "'a'.find()", "'a'|round", "none|round", "1|round(0, 'up')", "1|round(0, 1)", "1|round(0, [])", "5|truncate", "['a']|sum(start='')", "none|abs", "'a'|abs"),
    *("none|length", "1|length", "1|list", "none|list", "1|first", "none|join", "1|join", "1|sum", "none|sum"),
    *("['a']|sum", "[1, 'a']|sort", "1|sort", "[1, 'a']|max", "1|dictsort", "[]|dictsort", "{'a': 1}|dictsort(by='x')"),
    *("1|unique|list", "[1]|batch|list", "[1]|slice(0)|list", "1|items|list", "'a'|items|list", "none|items|list"),
    *("['a']|map('nope')|list", "['a']|map|list", "['a']|map(attribute='x', foo=1)|list", "['a']|select('nope')|list"),
    *("['a']|selectattr|list", "nothing|tojson", "[nothing]|tojson", "range|tojson", "{}.items()|tojson"),
    *("1|tojson(indent=2.5)", "'abc'|truncate(2)", "'abc'|truncate('a')", "'a'|replace('b')", "1 is divisibleby 0"),
    *("1 is nope", "1|nope", "nothing.x", "nothing()", "nothing|abs", "nothing|round", "nothing|int(nothing)"),
    *("nothing[0]", "1 +", "'a", "[1, 2", "{1}", "1 if", "range(1, 2, 0)|list", "range()", "dict(1)", "dict([1])"),
    *("cycler().next()", "namespace(1)", "raise_exception()", "raise_exception('x')", "strftime_now()", "loop.index"),
]  # fmt: skip


def test_expressions_fail_as_in_transformers() -> None:
    compile_template = pytest.importorskip("transformers.utils.chat_template_utils")._compile_jinja_template
    for expression in FAILING:
        template = "{{ " + expression + " }}"
        with pytest.raises(Exception) as theirs:
            compile_template(template).render()
        with pytest.raises(ChatTemplateError, match=rf"\b{type(theirs.value).__name__}: "):
            render(template, [])
            pytest.fail(expression)
