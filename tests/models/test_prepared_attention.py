"""A model has the attention of accelerators prepared once per step, whatever its stack."""

from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from jaxllm.pallas_kernels.paged_attention.gpu import batch as gpu_batch
from jaxllm.pallas_kernels.tpu_common import batch as tpu_batch
from tests.models import small
from tests.models.paged import make_batch, shuffled_pages


def _trace(
    attention: str, stack: Literal["scan", "loop"], windows: tuple[int, ...]
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct, jax.Array]:
    """A step's output, from tracing alone (the kernels need devices of their own), and the cache's placeholder."""
    config = replace(small.alike(small.MODEL, len(windows)), head_size=64).with_windows(windows)
    model = abstract_model(config, ForwardOptions(attention=attention, stack=stack), "bfloat16")
    graph, state = nnx.split(model)
    geometry = CacheGeometry(len(windows), 8, 16, config.num_kv_heads, config.head_size, "bfloat16")
    cache: Any = jax.ShapeDtypeStruct(cache_shape(attention, geometry), jnp.bfloat16)

    def step(state: Any, batch: Batch, cache: Cache) -> tuple[jax.Array, Cache]:
        return nnx.merge(graph, state)(batch, cache)

    hidden, after = jax.eval_shape(
        step, state, make_batch([[1, 2, 3], [4]], [0, 5], shuffled_pages(2), 8), Cache((cache,))
    )
    return hidden, after.pages[0], cache


def _count_calls(module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with every call of a function, which does what it did."""
    original, calls = getattr(module, name), list[str]()

    def counting(*args: Any) -> Any:
        calls.append(name)
        return original(*args)

    monkeypatch.setattr(module, name, counting)
    return calls


@pytest.mark.parametrize("stack", ["loop", "scan"])
def test_tpu_rows_are_ordered_once(stack: Literal["scan", "loop"], monkeypatch: pytest.MonkeyPatch) -> None:
    made = _count_calls(tpu_batch, "_others", monkeypatch)
    hidden, after, cache = _trace("tpu", stack, (0, 0, 0))
    assert (hidden.shape, after.shape) == ((8, 16), cache.shape)
    assert len(made) == 1


@pytest.mark.parametrize(("stack", "windows", "plans"), [("loop", (0, 8, 0), 2), ("scan", (8, 8, 8), 1)])
def test_gpu_plans_are_made_once_per_window(
    stack: Literal["scan", "loop"], windows: tuple[int, ...], plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _count_calls(gpu_batch, "make_plans", monkeypatch)
    hidden, after, cache = _trace("gpu", stack, windows)
    assert (hidden.shape, after.shape) == ((8, 16), cache.shape)
    assert len(made) == plans
