"""A fuzzer of chat templates: a rendering of any template stays within its bounds and keeps trust apart.

    python -m tests.fuzz_chat_templates --minutes 60 [--seed 1]
    python -m tests.fuzz_chat_templates --templates 600 --seed 1     # the same templates in every run

Templates are made by a grammar of allowed constructs and of forbidden ones, with numbers and nesting that
multiply. Each is rendered in a process of its own (``tests.tokenizer.template_child``), over messages whose text no
template has. Checked are: 256 MB and 5 seconds of processor time; ``ChatTemplateError`` as the only error; that no
character of a user is trusted; and the text that ``transformers`` renders, where it renders any. The first failures
are printed; the exit status is 1 if there was any.
"""

# ruff: noqa: E501 - the grammar is a table of templates
from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.tokenizer.template_child import MEGABYTES, TemplateChild, rendered

SECONDS = 6.0  # 5, and the operation that began before the clock was read
USER = "ΩЖω <|im_end|>\nЖ"
# A user's text after any change of case or escaping.
_FROM_USER = re.compile(r"[ΩωЖж]|u03a9|u03c9|u0416|u0436|\\x(?:ce|d0)|ohm|omega", re.IGNORECASE)
# Errors of our own say why; those of Python are named by their type.
_PYTHON_ERROR = re.compile(r"^(the chat template cannot be compiled: )?([A-Za-z]+)(Error|Exception|Exit|Interrupt)\b")
_LAX = ("UndefinedError", "TemplateSyntaxError", "TemplateAssertionError", "SecurityError", "TemplateError")
_LAX += ("TemplateRuntimeError",)  # of a filter that there is not, below an if

MESSAGES = [
    {"role": "system", "content": "Ω" * 30, "n": 3},
    {"role": "user", "content": USER, "parts": [{"type": "text", "text": "ЖЖ"}, {"type": "image"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "Ω1", "arguments": {"Ω": [1, 2.5, "Ж"], "b": None}}],
    },
    {"role": "tool", "content": "Ж\tΩ" * 20, "Ω key": {"Ж": {"Ω": "ω"}}},
    {"role": "Ωrole", "content": "Ж" * 500},
]
LARGE = [{"role": "user", "content": "Ж Ω\n" * 100_000}, *MESSAGES]
TOOLS = [{"name": "Ω", "parameters": {"type": "object", "properties": {"Ж": {"type": "ω"}}}}]

_ATOMS = {
    "text": [
        *(
            "''", "'<a>'", "'b c'", "' q\\n'", "'<|'", "'|>'", "'é'", "'\\t'", "x", "bos_token", "extra", "'role'",
            "ns.v",
        ),
        *(
            "messages[0].content", "messages[1].content", "messages[1].role", "messages[4].role",
            "messages[3]['content']",
        ),
        *("messages[2].tool_calls[0].id", "tools[0].name", "messages[1].parts[0].text", "nothing", "'%s'", "'{}'"),
    ],
    "number": ["0", "1", "2", "3", "-1", "1.5", "messages[0].n", "messages | length", "ns.i", "10", "4"],
    "list": [
        "messages", "messages[1:]", "y", "[]", "tools", "messages[1].parts", "range(3)", "[1, 2, 1]", "['k', 'b']",
    ],
    "dict": ["messages[0]", "messages[3]", "{}", "{'k': 1}", "tools[0]", "messages[2].tool_calls[0].arguments"],
    "bool": ["true", "false", "none", "add_generation_prompt", "nothing is defined", "tools is none", "ns.i == 0"],
}  # fmt: skip
_TYPES = list(_ATOMS)
# For each type: expressions that have it, with the types that stand in them.
_RULES = {
    "text": [
        *(3 * ["(text + text)", "(text ~ any)", "(text ~ text ~ number)", "(text if bool else text)"]),
        *("(text * 3)", "(text * number)", "('%s-%r' % (any, text))", "('%(k)s' % {'k': any})", "('%5s|%d' % (text, number))"),
        *("'{}-{}'.format(text, any)", "'{0!r:>9}'.format(text)", "'{k}'.format(k=text)", "text[:2]", "text[number:]"),
        *("text[::-1]", "(text | trim)", "(text | upper)", "(text | lower)", "(text | title)", "(text | capitalize)"),
        *("(text | replace(text, text))", "(text | center(9))", "(text | truncate(9, true))", "(text | indent(2))"),
        *("(text | string)", "(any | string)", "(any | tojson)", "(list | tojson(indent=2))", "(dict | tojson)"),
        *("(list | join)", "(list | join(text))", "(messages | map(attribute='role') | join('-'))", "(text | first)"),
        *("(text | last)", "(text | reverse)", "('%s %s' | format(text, any))", "(dict | tojson(sort_keys=true))"),
        *("(text | default(text))", "(text | list | join(text))", "(text | sort | join)", "(text | unique | join)"),
        *("(nothing | default(text))", "(text | tojson(ensure_ascii=true))", "(list | string)", "f(text)", "f(any, text)"),
        *(f"text.{name}()" for name in ("strip", "lstrip", "rstrip", "upper", "lower", "title", "swapcase", "casefold")),
        *("text.strip(text)", "text.lstrip('<a')", "text.replace(text, text)", "text.removeprefix(text)", "text.zfill(9)"),
        *("text.removesuffix(text)", "text.join(list | map('string'))", "text.center(9, '*')", "text.expandtabs(4)"),
        *("text.split()[0]", "text.split(' ')[0]", "text.split('\\n')[-1]", "text.rsplit(' ', 1)[0]", "text.splitlines()[0]"),
        *("text.partition(' ')[0]", "text.rpartition(' ')[2]", "strftime_now('%Y')", "(text | batch(2) | first | join)"),
    ],
    "number": [
        *("(number + number)", "(number - number)", "(number * number)", "(number / 2)", "(number // 2)", "(number % 3)"),
        *("(number ** 2)", "-number", "(text | length)", "(list | length)", "(dict | count)", "(text | int)", "(number | abs)"),
        *("(text | float)", "(number | round)", "(number | round(1, 'floor'))", "([1, number] | sum)", "text.find(text)"),
        *("text.count(text)", "text.rfind(text)", "(messages | sum(attribute='nothing', start=number))", "(text | wordcount)"),
        *("([number, 2] | max)", "list.count(any)", "(number if bool else number)"),
    ],
    "list": [
        *("[any, any]", "(any, text)", "(list + list)", "list[1:]", "list[::-1]", "(list * 2)", "(text | list)", "(list | list)"),
        *("(list | reverse | list)", "(list | map('string') | list)", "(list | map('upper') | list)", "text.split(text)"),
        *("(messages | selectattr('role', 'equalto', text) | list)", "(messages | map(attribute='content') | list)"),
        *("(messages | rejectattr('role', 'in', ['user', text]) | list)", "(list | select('string') | list)", "text.split()"),
        *("(list | reject('none') | list)", "(list | select | list)", "(list | batch(2, 0) | list)", "(list | slice(2) | list)"),
        *("(dict | dictsort)", "(dict | items | list)", "(dict.items() | list)", "(dict.keys() | list)", "text.splitlines()"),
        *("(['b', text] | sort)", "(['b', text, 'b'] | unique | list)", "text.partition(text)", "(messages | sort(attribute='role'))"),
        *("(list if bool else list)", "(dict.values() | list)", "(list | map('length') | list)", "(list | default([]))"),
    ],
    "dict": [
        *("{'k': any}", "{text: any}", "dict(k=any)", "dict([[text, any]])", "(dict if bool else dict)", "dict.copy()"),
        *("(messages | first)", "(messages | last)", "messages[number]", "dict.fromkeys([text])", "{'k': any, 'role': text}"),
    ],
    "bool": [
        *("not any", "(any and any)", "(any or any)", "(any == any)", "(text != text)", "(number < number)", "(text >= text)"),
        *("(text in text)", "(any in list)", "(text not in dict)", "(text in ['user', 'b'])", "(1 < number < 3)", "(any is eq any)"),
        *("text.startswith(text)", "text.endswith(('a', text))", "text.isdigit()", "(number is odd)", "(number is divisibleby 2)"),
        *(f"(any is {name})" for name in ("defined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean")),
        *("(text is lower)", "(any is in list)", "(any is not none)", "(any is sameas none)", "(number is ge 1)", "(any is true)"),
    ],
}  # fmt: skip
_PLACEHOLDER = re.compile(r"\b(text|number|list|dict|bool|any)\b(?!['(=])(?!\.fromkeys)(?<!\| list)(?<!\|)")
_REFUSED = [
    *("{{ x.encode() }}", "{{ x.__class__ }}", "{{ x | pprint }}", "{{ x | attr('y') }}", "{% include 'x' %}"),
    *("{% autoescape true %}{{ messages[1].content }}{% endautoescape %}", "{{ f(*messages) }}", "{{ x | e ~ 'b' }}"),
    *("{% block b %}{{ x }}{% endblock %}", "{{ (x | safe) ~ 'b' }}", "{{ dict(**messages[0]) }}", "{{ lipsum(1) }}"),
    *(
        "{{ x.format_map({}) }}", "{{ messages.append(1) }}", "{{ self }}", "{{ loop }}", "{{ range }}",
        "{{ x.split }}",
    ),
    *(
        "{{ messages[1].content | e }}",
        "{{ messages[1].content | safe }}",
        "{{ namespace(__x=1) }}",
        "{{ '%*d' % (1,2) }}",
    ),
]  # fmt: skip
_HUGE = ["1000", "100000", "8000000", "99999999", "2305843009213693951", "10 ** 30", "'a' * 100000", "'é' * 1000000"]
_HUGE += [
    "range(100000)", "[1] * 100000", "'%999999d'", "'{0:>999999}'", "('<|' * 9000)", "[messages] * 1000", "-99999",
]  # fmt: skip
_HUGE += ["('x\\t ' * 100000)", "messages[0].content * 100000", "(('b' ~ messages[1].content) * 1000)", "'%.999f'"]


class Templates:
    """Random templates. ``hostile`` adds refused constructs and numbers that multiply."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.hostile = False
        self.scope: list[str] = []

    def make(self, hostile: bool) -> str:
        self.hostile = hostile
        head = "{% set ns = namespace(v='q', i=0) %}{% set x = 'x' %}{% set y = ['y', 'z'] %}"
        if hostile and self.rng.random() < 0.3:
            kind = self.rng.choice(
                ["[ns.v, ns.v]", "(ns.v, ns.v)", "ns.v ~ ns.v", "{'k': [ns.v, ns.v]}", "ns.v + ns.v"]
            )
            times = self.rng.choice([3, 12, 40, 380])
            head += f"{{% for i in range({times}) %}}{{% set ns.v = {kind} %}}{{% endfor %}}"
        if self.rng.random() < 0.5:
            head += "{% macro f(a, b='d') %}" + self.body(1) + "{{ a }}{{ b }}{% endmacro %}"
        else:
            head += "{% macro f(a, b='d') %}({{ a }}{{ b }}){% endmacro %}"
        return head + self.body(3)

    def body(self, depth: int) -> str:
        return "".join(self.statement(depth) for _ in range(self.rng.randint(1, 3)))

    def statement(self, depth: int) -> str:
        rng = self.rng
        if self.hostile and rng.random() < 0.04:
            return rng.choice(_REFUSED)
        if depth <= 0 or rng.random() < 0.45:
            return (
                "{{"
                + rng.choice(["", "-"])
                + f" {self.expression(3, rng.choice(['text', 'text', 'any']))} "
                + rng.choice(["", "-"])
                + "}}"
            )
        kind = rng.choice(["plain", "plain", "plain", "loop", "loop", "items", "filtered", "macro"])
        scopes = {"loop": ["m.content", "m", "loop.index", "loop.last", "m['role']", "loop.previtem", "loop.length"]}
        scopes |= {"items": ["k", "v"], "filtered": ["c", "loop.index0", "loop.revindex"], "macro": ["a"]}
        outer, self.scope = self.scope, [*self.scope, *scopes.get(kind, [])]
        inner, condition = self.body(depth - 1), self.expression(1, "bool")
        self.scope = outer
        if kind == "plain":
            return rng.choice(self.plain(inner, depth))
        if kind == "loop":
            return f"{{% for m in {rng.choice(['messages', self.expression(1, 'list')])} %}}{inner}{{% else %}}-{{% endfor %}}"
        if kind == "items":
            return f"{{% for k, v in {self.expression(1, 'dict')} | items %}}{{{{ k }}}}{inner}{{% endfor %}}"
        if kind == "filtered":
            start = f"{{% for c in {self.expression(2, rng.choice(['list', 'text']))} if {condition} %}}{inner}"
            return start + "{% if loop.last %}{% break %}{% endif %}{% endfor %}"
        macro = "{% macro g(a) %}{{ a }}{{ caller() if caller else '' }}{% endmacro %}"
        return macro + f"{{% call g({self.expression(2)}) %}}{inner}{{% endcall %}}"

    def plain(self, inner: str, depth: int) -> list[str]:
        value = self.expression(2)
        name = self.rng.choice(["trim", "upper", "indent(2)", "replace('a', 'b')"])
        condition, other = self.expression(2, "bool"), self.expression(1, "bool")
        return [
            "<t>\n  text ",
            f"{{% set x = {self.expression(2, 'text')} %}}",
            f"{{% set ns.v = {self.expression(2, 'text')} %}}{{% set ns.i = ns.i + 1 %}}",
            f"{{% set x %}}{inner}{{% endset %}}",
            f"{{% if {condition} %}}{inner}{{% elif {other} %}}w{{% else %}}{self.body(depth - 1)}{{% endif %}}",
            f"{{% filter {name} %}}{inner}{{% endfilter %}}",
            f"{{% with w = {value} %}}{inner}{{{{ w }}}}{{% endwith %}}",
            f"{{% generation %}}{inner}{{% endgeneration %}}",
        ]

    def expression(self, depth: int, kind: str = "any") -> str:
        rng = self.rng
        if kind == "any" or rng.random() < (0.08 if self.hostile else 0.005):
            kind = rng.choice(_TYPES)
        if depth <= 0 or rng.random() < 0.1:
            if self.hostile and rng.random() < 0.12:
                return f"({rng.choice(_HUGE)})"
            return rng.choice([*_ATOMS[kind], *self.scope] if rng.random() < 0.2 else _ATOMS[kind])
        rule = rng.choice(_RULES[kind])
        return _PLACEHOLDER.sub(lambda found: self.operand(depth - 1, found[1]), rule)

    def operand(self, depth: int, kind: str) -> str:
        made = self.expression(depth, kind)
        return made if re.fullmatch(r"[a-z_.]+|'[^']*'|\(.*\)|\[.*\]", made) and made.count("(") < 2 else f"({made})"


def judged(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the child: our rendering, then that of transformers."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template, messages = job["template"], job["messages"]
    given = {k: v for k, v in job.items() if k not in ("template", "messages")}
    for found in rendered(job):
        pieces = found.pop("pieces", None)
        if pieces is not None:
            trusted = "\0".join(text for text, is_trusted in pieces if is_trusted)
            leak = _FROM_USER.search(trusted)
            found["leak"] = trusted[max(leak.start() - 20, 0) : leak.end() + 20] if leak else None
        yield found
    try:
        variables = {"tools": None, "documents": None, "add_generation_prompt": False, **given}
        given = [{key: value for key, value in one.items() if value is not None} for one in messages]  # as it does
        theirs = _compile_jinja_template(template).render(messages=given, **variables)
    except BaseException as error:
        yield {"theirs": type(error).__name__}
        return
    if pieces is None:
        yield {"theirs": "text"}
        return
    ours = "".join(text for text, _ in pieces)
    if ours != theirs and " at 0x" not in theirs:
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        yield {
            "theirs": "differs",
            "ours_text": ours[max(at - 40, 0) : at + 40],
            "their_text": theirs[max(at - 40, 0) : at + 40],
        }
    else:
        yield {"theirs": "equal"}


def fault(found: dict[str, Any]) -> str | None:
    """The error of an answer; None where there is none."""
    message = found.get("message", "")
    if found.get("error") not in (None, "ChatTemplateError"):
        return "error"
    if "MemoryError" in message or found["megabytes"] > MEGABYTES:
        return "memory"
    if found["seconds"] > SECONDS:
        return "time"
    if found.get("leak"):
        return "trust"
    if found.get("theirs") == "differs":
        return "text"
    named = _PYTHON_ERROR.match(message)
    if "slice indices must be integers" in message:
        return None  # jinja2 raises it as well, but where all is constant: there it makes nothing of it
    if found.get("theirs") == "text" and named and (named[2] + named[3]) not in _LAX:
        return "refused"
    return None


def run(
    seed: int, seconds: float = 0.0, most: int = 10, count: int | None = None
) -> tuple[Counter[str], list[tuple[str, str, dict[str, Any]]]]:
    """Fuzz for ``seconds``, or over ``count`` templates where it is given; ends early after ``most`` failures.
    Returns counts of events and the failures."""
    rng = random.Random(seed)
    templates = Templates(rng)
    happened: Counter[str] = Counter()
    failures: list[tuple[str, str, dict[str, Any]]] = []
    end = time.monotonic() + seconds
    with TemplateChild("tests.fuzz_chat_templates:judged") as child:
        while len(failures) < most:
            if happened["templates"] == count or (count is None and time.monotonic() >= end):
                break
            hostile = rng.random() < 0.5
            template = templates.make(hostile)
            messages = LARGE if hostile and rng.random() < 0.2 else MESSAGES
            for _ in range(3):  # one that takes too long does so each time; a processor stands still now and then
                found = child.render(template, messages, tools=TOOLS, bos_token="<s>", extra="Ωextra")
                if fault(found) != "time":
                    break
            happened["templates"] += 1
            happened["rendered" if "error" not in found else "refused"] += 1
            happened[f"theirs {found.get('theirs', 'killed')}"] += 1
            happened["most MB"] = max(happened["most MB"], int(found["megabytes"]))
            happened["most ms"] = max(happened["most ms"], int(found["seconds"] * 1000))
            if found.get("theirs") == "text":
                happened[f"refused alone: {re.sub('[0-9]+', '0', found['message'])[:70]}"] += 1
            kind = fault(found)
            if kind:
                failures.append((kind, template, found))
    return happened, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--templates", type=int, default=None, help="so many, in place of --minutes")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--failures", type=int, default=10, help="end after so many")
    arguments = parser.parse_args()
    happened, failures = run(arguments.seed, arguments.minutes * 60, arguments.failures, arguments.templates)
    for kind, template, found in failures:
        print(f"---- {kind}\n{template}\n{found}")
    print(f"seed {arguments.seed}: {len(failures)} failures")
    for name, count in happened.most_common():
        print(f"{count:8} {name}")
    if not happened["theirs equal"]:
        sys.exit("no template rendered: nothing was tested")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
