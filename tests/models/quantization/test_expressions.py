"""Expressions of strangers mean what Python makes of them, and none takes long."""

import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.expressions import MAX_STEPS, Expression
from jaxllm.models.quantization.module_names import MAX_NAMES, without_tower
from jaxllm.models.quantization.registry import read_format
from tests.models.quantization.formats import FORMATS

NAME = "model.layers.31.mlp.experts.127.gate_proj"
ATOMS = [*"ab.^$x1é_", "[.]", "[ab]", "[^a]", "[a-c1]", "[^b-é]"]
ATOMS += [rf"\{letter}" for letter in ".dDwWsSbZ"]
REPEATS = ("*", "+", "?", "*?", "{2}", "{1,3}", "{0,2}?", "{2,}")
EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds(str.__add__, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}{})".format, st.sampled_from(("", "?:", "?=", "?!")), inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(REPEATS)),
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, st.text("ab1. \n_xé", max_size=8))
def test_matches_are_those_of_python(expression: str, text: str) -> None:
    assert Expression(expression).begins(text) == (re.match(expression, text) is not None)


HOSTILE = ["(a+)+b", "((.*)*)*x", "(a|a)*" * 20 + "x", "(a|aa)+$", "(?:a?){200}a{200}", "((a{1,999}){1,999}){1,999}x"]


LONG_SET = f"(?:(?:[{''.join(map(chr, range(0x4E00, 0x4E00 + 3900)))}]?.?){{30}}){{3}}"


@pytest.mark.parametrize("expression", [*HOSTILE, LONG_SET, "(?=(?:(?=a*).)*x)" * 200, ".*" * 500 + "x"])
def test_no_expression_takes_long(expression: str) -> None:
    """Each would take Python's matcher years; here the number of steps is bounded."""
    found = Expression(expression)
    try:
        assert not found.begins("a" * 60 + "!")
    except ModelError as error:
        assert "takes too long" in str(error)  # noqa: PT017 - both are right


def test_steps_are_counted() -> None:
    with pytest.raises(ModelError, match=r"takes too long to match 'a+': use fewer nested repetitions"):
        Expression("(?:(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a)(?:a|a))*" * 60).begins("a" * MAX_STEPS)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("*", "is not a regular expression"),
        ("(", "is not a regular expression"),
        ("(" * 3000, "is not a regular expression"),
        ("a{99999999999999999999}", "is not a regular expression"),
        (r"(a)\1", "an unsupported part"),
        ("(?i)a", "has flags"),
        ("(?i:a)", "an unsupported part"),
        ("(?<=a)b", "lookbehind"),
        ("(?>a)", "an unsupported part"),
        ("a" * 5000, "has 5000 characters"),
    ],
)
def test_what_is_not_read_is_an_error(expression: str, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        Expression(expression)


FIELDS = [
    ("W4A16 in groups", "ignore", "re:"),
    ("AWQ", "modules_to_not_convert", ""),
    ("fp8 in blocks", "modules_to_not_convert", ""),
    ("fp8 in blocks", "ignored_layers", ""),
]


@pytest.mark.parametrize(("name", "field", "prefix"), FIELDS)
def test_the_field_is_named(name: str, field: str, prefix: str) -> None:
    section = {**FORMATS[name].section, field: [f"{prefix}(?i)up_proj"]}
    with pytest.raises(ModelError, match=f"config.json: '{field}': .*has flags"):
        read_format(ConfigFile(section))
    with pytest.raises(ModelError, match=f"'{field}' has {MAX_NAMES + 1} names"):
        read_format(ConfigFile({**section, field: ["x"] * (MAX_NAMES + 1)}))


def test_overrides_of_gptq_and_targets_are_checked_too() -> None:
    section = {**FORMATS["GPTQ"].section, "dynamic": {"-:(": {}}}
    with pytest.raises(ModelError, match=r"'dynamic': .*'\(' is not a regular expression"):
        read_format(ConfigFile(section))
    section = dict(FORMATS["W4A16 in groups"].section)
    groups = {"group_0": {**section["config_groups"]["group_0"], "targets": ["re:("]}}
    with pytest.raises(ModelError, match=r"group_0: 'targets': .*'\(' is not a regular expression"):
        read_format(ConfigFile({**section, "config_groups": groups}))


@pytest.mark.parametrize("depth", [100, 200, 250, 300, 400])
def test_parts_in_one_another(depth: int) -> None:
    """Where the stack ends depends on who calls; it is an error that has the expression."""
    text = "(m?" * depth + "x" + ")?" * depth
    with suppress(ModelError):
        assert Expression(text).begins("mx")


def test_a_tower_is_left_out_of_names_and_expressions() -> None:
    for target, wanted in {
        "model.language_model.layers.0": "model.layers.0",
        r"re:.*language_model\.layers.*": "re:.*layers.*",
        "re:.*language_model.*": "re:.*.*",
        "re:.*language_model.layers": "re:.*layers",
    }.items():
        assert without_tower(target) == wanted


def test_names_of_models_are_told_apart() -> None:
    assert Expression(r".*mlp\.experts\.\d+\.(gate|up)_proj$").begins(NAME)
    assert not Expression(r".*self_attn\..*").begins(NAME)
    assert Expression(r"model\.layers\.(?:3[01]|2\d)\.").begins(NAME)
    assert Expression(r"^(?!.*lm_head).*$").begins(NAME)
