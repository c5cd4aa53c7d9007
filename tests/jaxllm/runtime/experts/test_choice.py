"""Which implementation multiplies with experts, and what becomes of a kernel that is not right."""

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.runtime.experts.choice import choose_experts
from jaxllm.runtime.experts.self_test import with_tested_experts
from jaxllm.runtime.resolved import ResolvedConfig, resolve_config
from tests.models import small

LAYER = dataclasses.replace(
    small.MODEL.layers[0], mlp=ExpertsPlan(count=4, per_token=2, size=16, router=RouterPlan(normalised=True))
)
EXPERTS = dataclasses.replace(small.MODEL, layers=(LAYER,))


def resolved(asked: str = "auto") -> ResolvedConfig:
    """The demo model as on a TPU, and as if it had experts."""
    here = resolve_config(EngineConfig.from_options({"model": "demo"}))
    options = {"model": "demo", "compilation_cache_dir": "", "moe_backend": asked}
    return dataclasses.replace(here, config=EngineConfig.from_options(options), experts="tpu")


def test_what_a_machine_takes() -> None:
    assert choose_experts("auto", "tpu", EXPERTS) == choose_experts("tpu", "tpu", EXPERTS) == "tpu"
    assert choose_experts("xla", "tpu", EXPERTS) == choose_experts("auto", "tpu", small.MODEL) == "xla"
    assert choose_experts("auto", "gpu", EXPERTS) == choose_experts("auto", "cpu", EXPERTS) == "xla"
    with pytest.raises(ConfigError, match="needs a TPU; this is a CPU"):
        choose_experts("tpu", "cpu", EXPERTS)


def test_a_kernel_that_is_right_stays() -> None:
    before = resolved()
    assert with_tested_experts(before, jax.jit(lambda inputs: inputs.call("reference"))) is before


def refuse(_: Any) -> Any:
    raise RuntimeError("INTERNAL: Mosaic failed\nmore")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda inputs: inputs.call("reference") * 1.1, "it is off by"),
        (lambda inputs: inputs.call("reference") * jnp.nan, "it is off by"),
        (refuse, "Mosaic failed"),
    ],
    ids=["wrong", "nan", "crashed"],
)
def test_one_that_is_not_is_replaced(broken: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert with_tested_experts(resolved(), broken).experts == "xla"
    assert reason in caplog.text
    # Who names it gets it.
    before = resolved("tpu")
    assert with_tested_experts(before, broken) is before
