"""Chat templates: the renders of transformers, errors, arguments."""

from __future__ import annotations

import contextvars
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from prelude.tokenizer import ChatTemplateError, Tokenizer
from prelude.tokenizer.chat import Bounds, apply_chat_template, render_segments

from tests.tokenizer.templates import CHATML, HELLO, render


# ---- the renders of transformers
@pytest.fixture(scope="session")
def cases(shared: Path) -> Any:
    folder = shared / "chat_templates"
    return folder, json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def arguments(case: Any) -> dict[str, Any]:
    named = {k: case.get(k[:3]) for k in ("bos_token", "eos_token")}
    return {**case["kwargs"], **{k: v for k, v in named.items() if v is not None}}


def test_renders_equal_those_of_transformers(cases: Any) -> None:
    folder, expected = cases
    for case in expected["cases"]:
        template = (folder / f"{case['template']}.jinja").read_text(encoding="utf-8")
        chat = expected["chats"][case["chat"]]
        if "error" in case:
            with pytest.raises(ChatTemplateError) as caught:
                apply_chat_template(chat, template, **arguments(case))
            assert case["error"] in str(caught.value)
            continue
        assert apply_chat_template(chat, template, **arguments(case)) == case["text"]
        pieces = render_segments(chat, template, **arguments(case))
        assert "".join(text for text, _ in pieces) == case["text"]
        assert all(text for text, _ in pieces)
        assert all(a[1] != b[1] for a, b in pairwise(pieces))


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "warm", "arguments": {"in": "Rome"}}}
WITH_NONE: list[list[dict[str, Any]]] = [
    [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "yes", "tool_call_id": "abcdefghi", "name": None},
    ],
    [
        {"role": "user", "content": "Is it warm?", "tool_calls": None, "name": None},
        {"role": "assistant", "content": "Yes.", "tool_calls": None, "refusal": None, "function_call": None},
        {"role": "user", "content": "Sure?"},
    ],
]


@pytest.mark.parametrize("chat", WITH_NONE)
def test_keys_that_are_none_are_not_there(cases: Any, chat: Any) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    rendered = 0
    for path in sorted(cases[0].glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        try:
            expected = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)
        except Exception:  # a template without tools
            with pytest.raises(ChatTemplateError):
                apply_chat_template(chat, template, bos_token="<s>", eos_token="</s>")
            continue
        rendered += 1
        assert apply_chat_template(chat, template, bos_token="<s>", eos_token="</s>") == expected, path.name
        assert "None" not in expected
    assert rendered > 3


@pytest.mark.fault(25)
def test_segments_give_the_expected_ids_and_no_control_token_from_the_user(cases: Any, json_of: Any) -> None:
    folder, expected = cases
    loaded: dict[str, Tokenizer] = {}
    for case in expected["cases"]:
        if "error" in case:
            continue
        name = case["tokenizer"]
        if name not in loaded:
            loaded[name] = Tokenizer.from_str(json_of(name))
        tokenizer = loaded[name]
        template = (folder / f"{case['template']}.jinja").read_text(encoding="utf-8")
        chat = expected["chats"][case["chat"]]
        pieces = render_segments(chat, template, **arguments(case))
        ids = tokenizer.encode_segments(pieces).tolist()
        if name != "phi-3":  # whose special tokens swallow white space
            assert tokenizer.decode(ids, skip_special_tokens=False) == case["text"]
        theirs = tokenizer.encode_array(case["text"], False).tolist()
        assert theirs == case["ids"]
        added = tokenizer.get_added_tokens_decoder()
        control = {id for id, token in added.items() if token.special or token.content in template}
        user = [t for t, trusted in pieces if not trusted]
        hostile = any(set(tokenizer.encode_array(t, False).tolist()) & control for t in user)
        if not hostile:
            assert ids == case["ids"]
        else:
            trusted_ids = [
                i
                for t, trusted in pieces
                if trusted
                for i in tokenizer.encode_array(t, False).tolist()
                if i in control
            ]
            assert [i for i in ids if i in control] == trusted_ids


# ---- errors
@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (None, HELLO, "no chat template"), (7, HELLO, "chat_template is a string, not int"),
        ("{{ 'x' }", HELLO, "TemplateSyntaxError.*line 1"), ("\n{% if %}", HELLO, "line 2"),
        ("{% nonsense %}", HELLO, "nonsense"),
        ("{{ raise_exception('roles must alternate') }}", HELLO, "roles must alternate"),
        ("{{ messages[0].role.nothing.at_all }}", HELLO, "UndefinedError.*'str object' has no attribute 'nothing'"),
        ("{{ messages[0].nothing.at_all }}", HELLO, "^UndefinedError.*'dict object' has no attribute 'nothing'"),
        ("{{ '%s%s' % ('a',) }}", HELLO, "not enough arguments for format string"),
        ("{{ '%s' % ('a', 'b') }}", HELLO, "not all arguments converted"),
        ("{{ '%(a)s' % ('b',) }}", HELLO, "format requires a mapping"),
        (CHATML, [{"content": "x"}], r"messages\[0\].role: missing"),
        (CHATML, [*HELLO, {"role": 5, "content": "x"}], r"messages\[1\].role: a string, not int"),
        (CHATML, ["hi"], r"messages\[0\]: a message is a dict .* not str"),
        (CHATML, "hi", "messages: a list, not str"), (CHATML, None, "messages: a list, not NoneType"),
        ("{{ messages[0].role }}", [], "^without messages: UndefinedError: .* has no attribute 'item of type int'$"),
        ("{% include 'x' %}", HELLO, "'include' is left out"),
        ("{% from 'x' import y %}", HELLO, "'from' is left out"),
        ("{% autoescape true %}{% endautoescape %}", HELLO, "'autoescape' is left out"),
        ("{{ raise_exception(*['x']) }}", HELLO, r"'\*' and '\*\*' in a call are left out"),
        ("{{ raise_exception(**{'x': 1}) }}", HELLO, r"'\*' and '\*\*' in a call are left out"),
        ("{{ 'a'|lower(1) }}", HELLO, r": lower\(\) takes"), ("{{ 'a'.center() }}", HELLO, r": center\(\) missing"),
        ("{{ ['x'].index('x', none) }}", HELLO, "TypeError"), ("{{ ['x'].index('x', 0, none) }}", HELLO, "TypeError"),
        ("{% set x = ['a']|map('abs') %}ok", HELLO, "TypeError"),  # of an item that nothing reads
    ],
)  # fmt: skip
def test_errors_name_the_field(template: Any, messages: Any, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        apply_chat_template(messages, template)


WIDE, KEY, TOO_MANY_BITS = (
    "of 1001; the limit is 1000",
    "a key of a dict is a string, a number below",
    "than 2048 bits",
)
NAMED, A, B = "a name of 1001 characters", "attribute='a' * 1000", "attribute='a' * 1001"
LIMITS = [  # (taken, refused)
    ("'%1000d' % 7", "'%1001d' % 7", WIDE), ("'%.1000f' % 7", "'%.1001f' % 7", WIDE),
    ("'{:1000}'.format(7)", "'{:1001}'.format(7)", WIDE), ("'{:.1000f}'.format(7)", "'{:.1001f}'.format(7)", WIDE),
    ("'{:<+#020,.30f}'.format(7.5)", "'{:{}}'.format(7, 1)", "a format that is left out"),
    (f"'%({'k' * 1000})s' % {{'k' * 1000: 1}}", f"'%({'k' * 1001})s' % {{'k' * 1001: 1}}", "at most 1000 characters"),
    ("{}.get(1 - 2 ** 60)", "{}.get(-(2 ** 60))", KEY), ("{}.get(1)", "{1: 2}[(1,)]", KEY),
    ("{1152921504606846975: 1}", "{1152921504606846976: 1}", KEY),
    ("{2 ** 60 - 1: 1}", "{2 ** 60: 1}", KEY), ("{1.5: 1}", "{(1,): 1}", KEY),
    ("1 in {1: 2}", "(1,) in {1: 2}", KEY), ("{}.get(1)", "{}.get((1,))", KEY), ("[1]|unique", "[[1]]|unique", KEY),
    ("1.5|round(64)", "1.5|round(65)", "at most 64 .* not the number 65"),
    ("1.5|round(-64)", "1.5|round(-65)", "at most 64 .* not the number -65"),
    ("[1]|tojson(indent=64)", "[1]|tojson(indent=65)", "at most 64 .* not the number 65"),
    ("[1]|batch(100000)|list|length", "[1]|batch(100001)", "size of batch .* 100000 .* the number 100001"),
    ("[]|slice(100000)|list|length", "[]|slice(100001)", "number of slices .* 100000 .* the number 100001"),
    ("range(100000)|length", "range(100001)", "a range of 100001; the limit is 100000"),
    ("range(2 ** 60, 2)", "range(2 ** 60 + 1, 2)", f"at most {1 << 60} .* not the number {(1 << 60) + 1}"),
    ("'a'.center(9)", "'a'.center(8000001)", "8000000 .* the number 8000001"),
    ("'a'.expandtabs(9)", "'a'.expandtabs(8000001)", "8000000 .* the number 8000001"),
    ("'a'|indent(9)", "'a'|indent(8000001)", "8000000 .* the number 8000001"),
    ("8 ** 255 * (8 ** 255 * 8 ** 172) > 0", "8 ** 255 * (8 ** 255 * 8 ** 172 * 2)", TOO_MANY_BITS),
    ("1 in [1]", "1 < 2 in [2]", "'in' in a chain"), ("1 - 1", "{}.keys() - {}.keys()", "unsupported operand"),
    ("[1] + [2]", "[1] + none", "operand types for .: list and NoneType"),
    ("[1]", "[1] + nothing", "'nothing' is undefined"), ("[1]", "nothing + [1]", "'nothing' is undefined"),
    ("1 + 2", "1 - {}.keys()", "operand types for -: int and dict_keys"),
    ("(2 ** 682) ** 2 > 0", "(2 ** 682) ** 3", TOO_MANY_BITS), ("4 ** 0.5", "(-4) ** 0.5", "a root of a negative"),
    ("('9' * 616)|int", "('9' * 617)|int", "a number of 2050 bits; the limit in chat templates is 2048"),
    *((f"[]|{one}({A})|list", f"[{{'a' * 1001: 1}}]|{one}({B})", NAMED) for one in ("map", "sort", "unique", "join")),
    (f"[{{}}]|min({A})", f"[{{'a' * 1001: 1}}]|min({B})", NAMED), (f"[]|sum({A})", f"[]|sum({B})", NAMED),
    ("['a']|select('eq', 'b' * 1000)", "['a']|select('eq', 'b' * 1001)", NAMED),
    ("[1].index(1)", "[1].index(2)", "list.index: the list has no such item"),
    ("{}.keys()|list == []", "{}.keys() == []", "a view of a dict"), ("[1][0:1]", "{}[1:]", "slices a value"),
    ("{'a': [range(2)]}", "{'a': [range]}", "a value of type partial"),
    ("cycler('a').current", "cycler('a')", "a value of type Cycler, which has no text"),
    ("2 is odd", "'2' is odd", "a test of numbers takes no str"), ("2 is even", "none is even", "takes no NoneType"),
    ("4 is divisibleby 2", "4 is divisibleby '2'", "takes no str"), ("'%d' % 1", "'%y' % 1", "character 'y'"),
    ("'%r' % 1", "'%r' % range", "a value of type partial"), ("'%5d' % 1", "'%*d' % (5, 1)", "'*' is left out"),
    ("'%(a)s' % {'a': 1}", "'%(a(b))s' % {'a(b)': 1}", r"'\(' is left out"),
    ("'%s' % none", "'%y' % none", "character 'y' is left out"),
    ("[1][0]", "[1][(1,)].x", "item of type tuple"),
    ("namespace(x=1).x", "namespace(a=1).x.y", "has no attribute 'x'"),
    ("2.5|round(1, 'ceil')", "'a'|round(8, 'ceil')", "round: a number"),
    ("2.5|round(1, 'floor')", "2.5|round(1, ('floor',))", "round: the method is common"),
    ("{}['a' * 1000]|d(1)", "{}['a' * 1001]|d", NAMED),
    ("strftime_now('%Y' ~ 'a' * 254)", "strftime_now('%Y' ~ 'a' * 255)", "at most 256 characters"),
    ("strftime_now('%d')", "strftime_now('%9d')", "have no width"),
    ("strftime_now('')", "strftime_now(1)", "a format of"),
    ("'{00000}'.format(1)", "'{000000}'.format(1)", "KeyError"),
    ("'{0}'.format(1)", "'{0.real}'.format(1)", "not look into"), ("['a']|map('upper')", "[1]|map(1)", "not int"),
    ("'{a}'.format(a=1)", "'{a[0]}'.format(a=[1])", "does not look into it"),
    ("'%(a)s'|format(a=1)", "'%s'|format(1, a=1)", "positional or named values, not both"),
    ("range(1)|list", "range(1.0)|list", "not another value"), ("dict()", "1()", "calls a value of type int"),
]  # fmt: skip


@pytest.mark.fault(35)
@pytest.mark.parametrize(("taken", "refused", "says"), LIMITS)
def test_limits_of_values(taken: str, refused: str, says: str) -> None:
    assert render("{% set x = " + taken + " %}" + "{{ x is defined }}") == "True"
    with pytest.raises(ChatTemplateError, match=says):
        render("{{ " + refused + " }}")


@pytest.mark.fault(35)
def test_refusals_of_real_templates(cases: Any) -> None:
    folder, _ = cases
    gemma = (folder / "google-gemma-2-2b-it.jinja").read_text(encoding="utf-8")
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        apply_chat_template([{"role": "system", "content": "x"}], gemma, bos_token="<bos>")
    with pytest.raises(ChatTemplateError, match="must alternate"):
        apply_chat_template([*HELLO, *HELLO], gemma, bos_token="<bos>")


# ---- arguments
@pytest.mark.fault(38)
@pytest.mark.parametrize(
    "name", ["tokenize", "conversation", "return_dict", "truncation", "max_length", "range", "raise_exception", "_x"]
)
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"'{name}' is reserved"):
        render(CHATML, **{name: True})


@pytest.mark.fault(39)
def test_odd_messages() -> None:
    assert render("{{ messages|length }}", [{"role": "user", "content": "x"}] * 100_000) == "100000"
    assert render("{{ messages[0].content|length }}", [{"role": "user", "content": "x" * 3_000_000}]) == "3000000"
    with pytest.raises(ChatTemplateError, match="the limit is 8000000"):
        render(CHATML, [{"role": "user", "content": "x" * 9_000_000}])
    shape = "{% if messages[0].content is string %}s{% elif 'content' not in messages[0] %}n{% else %}p{% endif %}"
    parts = [{"type": "text", "text": "a"}, {"type": "unheard of", "x": object()}]
    for content, expected in (("x", "s"), (None, "n"), (parts, "p")):
        assert render(shape, [{"role": "user", "content": content}]) == expected
    with pytest.raises(ChatTemplateError, match="TypeError"):
        render(CHATML, [{"role": "user", "content": None}])
    nested: Any = "x"
    for _ in range(100):
        nested = [nested]
    with pytest.raises(ChatTemplateError, match="nested deeper"):
        render(CHATML, [{"role": "user", "content": nested}])
    for levels in (62, 63):
        nested = functools.reduce(lambda inner, _: [inner], range(levels), {2**60 - 1: 1 - 2**60})
        if levels == 62:
            assert render("{{ messages[0].content is iterable }}", [{"role": "user", "content": nested}]) == "True"
    with pytest.raises(ChatTemplateError, match="nested deeper than 64"):
        render(CHATML, [{"role": "user", "content": nested}])
    for key, says in (2**60, "not of 61 bits"), (-(2**60), "not of 61 bits"), ((1,), "not tuple"):
        with pytest.raises(ChatTemplateError, match=says):
            render(CHATML, [{"role": "user", "content": {key: 1}}])
    context = contextvars.Context()
    assert context.run(render, CHATML) and not len(context)
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with pytest.raises(ChatTemplateError, match="nested deeper"):
        render(CHATML, [{"role": "user", "content": cyclic}])


def test_arguments_of_other_types_are_data() -> None:
    @dataclass
    class Message:
        role: str
        content: str

    class Model:
        def model_dump(self) -> dict[str, str]:
            return {"role": "user", "content": "dumped"}

    assert render(CHATML, [Message("user", "a"), Model()]) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>user\ndumped<|im_end|>\n"
    )
    assert render("{{ n }} {{ f }} {{ t }}", n=np.int64(3), f=np.float32(0.5), t=(1, 2)) == "3 0.5 (1, 2)"
    assert render("{{ c }}{{ b }}{{ k }}", c=Message, b=True, k={1.5: 1, None: 2}) == "<type>True{1.5: 1, None: 2}"
    around: Any = Message("user", "")
    around.content = around
    for one in (around, type("Same", (), {"model_dump": lambda self: self})()):
        with pytest.raises(ChatTemplateError, match="nested deeper than 64"):
            render("{{ x }}", x=one)
    given: dict[str, Any] = {"x": {"a": [1, 2.5, None], "b": "é" * 30}, "bos_token": "<s>", "t": (1, "abc")}
    assert render("{{ t }}", bounds=Bounds(max_memory=2326), **given) == "(1, 'abc')"
    with pytest.raises(ChatTemplateError, match="more than 2325 bytes"):
        render("{{ t }}", bounds=Bounds(max_memory=2325), **given)


def test_the_callers_messages_are_left_alone() -> None:
    messages = [{"role": "assistant", "content": "abc", "reasoning": "why"}]
    assert render("{{ messages[0].reasoning_content }}", messages, continue_final_message=False) == "why"
    assert messages == [{"role": "assistant", "content": "abc", "reasoning": "why"}]


def test_tools_and_documents_are_checked() -> None:
    with pytest.raises(ChatTemplateError, match=r"tools\[0\]: a tool is its JSON schema"):
        render(CHATML, tools=[print])
    with pytest.raises(ChatTemplateError, match=r"documents\[1\]"):
        render(CHATML, documents=[{}, "text"])


def test_continue_final_message() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well, "}]
    assert render(CHATML, messages, continue_final_message=True) == (
        "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nWell, "
    )
    empty = [{"role": "assistant", "content": ""}]
    assert render("{{ messages[0].content }}", empty, continue_final_message=True) == ""
    stripping = CHATML.replace("m.content", "m.content.strip()")
    assert render(stripping, messages, continue_final_message=True).endswith("assistant\nWell,")
    assert render_segments(messages, stripping, continue_final_message=True)[-1] == ("Well,", False)
    content = [{"type": "text", "text": "Hm"}, {"type": "image", "text": 5}, "x"]
    parts = [{"role": "assistant", "content": content}]
    template = "{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}"
    assert render(template, parts, continue_final_message=True) == "<Hm"
    for bad in ([], [{"role": "assistant", "content": None}]):
        with pytest.raises(ChatTemplateError, match="no text to continue"):
            render(CHATML, bad, continue_final_message=True)
    for template in ("nothing", "Well, a text of its own", "{{ messages[-1].content[1:] }}"):
        with pytest.raises(ChatTemplateError, match="does not show"):
            render(template, messages, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="exclude each other"):
        render(CHATML, messages, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(ChatTemplateError, match="continue_final_message takes True or False, not 'content'"):
        render(CHATML, messages, continue_final_message="content")


def test_features_that_templates_rely_on() -> None:
    for length, numbers in (4000, "(1, 1.0)"), (4001, "(0, 0.0)"):
        assert render("{% set x = '0' * (n - 1) ~ 1 %}{{ x|int, x|float }}", n=length) == numbers
    assert render("{{ [] is filter, [] is test }}") == "(False, False)"
    assert render("{% generation %}a{% endgeneration %}b") == "ab"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert (
        render(
            "{{ strftime_now('%Y')|length }}{% set n = 'nan'|float %}{{ [1, n].index(n) }}{{ n in [n]|map('float') }}"
        )
        == "41True"
    )
    assert render("{{ {'a': 'é', 'b': [1]}|tojson }}") == '{"a": "é", "b": [1]}'
    assert render("{{ {'type': 'image'}|truncate(9, true) }}") == "{'type': 'image'}"
    assert render("{{ [] | truncate(9, true) | unique | join }}{{ ['a', 'b'] | truncate(9) | join('-') }}") == "a-b"
    assert render("{{ {'b': 1, 'a': 2}|tojson(indent=2, sort_keys=true) }}") == '{\n  "a": 2,\n  "b": 1\n}'
    assert (
        render("{{ '%r-%s' % (nothing, 'a') }}{{ '{0!r:>9}{1!a}'.format(1.5, 'é') }}")
        == "Undefined-a      1.5'\\xe9'"
    )
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


@pytest.mark.parametrize(
    ("module", "says"),
    [("raise ImportError('not here')", "pip install"), ("__version__ = '3.1.5'", "jinja2 3.1.5 has known ways out")],
)
def test_jinja2_missing_or_old_is_said(tmp_path: Path, module: str, says: str) -> None:
    (tmp_path / "jinja2.py").write_text(module, encoding="utf-8")
    code = (
        "from prelude.tokenizer.chat import apply_chat_template\n"
        "from prelude.tokenizer import ChatTemplateError\n"
        "try: apply_chat_template([], '')\n"
        f"except ChatTemplateError as e: assert 'jinja2' in str(e) and {says!r} in str(e), e\n"
        "else: raise AssertionError\n"
    )
    import os

    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_an_undefined_setting_stays_so_where_it_is_not_truncated() -> None:
    assert render("{{ dict([[(nothing | truncate(9, true)), 1]]) }}") == "{Undefined: 1}"  # jinja2's own text


def test_a_call_drops_the_keywords_that_jinja2_drops() -> None:
    assert render("{{ dict(_loop_vars=1, _block_vars=2, a=3) }}") == "{'a': 3}"
