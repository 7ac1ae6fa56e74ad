"""A template reaches nothing outside its sandbox, and ends in bounded time, steps and memory."""

from __future__ import annotations

import contextlib
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from prelude.tokenizer import ChatTemplateError
from prelude.tokenizer.chat import Bounds

from tests.patience import PATIENCE, shown
from tests.tokenizer.template_attacks import ATTACKS
from tests.tokenizer.template_child import TemplateChild
from tests.tokenizer.templates import CHATML, render


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}", "{{ cycler.__init__.__globals__ }}",
        "{{ joiner.__init__.__globals__ }}", "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.x }}", "{{ strftime_now.__globals__.x }}", "{{ range.__self__.x }}",
        "{{ dict.fromkeys.__func__.__globals__ }}", "{{ self.__init__.__globals__ }}",
        "{{ (messages|attr('__class__')).__base__.x }}", "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': ''}) }}", "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}", "{{ 'x'.encode() }}", "{{ environment.x.y }}",
        "{{ caller.__globals__.x }}", "{{ nothing._undefined_exception }}", "{{ nothing._undefined_obj.x }}",
        "{{ messages[0].nothing._fail_with_undefined_error() }}", "{{ [1] | map('__class__') | list }}",
        "{{ loop._iterable.x }}{% for m in messages %}{{ loop._iterable.x }}{% endfor %}",
        "{{ self._TemplateReference__context.x }}", "{% macro f() %}{% endmacro %}{{ f._environment.x }}",
        "{{ joiner('a').sep.x }}", "{% set f = 'a'.upper %}{{ f.owner.x }}{{ f.run.x }}",
    ],
)  # fmt: skip
def test_the_sandbox_holds(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(template)


@pytest.mark.fault(36)
@pytest.mark.parametrize("name", ["__class__", "_Namespace__attrs"])
def test_a_namespace_has_no_private_attribute(name: str) -> None:
    shown = render(f"{{% set ns = namespace(a=1) %}}{{{{ ns.a is defined, ns.{name} is defined }}}}")
    assert shown == "(True, False)"


@pytest.mark.fault(36)
def test_objects_become_the_name_of_their_type() -> None:
    class Dangerous:
        def write(self) -> None:
            raise AssertionError("a template called a method of an argument")

    messages = [{"role": "user", "content": "x", "image": Dangerous()}]
    assert render("{{ messages[0].image }}", messages) == "<Dangerous>"
    with pytest.raises(ChatTemplateError):
        render("{{ messages[0].image.write() }}", messages)


# ---- bounds
WORK, ENOUGH_WORK = 1_000_000, 8_000_000  # a fortieth and a fifth of a rendering's bound
BIG = "{% set big = 'a' * 1000000 %}"
BOMBS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(9000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "{% for i in range(9000) %}{% for j in range(9000) if false %}{% endfor %}{% endfor %}" * 40,
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x|replace('a','aa') %}{% endfor %}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x|tojson }}",
    "{{ 'a' * 10**10 }}",
    "{{ [1] * 10**9 }}",
    "{{ 9 ** 99999999 }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10**10, 1) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**10) }}",
    "{{ '{0}{0}{0}{0}{0}{0}{0}{0}{0}'.format('a' * 1000000) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ 'a'|center(10**10) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a'.zfill(10**10) }}",
    "{{ '\t'.expandtabs(10**10) }}",
    "{{ 'a'|indent(10**10, true) }}",
    "{{ 'a'|indent('x' * 1000000 * 9, true) }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{{ (1).to_bytes(10**10, 'big') }}",
    "{{ 'aaaaaaaaaaa'.replace('a', 'x' * 1000000) }}",
    BIG + "{{ ([big] * 100000)|join }}",
    BIG + "{{ ''.join([big] * 100000) }}",
    BIG + "{{ ([big] * 100000)|tojson }}",
    BIG + "{{ [big] * 100000 }}",
    BIG + "{{ ([big] * 100000)|map('upper')|list|length }}",
    BIG + "{{ ([big] * 100000)|sort }}",
    BIG + "{{ ('%s' * 1000)|format(*[big] * 1000) }}",
    BIG + "{% for i in range(100000) %}{{ big }}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{{ f(x) ~ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "{{ " + "-" * 20000 + "1 }}",
    "{{ 1" + "+1" * 20000 + " }}",
    "{% if x %}" * 3000,
    "{% for a in messages %}" * 60 + "{% endfor %}" * 60,
    "x" * 2_000_000,
]


@pytest.mark.fault(37)
@pytest.mark.parametrize("template", BOMBS)
def test_bombs_end_in_an_error(template: str) -> None:
    before = time.process_time()
    with pytest.raises(ChatTemplateError):
        render(template, bounds=Bounds(max_seconds=1.0, max_work=WORK))
    assert time.process_time() - before < 20


@pytest.mark.fault(37)
def test_a_range_is_refused_by_its_length() -> None:
    assert render("{% set x = range(7) %}{{ x|length }}", bounds=Bounds(max_range=7)) == "7"
    with pytest.raises(ChatTemplateError, match="a range of 8; the limit is 7"):
        render("{% set x = range(8) %}{{ x|length }}", bounds=Bounds(max_range=7))


@pytest.mark.fault(37)
def test_sources_have_a_bounded_size() -> None:
    """Each limit is reached, and passed by one."""
    for source, nodes, says in (
        ("{{ " + "(" * 40 + "1" + ")" * 40 + " }}", 17, "80 tokens"),
        ("{{ [1, 2] }}", 5, "4 nodes"),
    ):
        render(source, bounds=Bounds(max_nodes=nodes))
        with pytest.raises(ChatTemplateError, match=says):
            render(source, bounds=Bounds(max_nodes=nodes - 1))
    assert render("{{ 7" + "|abs" * 97 + " }}") == "7"
    with pytest.raises(ChatTemplateError, match=r"nested deeper than 100 \(line 2\)"):
        render("\n{{ 7" + "|abs" * 98 + " }}")
    with pytest.raises(ChatTemplateError, match="the limit is 2000000") as caught:
        render("a" * 2_000_000, bounds=(large := Bounds(max_template=2_000_000)))
    more = int(str(caught.value).split()[5]) - 2_000_000  # what jinja2 writes around the text
    assert len(render("a" * (2_000_000 - more), bounds=large)) == 2_000_000 - more
    with pytest.raises(ChatTemplateError, match="compiles to 2000001 "):
        render("a" * (2_000_001 - more), bounds=large)
    with pytest.raises(ChatTemplateError, match="seconds of processor time"):
        render("compiling alone", bounds=Bounds(max_seconds=0.0))
    assert render("what the thread did before", bounds=Bounds(max_seconds=time.thread_time()))
    nested = "{% set ns = namespace(x=[]) %}{% for i in range(n) %}{% set ns.x = [ns.x] %}{% endfor %}"
    assert render(nested + "{{ ns.x != ns.x }}", n=398) == "False"
    with pytest.raises(ChatTemplateError, match="nested deeper than 400"):
        render(nested + "{{ ns.x != ns.x }}", n=399)


@pytest.mark.fault(37)
def test_a_bomb_leaves_other_renderings_alone() -> None:
    done: list[str] = []

    def bomb() -> None:
        with pytest.raises(ChatTemplateError):
            render(BOMBS[1], bounds=Bounds(max_seconds=1.0))
        done.append("bomb")

    thread = threading.Thread(target=bomb)
    thread.start()
    while thread.is_alive():
        assert render(CHATML, bounds=Bounds(max_seconds=PATIENCE)) == "<|im_start|>user\nHello!<|im_end|>\n"
    thread.join()
    assert done == ["bomb"]


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        ("{{ 10 ** 700 }}", None, "makes a number of more than 2048 bits"),
        ("{{ 2 ** 10 ** 400 }}", None, "makes a number of more than 2048 bits"),
        ("{{ 0x" + "f" * 600 + " }}", None, "a number of 2400 bits; the limit in chat templates is 2048"),
        ("{{ ('z' * 500)|int(0, 36) }}", None, "a number of 2585 bits"),
        ("{{ messages|tojson(indent=10 ** 300) }}", None, "the indent of tojson"),
        ("{{ '%" + "9" * 5000 + "d' % 1 }}", None, "a field width or precision of 9{20}; the limit"),
        (CHATML, [{"role": "user", "content": "x", "n": 10**700}], "a number of 2326 bits"),
        (CHATML, [{"role": "user", "content": "x", 10**400: 1}], "not of 1329 bits"),
    ],
)
def test_numbers_have_a_bounded_size(template: str, messages: Any, says: str) -> None:
    """A list of 100,000 numbers of 4,000 digits took more than 10 seconds to become text."""
    with pytest.raises(ChatTemplateError, match=says):
        render(template, messages or [])
    assert render("{{ 10 ** 500 }}") == "1" + "0" * 500


@pytest.mark.fault(37)
@pytest.mark.parametrize("test", ["odd", "even", "divisibleby(3)"])
def test_tests_of_numbers_take_no_text(test: str) -> None:
    with pytest.raises(ChatTemplateError, match="a test of numbers takes no str in chat templates"):
        render("{{ '%.999f' is " + test + " }}")
    assert render("{{ 7 is odd, 6 is even, 9.0 is divisibleby(3) }}") == "(True, True, True)"


def test_bounds_are_the_callers_choice() -> None:
    template = "{% for i in range(50) %}a{% endfor %}"
    made = "{% for i in range(50) %}{% set x = [" + "1," * 100 + "] %}{% endfor %}"
    assert render(template + made, bounds=Bounds(max_work=8000, max_memory=100_000)) == "a" * 50
    unused = "{% for i in range(50) %}{% for j in [] %}" + "{{ i }}" * 100 + "{% endfor %}{% endfor %}"
    assert render(unused, bounds=Bounds(max_work=2000)) == "", "a body is charged each time it runs"
    for text, bounds, says in (
        (template, Bounds(max_work=100), "more than 100 units"), (template, Bounds(max_nodes=5), "more than 5 nodes"),
        (template, Bounds(max_memory=1000), "more than 1000 bytes"), (template, Bounds(max_range=49), "limit is 49"),
        (template + "{{ raise_exception('late') }}", Bounds(max_output=49), "limit is 49 .Bounds.max_output"),
        (template, Bounds(max_template=10), "limit is 10"), (made, Bounds(max_work=5000), "more than 5000 units"),
        (made, Bounds(max_memory=40_000), "more than 40000 bytes"),
        ("{% set x = '🙂' * 10000 %}", Bounds(max_memory=30_000), "more than 30000 bytes"),
    ):  # fmt: skip
        with pytest.raises(ChatTemplateError, match=says):
            render(text, bounds=bounds)
    with pytest.raises(ChatTemplateError, match="seconds of processor time"):
        render("{% for i in range(100000) %}{% endfor %}", bounds=Bounds(max_seconds=0.0))


# ---- attacks, each in a process of its own that may use 256 MB
@pytest.fixture(scope="module")
def child() -> Iterator[TemplateChild]:
    with TemplateChild() as child:
        yield child


# One of each kind (hashing, comparing, looping) runs with the bounds as they are; those that keep their values with
# enough work to come to the bound of memory; all others with a fortieth of the work. Where that ends one, its time
# is bounded too: a unit of work may take as long as in the others.
TURNS = "{% for i in range(100000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}"
WHOLE = frozenset(["key_get", "filtered_select"])
KEEPING = frozenset(["rangelist", "iter_keep", "join_chars", "strs_keep", "macro_keep", "dictkeep", "center"])


@pytest.mark.long
@pytest.mark.fault(37)
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_stay_within_256_megabytes_and_5_seconds(name: str, child: TemplateChild) -> None:
    """The child counts its own processor time; one that is past the bounds gets ``MemoryError`` or is killed. A slow
    or a loaded processor takes longer over the same work: an empty loop of as much work, in a child as well, says how
    much longer. A unit of work may take 15 times as long as one of its turns."""
    work = {"max_work": ENOUGH_WORK if name in KEEPING else WORK}
    seen = []

    def stays_within() -> bool:
        found = child.render(ATTACKS[name], bounds=None if name in WHOLE else work)
        seen.append(found)
        message = found.get("message", "")
        assert found.get("error") in (None, "ChatTemplateError"), found
        assert "MemoryError" not in message, found
        assert found["megabytes"] < 256, found
        stopped_early = "Bounds.max_work" in message and name not in WHOLE | KEEPING
        most = 1 if stopped_early else 6  # 5, and the last operation before a look at the clock
        if found["seconds"] < most:
            return True
        turns = child.render(TURNS, bounds={"max_work": WORK})
        assert "Bounds.max_work" in turns["message"], turns
        return bool(found["seconds"] < most - 1 + max(1, 15 * turns["seconds"]))

    assert shown(stays_within, 5), seen


@pytest.mark.fault(37)
@pytest.mark.parametrize("filter", ["map('string')", "select", "reject('none')", "batch(1)", "unique"])
def test_filters_read_their_items_at_once(filter: str) -> None:
    """Iterators over 100,000 iterators ended the process when they were read."""
    layers = "{{% set ns = namespace(g=['x']) %}}{{% for i in range({}) %}}{{% set ns.g = ns.g|{} %}}{{% endfor %}}"
    assert render(layers.format(300, filter) + "{{ ns.g is iterable }}") == "True"
    listed = layers.format(60, filter + "|list") + "{{ ns.g|length }}"
    assert render(listed) == "1"


MEGABYTE = "{% set m = 'a' * 1000000 %}"


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    "operation",
    [
        "m * 8", "m ~ m ~ m ~ m", "m + m + m + m", "[m, m, m, m] | join", "''.join([m, m, m, m])",
        "m.replace('a', 'aaaa')", "m | replace('a', 'aaaa')", "'%s%s%s%s' % (m, m, m, m)", "'{0}{0}{0}{0}'.format(m)",
        "[m, m, m, m] | string", "[m, m, m, m] | tojson", "[[[[[[[[1, 2]]]]]]]] | tojson(indent=64) ~ m ~ m ~ m",
        "'\t'.expandtabs(4000000)", "'a'.center(4000000)", "'a' | center(4000000)", "'a'.zfill(4000000)",
        "'a' | indent(4000000, true)", "[1] * 1000000", "m | list", "m.split('a')", "(' a' * 500000).split()",
        "('a\n' * 500000).splitlines()", "range(100000) | list", "range(90000) | map('string') | list", "m | title",
        "m.split('a', 999999)", "m.title()", "m | batch(1) | list", "('é' * 1000000) ~ ''",
        "[1] | batch(100000, 0) | list + [1] * 1000000",
        "dict.fromkeys(range(50000))", "m | unique | list ~ m ~ m ~ m", "m | sort", "m | e",
        "m | truncate(2000000) ~ m ~ m",
    ],
)  # fmt: skip
def test_memory_is_charged_before_it_is_made(operation: str) -> None:
    """The value of a refused operation is never made: 3 MB are allowed, and the peak stays near them."""
    template = MEGABYTE + "{{ " + operation + " }}"
    with contextlib.suppress(ChatTemplateError):
        render(template, bounds=Bounds(max_memory=3_000_000))  # compiled outside of the measurement

    def peak() -> int:
        tracemalloc.start()  # of all threads, and so of those that earlier tests left
        try:
            with pytest.raises(ChatTemplateError, match="more than 3000000 bytes"):
                render(template, bounds=Bounds(max_memory=3_000_000))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert shown(lambda: peak() < 4_500_000, 5)


def test_ordinary_chats_are_far_below_the_bounds() -> None:
    """A tenth of the bounds is enough for a chat of a hundred turns and a megabyte."""
    chat = [{"role": "user" if i % 2 else "assistant", "content": "word " * 2000} for i in range(100)]
    small = Bounds(max_work=4_000_000, max_memory=16_000_000)
    assert len(render(CHATML, chat, bounds=small)) > 1_000_000


def test_an_error_keeps_no_value_of_the_template_alive() -> None:
    def kept() -> int:
        tracemalloc.start()
        try:
            with pytest.raises(ChatTemplateError) as caught:
                render("{% set x = 'a' * 4000000 %}{{ raise_exception('no') }}")
            assert "no" in str(caught.value)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert shown(lambda: kept() < 1_000_000, 5)


@pytest.mark.fault(59)
def test_messages_are_not_refused_where_this_process_has_no_memory() -> None:
    """One allocation fails, then the next one: the text, or a ``MemoryError``."""
    testcapi = pytest.importorskip("_testcapi", reason="this Python was built without its test module")
    want, failed = render(CHATML), 0
    for n in range(0, 600, 7):
        got = ""
        testcapi.set_nomemory(n, n + 1)
        try:
            got = render(CHATML)
        except MemoryError:
            failed += 1
        finally:
            testcapi.remove_mem_hooks()
        assert got in ("", want), n
        assert render(CHATML) == want
    assert failed > 3
