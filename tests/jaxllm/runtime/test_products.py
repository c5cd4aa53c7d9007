"""Which implementation multiplies with quantised matrices, and what becomes of a kernel that is not right."""

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.pallas_kernels.linear.quantized_cases import QuantizedInputs
from jaxllm.runtime.products.choice import choose_products
from jaxllm.runtime.products.self_test import with_tested_products
from jaxllm.runtime.resolved import ResolvedConfig, resolve_config
from tests.models import small


def resolved(asked: str = "auto", method: str = "int8_w4a8") -> ResolvedConfig:
    """The demo model, rounded, as on a TPU."""
    options = {"model": "demo", "compilation_cache_dir": "", "quantization": method}
    here = resolve_config(EngineConfig.from_options(options))
    config = EngineConfig.from_options({**options, "linear_backend": asked})
    return dataclasses.replace(here, config=config, products="tpu")


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
    assert with_tested_products(before, count) is before
    types = {kind for layer in before.model.layers for _, kind in layer.weight_types}
    types |= {kind for _, kind in before.model.weight_types}
    assert sorted(asked, key=repr) == sorted(((kind, rows) for kind in types for rows in (5, 300)), key=repr)


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
        after = with_tested_products(resolved(), broken)
    assert after.products == after.forward.products == "xla"
    assert str(after.products_problem).startswith("tpu: ")
    assert reason in str(after.products_problem)
    assert reason in caplog.text
    # Who names it gets it.
    before = resolved("tpu")
    assert with_tested_products(before, broken) is before
