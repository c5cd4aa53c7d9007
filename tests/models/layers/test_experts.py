"""A mixture of experts against NumPy, which computes one token and one expert at a time."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import tpu as pltpu

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.experts import MixtureOfExperts
from jaxllm.models.mlp_plan import ClampedPlan, ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import make_mesh
from jaxllm.pallas_kernels.grouped_matmul.tpu.layout import Streamed
from tests.models import small
from tests.thinned import thinned

TOKENS, SIZE, EXPERTS = 24, 32, 8
CONFIG = dataclasses.replace(small.MODEL, hidden_size=SIZE)
PLAN = ExpertsPlan(count=EXPERTS, per_token=3, size=16, router=RouterPlan(normalised=True))
Values = dict[str, np.ndarray]


def make(plan: ExpertsPlan, **options: Any) -> MixtureOfExperts:
    """A mixture of experts with random values, the same for a seed however it lies."""
    layer = MixtureOfExperts(CONFIG, plan, dtype=jnp.dtype("float32"), options=ForwardOptions(**options))
    graph, state = nnx.split(layer)
    flat = nnx.to_flat_state(state)
    leaves = []
    for path, variable in flat:
        about, spec = variable.get_metadata(), variable.get_raw_value()
        rng = np.random.default_rng(sum(map(ord, "".join(map(str, path)))))
        values = rng.standard_normal(about["layout"].shape, np.float32) * 0.3
        rows = about["rows"]
        if getattr(rows, "blocks", 1) > 1:
            # Those of one device after the other.
            count = rows.experts or 1
            parts = values.reshape(count, len(rows.parts), rows.blocks, -1, *values.shape[1:])
            values = parts.transpose(2, 0, 1, *range(3, parts.ndim)).reshape(values.shape)
        array = about["layout"].pack(jnp.asarray(values))
        leaves.append((path, variable.replace(jax.device_put(array, spec.sharding))))
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def tokens() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((TOKENS, SIZE), np.float32)


def apply(layer: MixtureOfExperts, x: np.ndarray, num_rows: int = TOKENS) -> np.ndarray:
    graph, state = nnx.split(layer)
    function = jax.jit(lambda state, x, rows: nnx.merge(graph, state)(x, ForwardContext(rows)))
    return np.asarray(function(state, jnp.asarray(x), jnp.int32(num_rows)))


def silu(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = x / (1 + np.exp(-x))
    return result


def expected(layer: MixtureOfExperts, x: np.ndarray) -> np.ndarray:
    """Of a layer without biases, float64."""
    gate_up, down, router = (
        np.asarray(each.weight[...], np.float64) for each in (layer.gate_up, layer.down, layer.router)
    )
    gate_up, down = gate_up.reshape(EXPERTS, -1, SIZE), down.reshape(EXPERTS, SIZE, -1)
    out = np.zeros(x.shape)
    for row, token in enumerate(x.astype(np.float64)):
        scores = np.exp(router @ token)
        chosen = np.argsort(-scores)[: layer.plan.per_token]
        for expert in chosen:
            gate, up = np.split(gate_up[expert] @ token, 2)
            out[row] += scores[expert] / scores[chosen].sum() * (down[expert] @ (silu(gate) * up))
    return out


def test_the_sum_of_the_chosen_experts() -> None:
    layer, x = make(PLAN), tokens()
    np.testing.assert_allclose(apply(layer, x), expected(layer, x), atol=1e-5)


def test_all_tokens_to_one_expert() -> None:
    plan = dataclasses.replace(PLAN, per_token=1, router=RouterPlan(bias=True, normalised=True))
    layer, x = make(plan), tokens()
    assert layer.router.bias is not None
    layer.router.bias[...] = jnp.zeros(EXPERTS).at[5].set(1e4)
    gate_up = np.asarray(layer.gate_up.weight[...]).reshape(EXPERTS, -1, SIZE)[5]
    gate, up = np.split(x @ gate_up.T, 2, axis=1)
    wanted = (silu(gate) * up) @ np.asarray(layer.down.weight[...]).reshape(EXPERTS, SIZE, -1)[5].T
    np.testing.assert_allclose(apply(layer, x), wanted, atol=1e-5)


@pytest.mark.parametrize("native", [False, True])
def test_a_token_has_the_same_result_whatever_is_beside_it(native: bool) -> None:
    layer, x = make(PLAN, native_matmul=native), tokens()
    together = apply(layer, x, TOKENS - 3)
    for row in (0, 7, 20):
        alone = np.zeros_like(x)
        alone[0] = x[row]
        np.testing.assert_array_equal(apply(layer, alone, 1)[0], together[row])


def test_a_native_kernel_gives_the_same() -> None:
    x = tokens()
    np.testing.assert_allclose(apply(make(PLAN, native_matmul=True), x), apply(make(PLAN), x), atol=1e-5)


@pytest.mark.parametrize(
    ("devices", "expert_parallel"),
    thinned([(4, False), (8, True)], [(2, False), (2, True), (4, True), (8, False)]),
)
def test_devices_share_experts(devices: int, expert_parallel: bool) -> None:
    """Each its part of every expert, or some of them; with biases, and one shared by all tokens."""
    plan = dataclasses.replace(
        PLAN,
        bias=True,
        clamped=ClampedPlan(alpha=1.7, limit=0.5),
        router=RouterPlan(kind="sigmoid", bias=True, correction=True),
        shared=MLPPlan(size=24),
        shared_gate=True,
    )
    shared = partial(make, plan)
    mesh = make_mesh(jax.devices(), devices)
    layer = shared(mesh=mesh, expert_parallel=expert_parallel)
    parts = {shard.data.size for shard in layer.gate_up.weight.get_raw_value().addressable_shards}
    assert parts == {EXPERTS * 2 * 16 * SIZE // devices}
    x = tokens()
    np.testing.assert_allclose(apply(layer, x, TOKENS), apply(shared(), x, TOKENS), atol=1e-5)


@pytest.mark.parametrize("devices", [None, 2])
def test_the_kernel_for_tpus_gives_the_same(devices: int | None) -> None:
    """In Pallas's interpreter; of two devices each has half of the experts."""
    plan, x = dataclasses.replace(PLAN, bias=True), tokens()
    many = {} if devices is None else {"mesh": make_mesh(jax.devices(), devices), "expert_parallel": True}
    layer = make(plan, platform="tpu", moe_backend="tpu", **many)
    assert isinstance(layer.gate_up.layout, Streamed)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        found = apply(layer, x, TOKENS - 5)
    np.testing.assert_allclose(found[:-5], apply(make(plan), x, TOKENS - 5)[:-5], atol=1e-5)
