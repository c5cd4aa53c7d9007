"""The kernel for TPUs in Pallas's interpreter: uninitialised memory as NaN, and a detector of races."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.grouped_matmul.cases import CASES, Case, make_inputs, tolerance
from jaxllm.pallas_kernels.grouped_matmul.tpu.blocks import Blocks, Dims, choose_blocks
from jaxllm.pallas_kernels.grouped_matmul.tpu.layout import Streamed
from jaxllm.pallas_kernels.grouped_matmul.tpu.matmul import tpu_grouped_matmul
from jaxllm.pallas_kernels.grouped_matmul.tpu.visits import Visits
from jaxllm.pallas_kernels.tpu_common.target import Target
from tests.pallas_kernels.grouped_matmul.test_grouped_matmul import expected
from tests.thinned import EVERY_CASE

_SOON = ("every_group", "bfloat16_rows")
_FEW = (*_SOON, "no_rows", "deep", "many_groups", "many_rows", "layer_rows")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in _SOON else pytest.mark.slow)
        for case in CASES
        if EVERY_CASE or case.name in _FEW
    ],
)
def test_matches_numpy(case: Case) -> None:
    """With blocks so small that cases have several windows, and strips where columns allow it."""
    inputs = make_inputs(case)
    rows = -(-len(inputs.x) // 16) * 16
    blocks = Blocks(min(32, rows), 128 if case.out_size % 128 == 0 else case.out_size, 16)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")):
        multiply = jax.jit(lambda x, weight, sizes: tpu_grouped_matmul(x, weight, sizes, blocks=blocks))
        found = jax.block_until_ready(multiply(inputs.x, inputs.weight("tpu"), inputs.sizes))
    assert interpret_pallas_call.races is not None
    assert not interpret_pallas_call.races.races_found
    np.testing.assert_allclose(found[: sum(case.sizes)], expected(inputs), rtol=0, atol=tolerance(case))


_visits = jax.jit(Visits.of, static_argnums=(1, 2))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 60), min_size=6, max_size=6), st.sampled_from([16, 32, 64]))
def test_every_row_is_visited_once(sizes: list[int], window: int) -> None:
    """The last rows are in no group."""
    rows = 368
    visits = _visits(jnp.array(sizes, jnp.int32), rows, window)
    ends, count = np.asarray(visits.ends), int(visits.total)
    assert count <= len(visits.group)
    seen: list[int] = []
    for group, place in zip(np.asarray(visits.group)[:count], np.asarray(visits.window)[:count], strict=True):
        seen += range(max(ends[group], place * window), min(ends[group + 1], (place + 1) * window))
    assert seen == list(range(sum(sizes)))
    # What the pipeline fetches ahead lies within the arrays.
    assert 0 <= int(visits.group.min()) <= int(visits.group.max()) < len(sizes)
    assert 0 <= int(visits.window.min()) <= int(visits.window.max()) < -(-rows // window)
    assert (np.diff(np.asarray(visits.window)[:count]) >= 0).all()


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
@pytest.mark.parametrize("rows", [16, 512, 65536])
def test_blocks_fit_every_chip(chip: str, rows: int) -> None:
    """Sizes of published models, from DBRX to DeepSeek-V3's on 8 devices."""
    target = Target(chip, {"v4": 16, "v5p": 64, "tpu7x": 64}.get(chip, 128) << 20)
    for groups, out_size, depth in ((16, 21504, 6144), (8, 4096, 14336), (128, 1536, 2048), (32, 512, 7168)):
        dims = Dims(rows, groups, depth, out_size, "bfloat16", "bfloat16")
        blocks = choose_blocks(dims, target)
        assert blocks.vmem_bytes(dims) <= target.vmem_bytes
        assert out_size % blocks.columns == 0
        assert blocks.window % blocks.block == blocks.block % 16 == 0


def test_a_chip_with_too_little_vector_memory() -> None:
    with pytest.raises(NotImplementedError, match="choose 'xla'"):
        choose_blocks(Dims(512, 8, 2880, 2888, "bfloat16", "bfloat16"), Target("v4", 16 << 20))


def test_columns_of_every_device_are_padded() -> None:
    layout, tensor = Streamed((6, 400), parts=2), np.arange(2400, dtype=np.float32).reshape(6, 400)
    assert layout.array_shape == (6, 512)
    packed = np.full(layout.array_shape, 7, np.float32)
    layout.pack_into(packed, tensor)
    np.testing.assert_array_equal(packed, layout.pack(jnp.asarray(tensor)))
    for device in range(2):
        own = packed[:, device * 256 : device * 256 + 256]
        np.testing.assert_array_equal(own[:, :200], tensor[:, device * 200 : device * 200 + 200])
        assert not own[:, 200:].any()
