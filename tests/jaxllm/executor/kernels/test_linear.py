"""Which implementation multiplies with quantised matrices, and what becomes of a kernel that is not right."""

import dataclasses
import logging
import threading
from types import SimpleNamespace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import Operation
from jaxllm.errors import ConfigError, EngineError
from jaxllm.executor.kernels import self_test
from jaxllm.executor.kernels.linear import LINEAR
from jaxllm.executor.kernels.select import select_kernel
from jaxllm.executor.kernels.self_test import verify_kernel
from jaxllm.executor.kernels.self_tests.linear import TEST
from jaxllm.executor.kernels.verification import verify_kernels
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.config import ModelConfig
from jaxllm.pallas_kernels.linear.quantized_cases import QuantizedInputs
from jaxllm.pallas_kernels.linear.weight_type import FP4, Values, WeightType
from tests.models import small


def resolved(asked: str = "auto", method: str = "int8_w4a8") -> ResolvedConfig:
    """The demo model, rounded, as on a TPU."""
    options = {"model": "demo", "compilation_cache_dir": "", "quantization": method}
    here = resolve_config(EngineConfig.from_options(options))
    config = EngineConfig.from_options({**options, "linear_backend": asked})
    return dataclasses.replace(here, config=config).with_kernel("linear", "tpu")


def select(asked: str, platform: str, model: ModelConfig) -> str:
    return select_kernel(LINEAR, asked, SimpleNamespace(platform=platform), model)


def verify(before: ResolvedConfig, run: Any) -> ResolvedConfig:
    """With another product in place of the kernel's."""
    return verify_kernel(dataclasses.replace(TEST, run=run), before)


MXFP4 = WeightType(Values.CODES, group=32, code=FP4, scales="float8_e8m0fnu")


def with_types(before: ResolvedConfig, *names: str) -> ResolvedConfig:
    """The same with MXFP4 in some matrices of layers alone."""
    types = tuple((name, MXFP4) for name in names)
    layers = tuple(dataclasses.replace(layer, weight_types=types) for layer in before.model.layers)
    return dataclasses.replace(before, model=dataclasses.replace(before.model, layers=layers, weight_types=()))


def right(inputs: QuantizedInputs, backend: str, dtype: str) -> jax.Array:
    return inputs.call("xla")


def refuse(*_: Any) -> Any:
    raise RuntimeError("INTERNAL: Mosaic failed\nmore")


def test_what_a_machine_takes() -> None:
    model = resolved().model
    assert select("auto", "tpu", model) == select("tpu", "tpu", model) == "tpu"
    assert select("xla", "tpu", model) == select("auto", "tpu", small.MODEL) == "xla"
    assert select("auto", "gpu", model) == select("auto", "cpu", model) == "xla"
    with pytest.raises(ConfigError, match="needs a TPU; this is a CPU"):
        select("tpu", "cpu", model)


def test_each_type_is_tested_once() -> None:
    asked = []

    def count(inputs: QuantizedInputs, backend: str, dtype: str) -> jax.Array:
        asked.append((inputs.case.kind, inputs.case.rows))
        return right(inputs, backend, dtype)

    before = resolved()
    assert verify(before, count) is before
    types = {kind for layer in before.model.layers for _, kind in layer.weight_types}
    types |= {kind for _, kind in before.model.weight_types}
    assert sorted(asked, key=repr) == sorted(((kind, rows) for kind in types for rows in (5, 300)), key=repr)


def test_what_linear_layers_do_not_have_is_not_tested() -> None:
    """Experts have another kernel, and what looks rows up has none."""
    experts = with_types(resolved(), "mlp.expert_up", "mlp.expert_down")
    tables = dataclasses.replace(experts.model, weight_types=(("embedding", MXFP4), ("token_inputs.table", MXFP4)))
    for model in (experts.model, tables):
        after = verify(dataclasses.replace(experts, model=model), refuse)
        assert (after.backend("linear"), after.kernels["linear"].problem) == ("xla", None)
    after = verify(with_types(resolved(), "mlp.shared.up"), refuse)
    assert "Mosaic failed" in str(after.kernels["linear"].problem)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "highest"), ("bfloat16", None)])
def test_the_precision_is_the_engines(dtype: str, precision: str | None) -> None:
    found = []

    def run(*given: Any) -> jax.Array:
        found.append(jax.config.values["jax_default_matmul_precision"])
        return right(*given)

    on_a_tpu = dataclasses.replace(with_types(resolved(), "mlp.up"), platform="tpu", dtype=dtype)
    assert verify(on_a_tpu, run) is on_a_tpu
    assert found == [precision] * 2


def test_every_kernel_is_tested() -> None:
    """Those of a TPU do not run here, so that none stays."""
    before = dataclasses.replace(with_types(resolved(), "mlp.up", "mlp.expert_up"), media_rows=64)
    for operation in get_args(Operation):
        before = before.with_kernel(operation, "tpu")
    after = verify_kernels(before)
    assert [choice.name for choice in after.kernels.values()] == ["xla"] * 5
    assert all(choice.problem for choice in after.kernels.values())


def test_one_that_hangs_is_named_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "LONGEST_SECONDS", 0.2)
    ended = threading.Event()

    def hangs(*_: Any) -> Any:
        ended.wait(60)
        raise RuntimeError

    with pytest.raises(EngineError, match="--linear-backend xla avoids this kernel"):
        verify(resolved(), hangs)
    ended.set()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda *given: right(*given) * 1.1, "has an error of"),
        (lambda *given: right(*given) * jnp.nan, "has an error of inf"),
        (refuse, "Mosaic failed"),
    ],
    ids=["wrong", "nan", "crashed"],
)
def test_one_that_is_not_right_is_replaced(broken: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxllm"):
        after = verify(resolved(), broken)
    assert after.backend("linear") == after.forward.linear_backend == "xla"
    assert str(after.kernels["linear"].problem).startswith("tpu: ")
    assert reason in str(after.kernels["linear"].problem)
    assert reason in caplog.text
    # Who names it gets it.
    before = resolved("tpu")
    assert verify(before, broken) is before
