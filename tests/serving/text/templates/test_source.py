"""The source of a chat template says which values and forms of messages it reads."""

import pytest

from jaxllm.serving.text.templates.facts import TemplateFacts
from jaxllm.serving.text.templates.source import read_source


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{% for p in m.content %}{% endfor %}", True),
        ("{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{% endfor %}", True),
        ("{% set c = message.get('content', []) %}{% set d = c %}{% for p in d %}{% endfor %}", True),
        ("{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}", True),
        ("{{ m.content[0].text }}", True),
        ("{{ (m.content | first).text }}", True),
        ("{{ m.content | map(attribute='text') | join }}", True),
        ("{% for m in messages %}{{ m.content }}{{ m.content.split('a')[0] }}{% endfor %}", False),
        ("{# for p in m.content #}{{ 'for p in m.content' }}", False),
        ("{% for p in %}", False),
    ],
)
def test_templates_that_read_parts(source: str, reads: bool) -> None:
    assert read_source(source).reads_parts is reads


def test_values_and_fields() -> None:
    source = (
        "{# 'comment' #}{% generation %}{% if m.role == 'a' or 'b' == m.role or m['kind'] in ('c', 'd') %}e{% endif %}"
        "{% endgeneration %}{% for p in x | selectattr('type', 'equalto', 'f') %}{% continue %}{% endfor %}"
        "{{ {'g': 1}[m.role] }}{{ raise_exception('h') }}{% if 'i' in m and m.get('j') %}{% endif %}"
    )
    facts = read_source(source)
    assert facts.values >= set("abcdfg")
    assert not facts.values & {*"ehij", "comment", "role", "kind"}
    assert facts.fields >= {"role", "kind", "i", "j"}


@pytest.mark.parametrize(
    "source", ["{{" + "1" * 5000 + "}}", "{{" + "(" * 5000 + "a", "{% if a %}" * 5000, "{{ \ud800 }}"]
)
def test_what_cannot_be_read_has_no_facts(source: str) -> None:
    assert read_source(source) == TemplateFacts()


def test_renamed_contents_are_followed_a_few_steps_only() -> None:
    def chain(length: int) -> str:
        names = "".join(f"{{% set a{each} = a{each + 1} %}}" for each in range(length))
        return f"{names}{{% set a{length} = content %}}{{% for part in a0 %}}{{% endfor %}}"

    assert read_source(chain(4)).reads_parts
    # Each step looks at all assignments.
    assert not read_source(chain(1000)).reads_parts
