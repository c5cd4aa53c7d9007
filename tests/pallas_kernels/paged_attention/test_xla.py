"""The XLA implementation's own choices, with fixed batches where drawn ones would need luck."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, Inputs, make_inputs, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function
from tests.quick import QUICK


@pytest.mark.parametrize("contexts", [(3, 1500), (1500, 3), (700, 1500, 40)])
def test_decodes_whose_windows_begin_far_apart(contexts: tuple[int, ...]) -> None:
    """Rows of one block are walked together: from where the first window begins, not the last."""
    case = Case("windows_apart", tuple((1, context) for context in contexts), window=16)
    inputs = make_inputs(case)
    expected, _ = run_function("reference")(inputs)
    out, _ = run_function("xla")(inputs)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2 * tolerance(case))


FOR_TPU = ("mixed", "group_1", "multi_query", "head_32", "head_80", "head_256", "every_score", "int8_three_kv_heads")


@pytest.mark.parametrize("case", [case for case in CASES if case.name in FOR_TPU], ids=lambda case: case.name)
def test_rows_of_128_lanes(case: Case) -> None:
    """The shape for TPUs: narrow heads side by side, others padded."""
    shared = SharedRows(case.num_kv_heads, case.num_heads // case.num_kv_heads, case.head_size)
    lanes = -shared.wide_size % 128

    @jax.jit
    def run(inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        wide = jnp.pad(shared.join_pages(inputs.kv_cache), ((0, 0),) * 4 + ((0, lanes),))
        own = replace(inputs, kv_cache=head_major(wide))
        layers, pages = wide.shape[:2]
        heads = (case.num_kv_heads, case.head_size, case.cache_dtype.name)
        geometry = CacheGeometry(layers, pages, case.page_size, *heads, for_tpu=True)
        assert own.kv_cache.shape == cache_shape("xla", geometry)
        out, cache = own.call("xla", jnp.int32(LAYER))
        return out, shared.part_pages(canonical(cache)[..., : shared.wide_size])

    inputs = cached_inputs(case)
    check(case, *run.lower(inputs).compile(QUICK)(inputs))
