"""That what is compared can differ: a broken kernel and other tokens are found, and ties are no errors."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxllm.doctor.attention_cases import Result, allowed_error, compare, resolve_model, run_case, suited_cases
from jaxllm.doctor.engine_run import Answers
from jaxllm.doctor.greedy import compare as compare_answers
from jaxllm.doctor.result import Context, Settings
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, Inputs, make_inputs

CASE = Case("mixed", ((1, 5), (3, 29)), padding_tokens=2)


@functools.cache
def right() -> Result:
    return run_case("xla", make_inputs(CASE))


def test_a_right_implementation() -> None:
    result = compare(CASE, lambda _: right(), compares_cache=True)
    assert not result.is_wrong
    assert result.error is not None
    assert result.error <= 5e-6


def test_a_wrong_result_a_wrong_cache_and_nan_are_found() -> None:
    out, cache = right()

    def forgetful(inputs: Inputs) -> Result:
        return out, inputs.kv_cache

    for by in (1e-3, float("nan")):
        shifted = out + jnp.float32(by)
        assert compare(CASE, lambda _, shifted=shifted: (shifted, cache), compares_cache=True).is_wrong  # type: ignore[misc]
    assert compare(CASE, forgetful, compares_cache=True).reason == "the cache differs"
    assert not compare(CASE, forgetful, compares_cache=False).is_wrong


def test_what_is_not_supported_is_not_wrong() -> None:
    def refuse(inputs: Inputs) -> Result:
        raise NotImplementedError(f"heads of {inputs.case.head_size}")

    result = compare(CASE, refuse, compares_cache=True)
    assert (result.error, result.reason, result.is_wrong) == (None, "heads of 64", False)


def test_cases_have_the_models_heads_and_none_comes_twice() -> None:
    resolved = resolve_model(Context(Settings(), lambda _: None))
    cases = list(suited_cases(resolved))
    assert {(case.num_heads, case.num_kv_heads, case.head_size) for case in cases} == {(8, 4, 32)}
    assert {case.page_size for case in cases} == {resolved.page_size}
    assert len({replace(case, name="") for case in cases}) == len(cases) < len(CASES)


def test_accelerators_may_round_float32() -> None:
    assert allowed_error(CASE, "cpu") < 1e-5 < 1e-2 < allowed_error(CASE, "tpu")
    assert jax.default_backend() == "cpu"


def answers(tokens: list[list[int]], alternatives: list[list[dict[int, float]]] | None = None) -> Answers:
    found = alternatives or [[{token: -0.5} for token in row] for row in tokens]
    return Answers(tokens, found, 1.0, "gpu", "float32", 1, [1], 10, [])


@pytest.mark.parametrize(
    ("other", "second", "found"),
    [
        ([[1, 2]], -9.0, {"rows": 1, "equal": 1, "ties": 0, "wrong": 0}),
        ([[1, 3]], -0.501, {"rows": 1, "equal": 0, "ties": 1, "wrong": 0}),
        ([[1, 3]], -1.5, {"rows": 1, "equal": 0, "ties": 0, "wrong": 1}),
        ([[9, 2]], -0.501, {"rows": 1, "equal": 0, "ties": 0, "wrong": 1}),
    ],
)
def test_tokens_may_part_only_at_a_tie(other: list[list[int]], second: float, found: dict[str, int]) -> None:
    one = answers([[1, 2]], [[{1: -0.1, 7: -4.0}, {2: -0.5, 3: second}]])
    assert compare_answers(one, answers(other)) == found
