"""The self-test of an accelerator's attention, with other implementations in its place."""

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError
from jaxllm.executor.kernels import self_test
from jaxllm.executor.kernels.self_test import RESULTS, verify_kernel
from jaxllm.executor.kernels.self_tests.attention import TEST, attention_cases
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.attention_plan import LatentAttentionPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.pallas_kernels.latent_attention import LatentSizes
from jaxllm.pallas_kernels.latent_attention import check as latent_check
from jaxllm.pallas_kernels.latent_attention.cases import Inputs as LatentInputs
from jaxllm.pallas_kernels.paged_attention.check import Result, run_case
from jaxllm.pallas_kernels.paged_attention.inputs import Case, Inputs


class Implementation:
    """XLA's attention, or a broken one, that counts its calls."""

    def __init__(self, *, factor: float = 1.0, error: Exception | None = None, needs_checks: bool = False) -> None:
        self.factor, self.error, self.needs_checks, self.calls = factor, error, needs_checks, 0

    def __call__(self, name: str, inputs: Inputs, *, checks: bool = False) -> Result:
        self.calls += 1
        if self.needs_checks and checks:
            return run_case("xla", inputs)
        if self.error is not None:
            raise self.error
        out, cache = run_case("xla", inputs)
        return out * self.factor, cache


def resolved(asked: str = "auto", cache: str = "") -> ResolvedConfig:
    """The demo model as on a machine where `auto` takes the kernel of a GPU."""
    options = {"model": "demo", "compilation_cache_dir": cache, "attention_backend": asked}
    here = resolve_config(EngineConfig.from_options({"model": "demo"}))
    return dataclasses.replace(here, config=EngineConfig.from_options(options)).with_kernel("attention", "gpu")


def verify(before: ResolvedConfig, run: Callable[..., Result]) -> ResolvedConfig:
    """With another attention in place of the kernel's."""
    return verify_kernel(dataclasses.replace(TEST, run=run), before)


@pytest.fixture
def cache_folder(tmp_path: Path) -> Iterator[Path]:
    """JAX's cache in a folder of the test's own."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def test_one_that_is_right_stays() -> None:
    before = resolved()
    assert verify(before, Implementation()) is before


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Implementation(factor=1.5), "its error is"),
        (Implementation(factor=float("nan")), "its error is inf"),
        (Implementation(error=NotImplementedError("heads of 7")), "heads of 7"),
        (Implementation(error=RuntimeError("INTERNAL: ptxas exited\nmore")), "RuntimeError: INTERNAL: ptxas exited"),
    ],
    ids=["wrong", "nan", "refused", "crashed"],
)
def test_one_that_is_not_is_replaced(broken: Implementation, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxllm"):
        after = verify(resolved(), broken)
    assert after.backend("attention") == after.forward.attention == "xla"
    assert after.kernels["attention"].problem is not None
    assert after.kernels["attention"].problem.startswith("gpu: ")
    assert reason in after.kernels["attention"].problem
    assert reason in caplog.text


def test_a_gpu_serves_with_the_other_kernel_where_that_is_right(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def wrong_on_hopper(name: str, inputs: Inputs, *, checks: bool = False) -> Result:
        assert not checks
        asked.append(name)
        out, cache = run_case("xla", inputs)
        return out * (1.5 if name == "gpu" else 1.0), cache

    after = verify(resolved(), wrong_on_hopper)
    assert asked == ["gpu", "triton"]
    assert after.backend("attention") == after.forward.attention == "triton"
    assert str(after.kernels["attention"].problem).startswith("gpu: its error is")
    assert "Serving with 'triton'" in caplog.text


def test_latent_attention_is_tested_with_latents() -> None:
    latent = LatentAttentionPlan(rank=32, plain_size=16, rope_size=16, value_size=16)
    before = resolved()
    windowed = latent.but(rank=48, window=300, sinks=True)
    layers = tuple(LayerPlan(attention=plan) for plan in (latent, windowed, latent))
    model = dataclasses.replace(before.model, layers=layers)
    before = dataclasses.replace(before, model=model).with_kernel("attention", "tpu")
    asked = []

    def wrong(name: str, inputs: LatentInputs, *, checks: bool = False) -> Result:
        asked.append((name, inputs.case.sizes, inputs.case.window, inputs.sinks is not None, checks))
        out, cache = latent_check.run_case("xla", inputs)
        return out + (0.0 if checks else 1.0), cache

    after = verify(before, wrong)
    first, second = ("tpu", LatentSizes(32, 16), 0, False), ("tpu", LatentSizes(48, 16), 100, True)
    assert asked == [(*first, False), (*first, True), (*second, True)]
    assert after.attention_checks
    assert after.backend("attention") == "tpu"


def on_a_tpu() -> ResolvedConfig:
    return resolved().with_kernel("attention", "tpu")


def test_a_tpu_serves_with_checks_where_these_help(caplog: pytest.LogCaptureFixture) -> None:
    broken = Implementation(factor=1.5, needs_checks=True)
    after = verify(on_a_tpu(), broken)
    assert (after.backend("attention"), after.attention_checks) == ("tpu", True)
    assert after.forward.attention_checks
    assert "its checks enabled" in caplog.text
    assert str(after.kernels["attention"].problem).startswith("tpu: its error is")


def test_a_tpu_serves_with_xla_where_nothing_helps() -> None:
    after = verify(on_a_tpu(), Implementation(factor=1.5))
    assert (after.backend("attention"), after.attention_checks) == ("xla", False)


def test_one_that_was_asked_for_is_never_replaced() -> None:
    broken = Implementation(factor=1.5)
    before = resolved("gpu")
    assert verify(before, broken) is before
    assert not broken.calls


def test_a_failure_is_tested_again(cache_folder: Path) -> None:
    before = resolved(cache=str(cache_folder))
    full = Implementation(error=RuntimeError("RESOURCE_EXHAUSTED: another process has the memory"))
    assert verify(before, full).backend("attention") == "xla"
    assert verify(before, Implementation()) is before


def test_that_it_is_right_is_kept(cache_folder: Path) -> None:
    implementation = Implementation()
    before = resolved(cache=str(cache_folder))
    first, second = (verify(before, implementation) for _ in range(2))
    assert implementation.calls == 1
    assert first == second
    assert len(list((cache_folder / RESULTS).iterdir())) == 1
    # Another model has other heads.
    other = dataclasses.replace(before, page_size=2 * before.page_size)
    verify(other, implementation)
    assert implementation.calls == 2


def test_there_is_a_case_for_layers_with_and_without_a_window() -> None:
    before = resolved()
    windows = (0, 4096) * (before.model.num_layers // 2)
    mixed = dataclasses.replace(before, model=before.model.with_windows(windows))
    batches = [case.batch for case in attention_cases(mixed)]
    assert [batch.window for batch in batches if isinstance(batch, Case)] == [None, 100]
    assert {batch.num_heads for batch in batches} == {before.model.num_heads}


def test_one_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "LONGEST_SECONDS", 0.2)
    ended = threading.Event()

    def hangs(name: str, inputs: Inputs) -> Result:
        ended.wait(60)
        raise AssertionError(inputs)

    with pytest.raises(EngineError, match=r"self-test of paged attention 'gpu' did not finish within 0\.2 s"):
        verify(resolved(), hangs)
    ended.set()
