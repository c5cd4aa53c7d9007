"""That what is compared can differ: a broken kernel and other tokens are found, and ties are no errors."""

import functools
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import pytest

from jaxllm.doctor import attention, tower
from jaxllm.doctor.attention_cases import checks_of, resolve_model, suited_cases
from jaxllm.doctor.engine_run import Answers
from jaxllm.doctor.greedy import KERNEL, WITHOUT_KERNEL, comparison_engines
from jaxllm.doctor.greedy import compare as compare_answers
from jaxllm.doctor.latent_cases import suited_latent_cases
from jaxllm.doctor.layers import on_cpu
from jaxllm.doctor.result import Context, Settings
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.attention_plan import LatentAttentionPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.pallas_kernels.latent_attention import cases as latent
from jaxllm.pallas_kernels.latent_attention import check as latent_check
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, Inputs, make_inputs
from jaxllm.pallas_kernels.paged_attention.check import Result, allowed_error, compare, run_case
from tests.conftest import RunPython

CASE = Case("mixed", ((1, 5), (3, 29)), padding_tokens=2)


@functools.cache
def right() -> Result:
    return run_case("xla", make_inputs(CASE))


def test_a_right_implementation() -> None:
    result = compare(CASE, lambda _: right())
    assert not result.is_wrong
    assert result.error is not None
    assert result.error <= 5e-6


def test_a_wrong_result_a_wrong_cache_and_nan_are_found() -> None:
    out, cache = right()

    def forgetful(inputs: Inputs) -> Result:
        return out, inputs.kv_cache

    for by in (1e-3, float("nan")):
        shifted = out + jnp.float32(by)
        assert compare(CASE, lambda _, shifted=shifted: (shifted, cache)).is_wrong  # type: ignore[misc]
    assert compare(CASE, forgetful).reason == "the cache differs"


def test_float16_has_a_limit_of_its_own() -> None:
    case = replace(CASE, dtype="float16", kv_dtype=None)
    result = compare(case, functools.partial(run_case, "xla"))
    assert result.error is not None
    assert 0 < result.error <= result.limit < 1e-2
    assert latent.tolerance(replace(latent.CASES[0], dtype="float16")) < 1e-2


def test_what_is_not_supported_is_not_wrong() -> None:
    def refuse(inputs: Inputs) -> Result:
        raise NotImplementedError(f"heads of {inputs.case.head_size}")

    result = compare(CASE, refuse)
    assert (result.error, result.reason, result.is_wrong) == (None, "heads of 64", False)


def test_cases_have_the_models_heads_and_none_comes_twice() -> None:
    resolved = resolve_model(Context(Settings(), lambda _: None))
    cases = list(suited_cases(resolved))
    assert {(case.num_heads, case.num_kv_heads, case.head_size) for case in cases} == {(8, 4, 32)}
    assert {case.page_size for case in cases} == {resolved.page_size}
    assert len({replace(case, name="") for case in cases}) == len(cases) < len(CASES)


@pytest.fixture(scope="module")
def latent_model() -> ResolvedConfig:
    """A model with latent attention, as `auto` runs it here."""
    resolved = resolve_model(Context(Settings(), lambda _: None))
    plan = LatentAttentionPlan(rank=32, plain_size=16, rope_size=16, value_size=16)
    model = replace(resolved.model, num_heads=2, layers=(LayerPlan(attention=plan),) * 2)
    return replace(resolved, model=model)


def test_latent_cases_have_the_models_latents(latent_model: ResolvedConfig) -> None:
    cases = list(suited_latent_cases(latent_model))
    assert {(case.num_heads, case.latent_size, case.rope_size) for case in cases} == {(2, 32, 16)}
    assert {case.page_size for case in cases} == {latent_model.page_size}
    assert len({replace(case, name="") for case in cases}) == len(cases) < len(latent.CASES)


def test_latent_attention_is_compared_and_timed(latent_model: ResolvedConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(case for case in latent.CASES if case.name in ("decodes", "mixed"))
    monkeypatch.setattr("jaxllm.doctor.latent_cases.CASES", few)
    monkeypatch.setattr(attention, "resolve_model", lambda _: latent_model)
    doing: list[str] = []
    outcome = attention.run(Context(Settings(), doing.append))
    assert outcome.status == "ok", outcome.summary
    name = latent_model.backend("attention")
    assert f"{name}, 2 heads, latents of 32 + 16, float32: 2 of 2 cases correct" in outcome.summary
    assert outcome.figures["decode_bytes_per_s"] > 0
    assert "timing" in doing[-1]


def test_a_wrong_latent_attention_is_found(latent_model: ResolvedConfig) -> None:
    def shifted(name: str, inputs: latent.Inputs, *, checks: bool) -> Result:
        assert (name, checks) == (latent_model.backend("attention"), True)
        out, cache = latent_check.run_case("xla", inputs)
        return out + 1e-3, cache

    first = checks_of(latent_model, checks=True, implementation=shifted)[0]
    assert first.run().is_wrong


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


@pytest.mark.slow
def test_the_tpu_kernel_compiles_with_checks(run_python: RunPython) -> None:
    environment = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    result = run_python("-c", COMPILE_WITH_CHECKS, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    sizes = [int(line) for line in result.stdout.split()]
    # The checks are code.
    assert sizes[1] > sizes[0]


COMPILE_WITH_CHECKS = """
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxllm.pallas_kernels.paged_attention.tpu.canonical import attend_on_tpu
from jaxllm.pallas_kernels.paged_attention.cases import Case, abstract_inputs

devices = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices
mesh = Mesh(np.array(devices[:1]), ("x",))
whole = NamedSharding(mesh, PartitionSpec())
case = Case("mixed", ((1, 5), (70, 3)), num_heads=32, num_kv_heads=8, head_size=128, page_size=64, dtype="bfloat16")
inputs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), abstract_inputs(case))
for checks in (False, True):
    with jax.set_mesh(mesh):
        compiled = jax.jit(lambda inputs: attend_on_tpu(inputs, checks=checks)).lower(inputs).compile()
    print(compiled.memory_analysis().generated_code_size_in_bytes)
"""


@pytest.mark.parametrize(
    ("platform", "dtype", "size", "is_small", "expected"),
    [
        ("cpu", "float32", 1, True, ["cpu float32"]),
        ("cpu", "float32", 2, True, ["tp 2"]),
        ("gpu", "float32", 1, True, ["cpu float32", KERNEL, WITHOUT_KERNEL]),
        ("tpu", "float32", 4, True, ["tp 4", "cpu float32", KERNEL, WITHOUT_KERNEL]),
        ("gpu", "bfloat16", 1, False, []),
    ],
)
def test_which_engines_are_compared(
    platform: str, dtype: str, size: int, *, is_small: bool, expected: list[str]
) -> None:
    one = msgspec.structs.replace(answers([[1]]), platform=platform, dtype=dtype)
    engines = dict(comparison_engines(one, size, is_small=is_small))
    assert list(engines) == expected
    # The demo model is float32, for which accelerators have no kernel.
    for name in {KERNEL, WITHOUT_KERNEL} & engines.keys():
        assert engines[name].options["dtype"] == "bfloat16"


@pytest.mark.slow
def test_a_tower_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one of the demo model for images is right; a model without one has nothing to compare."""
    context = Context(Settings(model="demo-vision", load_format="dummy", scratch=str(tmp_path)), lambda _: None)
    found = tower.run(context)
    assert found.status == "ok", found.summary
    assert found.summary.startswith("an image of ")
    rows = on_cpu
    for by in (1e-2, float("nan")):
        monkeypatch.setattr(tower, "on_cpu", lambda *args, by=by, **options: rows(*args, **options) + by)
        assert tower.run(context).status == "failed"
    assert tower.run(Context(Settings(load_format="dummy"), lambda _: None)).status == "skipped"
