"""Which implementation multiplies with experts, and what becomes of a kernel that is not right."""

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.kernels.moe import MOE
from jaxllm.executor.kernels.select import select_kernel
from jaxllm.executor.kernels.self_test import verify_kernel
from jaxllm.executor.kernels.self_tests.moe import TEST
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.config import ModelConfig
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.pallas_kernels.grouped_matmul.cases import Case
from jaxllm.pallas_kernels.grouped_matmul.reference import reference_grouped_matmul
from jaxllm.pallas_kernels.linear import Weight
from jaxllm.pallas_kernels.linear.quantized import quantize_rows
from jaxllm.pallas_kernels.linear.tpu.layout import Strips
from jaxllm.pallas_kernels.linear.weight_type import FP4, Activations, Values, WeightType
from tests.models import small

LAYER = dataclasses.replace(
    small.MODEL.layers[0], mlp=ExpertsPlan(count=4, per_token=2, size=16, router=RouterPlan(normalised=True))
)
EXPERTS = dataclasses.replace(small.MODEL, layers=(LAYER,))


def resolved(asked: str = "auto") -> ResolvedConfig:
    """A model with experts, as on a TPU."""
    here = resolve_config(EngineConfig.from_options({"model": "demo"}))
    options = {"model": "demo", "compilation_cache_dir": "", "moe_backend": asked}
    here = dataclasses.replace(here, config=EngineConfig.from_options(options), model=EXPERTS)
    return here.with_kernel("moe", "tpu")


def select(asked: str, platform: str, model: ModelConfig) -> str:
    return select_kernel(MOE, asked, SimpleNamespace(platform=platform), model)


def verify(before: ResolvedConfig, run: Any, run_quantized: Any = None) -> ResolvedConfig:
    """With other products in place of the kernel's: of matrices of a floating type, and of quantised ones."""

    def dispatch(case: Case | WeightType, backend: str, *inputs: Any) -> jax.Array:
        assert backend == "tpu"
        return (run_quantized if isinstance(case, WeightType) else run)(*inputs)

    return verify_kernel(dataclasses.replace(TEST, run=dispatch), before)


def test_what_a_machine_takes() -> None:
    assert select("auto", "tpu", EXPERTS) == select("tpu", "tpu", EXPERTS) == "tpu"
    assert select("xla", "tpu", EXPERTS) == select("auto", "tpu", small.MODEL) == "xla"
    assert select("auto", "gpu", EXPERTS) == select("auto", "cpu", EXPERTS) == "xla"
    with pytest.raises(ConfigError, match="needs a TPU; this is a CPU"):
        select("tpu", "cpu", EXPERTS)


def test_a_kernel_that_is_right_stays() -> None:
    before = resolved()
    assert verify(before, jax.jit(lambda inputs: inputs.call("reference"))) is before


def refuse(_: Any) -> Any:
    raise RuntimeError("INTERNAL: Mosaic failed\nmore")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda inputs: inputs.call("reference") * 1.1, "has an error of"),
        (lambda inputs: inputs.call("reference") * jnp.nan, "has an error of"),
        (refuse, "Mosaic failed"),
    ],
    ids=["wrong", "nan", "crashed"],
)
def test_one_that_is_not_is_replaced(broken: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxllm"):
        after = verify(resolved(), broken)
    assert after.backend("moe") == "xla"
    assert reason in str(after.kernels["moe"].problem)
    assert reason in caplog.text
    # Who names it gets it.
    before = resolved("tpu")
    assert verify(before, broken) is before


MXFP4 = WeightType(Values.CODES, group=32, code=FP4, scales="float8_e8m0fnu")
W8A8 = WeightType(Values.INT8, activations=Activations.PER_TOKEN)


def quantized(*kinds: WeightType) -> ResolvedConfig:
    """The same with quantised experts, and other matrices, which are not tested here."""
    layers = [dataclasses.replace(LAYER, weight_types=(("mlp.expert_up", kind), ("mlp.up", W8A8))) for kind in kinds]
    return dataclasses.replace(resolved(), model=dataclasses.replace(EXPERTS, layers=tuple(layers)))


def multiply(x: jax.Array, weight: Weight, sizes: jax.Array) -> jax.Array:
    """With the matrices that lie in the strips, one after the other."""
    layout = weight.layout
    assert isinstance(layout, Strips)
    whole = layout.rows(weight, jnp.arange(layout.shape[0])).reshape(len(sizes), -1, x.shape[1])
    rows, scale = quantize_rows(x, layout.kind, None)
    out = reference_grouped_matmul(rows.astype(jnp.float32), whole, sizes)
    return out if scale is None else out * scale


def test_quantised_matrices_are_tested_by_type() -> None:
    asked = []

    def count(x: jax.Array, weight: Weight, sizes: jax.Array) -> jax.Array:
        assert isinstance(weight.layout, Strips)
        asked.append(weight.layout.kind)
        return multiply(x, weight, sizes)

    before = quantized(MXFP4, W8A8, MXFP4)
    assert verify(before, refuse, count) is before
    assert asked == [MXFP4, W8A8]
    after = verify(before, refuse, lambda *given: multiply(*given) * 1.1)
    assert (after.backend("moe"), "codes" in str(after.kernels["moe"].problem).lower()) == ("xla", True)
    # The kernel does not read groups of 8: nothing is tested, and nothing runs it.
    after = verify(quantized(dataclasses.replace(MXFP4, group=8)), refuse, refuse_quantized)
    assert (after.backend("moe"), after.kernels["moe"].problem) == ("xla", None)


def refuse_quantized(*_: Any) -> Any:
    raise AssertionError
