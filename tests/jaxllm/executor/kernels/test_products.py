"""Which implementation multiplies with quantised matrices, and what becomes of a kernel that is not right."""

import dataclasses
import logging
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError, EngineError
from jaxllm.executor.kernels import self_test
from jaxllm.executor.kernels.products.choice import choose_products
from jaxllm.executor.kernels.products.self_test import verify_products
from jaxllm.executor.kernels.verification import verify_kernels
from jaxllm.executor.resolved import ResolvedConfig, resolve_config
from jaxllm.pallas_kernels.linear.quantized_cases import QuantizedInputs
from jaxllm.pallas_kernels.linear.weight_type import FP4, Values, WeightType
from tests.models import small


def resolved(asked: str = "auto", method: str = "int8_w4a8") -> ResolvedConfig:
    """The demo model, rounded, as on a TPU."""
    options = {"model": "demo", "compilation_cache_dir": "", "quantization": method}
    here = resolve_config(EngineConfig.from_options(options))
    config = EngineConfig.from_options({**options, "linear_backend": asked})
    return dataclasses.replace(here, config=config, products="tpu")


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
    assert choose_products("auto", "tpu", model) == choose_products("tpu", "tpu", model) == "tpu"
    assert choose_products("xla", "tpu", model) == choose_products("auto", "tpu", small.MODEL) == "xla"
    assert choose_products("auto", "gpu", model) == choose_products("auto", "cpu", model) == "xla"
    with pytest.raises(ConfigError, match="needs a TPU; this is a CPU"):
        choose_products("tpu", "cpu", model)


def test_each_type_is_tested_once() -> None:
    asked = []

    def count(inputs: QuantizedInputs, backend: str, dtype: str) -> jax.Array:
        asked.append((inputs.case.kind, inputs.case.rows))
        return right(inputs, backend, dtype)

    before = resolved()
    assert verify_products(before, count) is before
    types = {kind for layer in before.model.layers for _, kind in layer.weight_types}
    types |= {kind for _, kind in before.model.weight_types}
    assert sorted(asked, key=repr) == sorted(((kind, rows) for kind in types for rows in (5, 300)), key=repr)


def test_what_linear_layers_do_not_have_is_not_tested() -> None:
    """Experts have another kernel, and what looks rows up has none."""
    experts = with_types(resolved(), "mlp.expert_up", "mlp.expert_down")
    tables = dataclasses.replace(experts.model, weight_types=(("embedding", MXFP4), ("token_inputs.table", MXFP4)))
    for model in (experts.model, tables):
        after = verify_products(dataclasses.replace(experts, model=model), refuse)
        assert (after.products, after.products_problem) == ("xla", None)
    after = verify_products(with_types(resolved(), "mlp.shared.up"), refuse)
    assert "Mosaic failed" in str(after.products_problem)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "highest"), ("bfloat16", None)])
def test_the_precision_is_the_engines(dtype: str, precision: str | None) -> None:
    found = []

    def run(*given: Any) -> jax.Array:
        found.append(jax.config.values["jax_default_matmul_precision"])
        return right(*given)

    on_a_tpu = dataclasses.replace(with_types(resolved(), "mlp.up"), platform="tpu", dtype=dtype)
    assert verify_products(on_a_tpu, run) is on_a_tpu
    assert found == [precision] * 2


def test_every_kernel_of_the_forward_pass_is_tested() -> None:
    """Those of a TPU do not run here, so that none stays."""
    before = with_types(resolved(), "mlp.up", "mlp.expert_up")
    after = verify_kernels(dataclasses.replace(before, attention="tpu", experts="tpu"))
    assert (after.attention, after.experts, after.products) == ("xla",) * 3
    assert after.attention_problem
    assert after.experts_problem
    assert after.products_problem


def test_one_that_hangs_is_named_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "LONGEST_SECONDS", 0.2)
    ended = threading.Event()

    def hangs(*_: Any) -> Any:
        ended.wait(60)
        raise RuntimeError

    with pytest.raises(EngineError, match="--linear-backend xla goes without this one"):
        verify_products(resolved(), hangs)
    ended.set()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda *given: right(*given) * 1.1, "is off by"),
        (lambda *given: right(*given) * jnp.nan, "is off by inf"),
        (refuse, "Mosaic failed"),
    ],
    ids=["wrong", "nan", "crashed"],
)
def test_one_that_is_not_right_is_replaced(broken: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxllm"):
        after = verify_products(resolved(), broken)
    assert after.products == after.forward.products == "xla"
    assert str(after.products_problem).startswith("tpu: ")
    assert reason in str(after.products_problem)
    assert reason in caplog.text
    # Who names it gets it.
    before = resolved("tpu")
    assert verify_products(before, broken) is before
