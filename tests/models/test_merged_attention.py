"""A model whose attention takes what a product makes gives what one does that normalises and rotates before."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from jaxllm.pallas_kernels.paged_attention.cases import Case
from jaxllm.pallas_kernels.paged_attention.tpu import attention
from tests.models import small
from tests.models.paged import NUM_PAGES, make_batch, shuffled_pages
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpreted
from tests.quick import QUICK

HEADS = Case("merged", ((1, 5), (3, 0)), head_size=128)


def _hidden(implementation: str, norm: NormPlan) -> jax.Array:
    """What a layer with random weights makes of a prompt and a decode."""
    config = replace(small.alike(small.MODEL, 1, norm=norm), head_size=HEADS.head_size)
    model = abstract_model(config, ForwardOptions(attention=implementation), "float32")
    graph, state = nnx.split(model)
    leaves, structure = jax.tree.flatten(state)
    random = np.random.default_rng(0)
    state = jax.tree.unflatten(structure, [jnp.asarray(random.normal(size=x.shape), x.dtype) for x in leaves])
    geometry = CacheGeometry(1, NUM_PAGES, HEADS.page_size, config.num_kv_heads, config.head_size, "float32")
    cache = Cache((jnp.zeros(cache_shape(implementation, geometry), jnp.float32),))

    def step(state: Any, batch: Batch, cache: Cache) -> jax.Array:
        hidden: jax.Array = nnx.merge(graph, state)(batch, cache)[0]
        return hidden

    batch = make_batch([[1], [2, 3, 4]], [5, 0], shuffled_pages(2), 8)
    return jax.jit(step, compiler_options=QUICK)(state, batch, cache)[:4]


@pytest.mark.exhaustive
def test_norms_and_rotation_are_those_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = partial(attention.tpu_merged_attention, **interpreted(HEADS))
    monkeypatch.setattr(attention, "BACKEND", replace(attention.BACKEND, merged=merged))
    norm = NormPlan(eps=0.1)
    np.testing.assert_allclose(_hidden("tpu", norm), _hidden("reference", norm), rtol=0, atol=2e-5)
