"""Whatever a chat template does, it does not take long, and does not take much memory."""

import resource
import time

import pytest

from jaxllm.serving.text.templates.rendering import Conversation, apply
from tests.serving.text.templates.hostile import HOSTILE

TALK = [{"role": "user", "content": "hi"}]
FRUGAL_BYTES = 256 << 20


@pytest.mark.parametrize("template", HOSTILE, ids=lambda template: template[:60])
def test_a_hostile_template_ends_soon_and_with_little_memory(template: str) -> None:
    unit = 1024
    began, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    with pytest.raises(Exception):  # noqa: B017, PT011  (templates raise what they like)
        apply(template, Conversation(messages=TALK))
    # Of processor time: the limit is two seconds, and what goes on between two looks at the clock is short.
    assert time.thread_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before < FRUGAL_BYTES


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ '-' * 40 }}", "-" * 40),
        ("{{ 'a'.center(5) }}|{{ 'a'|center(5) }}", "  a  |  a  "),
        ("{{ '%05d' % 7 }} {{ '%s: %.2f' % ('x', 1.5) }} {{ '{:>4}'.format(3) }}", "00007 x: 1.50    3"),
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ m.content|trim }}{% endfor %}", "1/1hi"),
        ("{{ [1, 2, 3]|map('string')|join(', ') }}", "1, 2, 3"),
        (
            "{% set ns = namespace(t='') %}{% for i in range(4) %}{% set ns.t = ns.t ~ i %}{% endfor %}{{ ns.t }}",
            "0123",
        ),
        ("{{ messages|tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ {'a': [1]}|tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{% for m in messages %}{{ m.content.replace('h', 'H', 1).split('i')[0] }}{% endfor %}", "H"),
        ("{% macro m(x, y='z') %}{{ x + y }}{% endmacro %}{{ m('a') }}{{ m('b', y='c') }}", "azbc"),
        ("{% generation %}a{% endgeneration %}{{ 2 ** 8 }}{{ 7 // 2 }}{{ 7 % 4 }}", "a25633"),
        ("{% for x in [[1, [2]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "12"),
        ("{{ messages[0]['role'].upper() + ('x' if tools is none else 'y') }}", "USERx"),
        ("{% set x = (1, 2) %}{% set a, b = x %}{{ a }}{{ b }}{{ x }}", "12(1, 2)"),
        ("{% for k, v in {'a': 1, 'b': 2}.items() if v > 1 %}{{ k }}{% else %}none{% endfor %}", "b"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{{- undefined_name -}}b", "ab"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages == [messages[0]] }}{{ messages[0] in messages }}{{ 1 < 2 <= x|default(2) }}", "TrueTrueTrue"),
        ("{% set k = 'role' %}{{ messages[0][k] }}{{ {k: 1}[k] }}{{ 3 is divisibleby(messages|length) }}", "user1True"),
        ("{{ [3, 1]|sort }}{{ messages|map(attribute='role')|unique|list }}{{ [[2], [1]]|max }}", "[1, 3]['user'][2]"),
    ],
)
def test_what_templates_do_works(template: str, text: str) -> None:
    assert apply(template, Conversation(messages=TALK)) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{{ namespace(_x=1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(template: str) -> None:
    with pytest.raises(Exception, match=r"unsafe|underscore|undefined"):
        apply(template, Conversation(messages=TALK))


def test_limits_grow_with_the_conversation() -> None:
    talk = [{"role": "user", "content": "x" * 1000} for _ in range(1000)]
    joins = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}{{ ns.t }}"
    )
    assert len(apply(joins, Conversation(messages=talk))) == 1_000_000


def test_names_of_the_request_itself_are_no_arguments() -> None:
    for name in ("messages", "tools", "tokenize", "add_generation_prompt"):
        with pytest.raises(ValueError, match=name):
            apply("x", Conversation(messages=TALK, variables={name: []}))
