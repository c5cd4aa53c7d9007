"""The kernel for quantised matrices in Pallas's interpreter: uninitialised memory as NaN, and a detector of races."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.grouped_matmul.tpu.quantized import choose_blocks, tpu_quantized_grouped_matmul
from jaxllm.pallas_kernels.linear.quantized_cases import pack_matrix, random_matrix
from jaxllm.pallas_kernels.linear.tpu.blocks import Blocks, Dims
from jaxllm.pallas_kernels.linear.tpu.layout import Strips
from jaxllm.pallas_kernels.linear.weight_type import FP4, UINT4, Values, WeightType
from jaxllm.pallas_kernels.tpu_common.target import Target

MXFP4 = WeightType(Values.CODES, group=32, code=FP4, scales="float8_e8m0fnu")
AWQ = WeightType(Values.CODES, group=64, has_offsets=True, code=UINT4, scales="float16")


@pytest.mark.parametrize(
    ("kind", "sizes", "shape"),
    [
        (MXFP4, (3, 0, 37, 24), (80, 64)),
        pytest.param(AWQ, (20, 0, 1, 90), (256, 128), marks=pytest.mark.slow),
        pytest.param(WeightType(Values.INT8), (0, 5, 60), (384, 48), marks=pytest.mark.slow),
    ],
    ids=["mxfp4", "awq", "int8"],
)
def test_matches_numpy(kind: WeightType, sizes: tuple[int, ...], shape: tuple[int, int]) -> None:
    """With blocks so small that there are several windows; rows after the last group mean nothing."""
    rng, (out_size, in_size) = np.random.default_rng(0), shape
    matrix = random_matrix((len(sizes) * out_size, in_size), kind, rng)
    layout = Strips(matrix.shape, kind, len(sizes))
    assert layout.reads(matrix.shape, kind, len(sizes))
    x = rng.standard_normal((sum(sizes) + 3, in_size), np.float32)
    blocks = Blocks(out_size // layout.columns, 32, 16)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")):
        multiply = jax.jit(lambda x, weight, sizes: tpu_quantized_grouped_matmul(x, weight, kind, sizes, blocks=blocks))
        found = np.asarray(multiply(x, pack_matrix(layout, matrix, layers=2), jnp.array(sizes, jnp.int32)))
    assert interpret_pallas_call.races is not None
    assert not interpret_pallas_call.races.races_found
    ends = np.cumsum(sizes)
    own = matrix.dequantized().reshape(len(sizes), out_size, in_size)
    each = zip(ends - sizes, ends, own, strict=True)
    wanted = np.concatenate([x[begin:end].astype(np.float64) @ one.T for begin, end, one in each])
    np.testing.assert_allclose(found[: sum(sizes)], wanted, rtol=0, atol=4e-5 * in_size**0.5)


@pytest.mark.parametrize("chip", ["v5e", "v6e", "tpu7x"])
@pytest.mark.parametrize("rows", [16, 512, 65536])
def test_blocks_fit(chip: str, rows: int) -> None:
    """gpt-oss, and Mixtral of 4 bits."""
    target = Target(chip, {"tpu7x": 64}.get(chip, 128) << 20)
    for groups, strips, columns, depth in ((128, 9, 640, 2880), (128, 1, 2880, 2880), (8, 28, 1024, 4096)):
        dims = Dims(rows, depth, strips, columns, depth // 32, 4, "bfloat16", "bfloat16", "bfloat16")
        blocks = choose_blocks(dims, groups, target)
        assert blocks.vmem_bytes(dims) <= target.vmem_bytes
        assert strips % blocks.strips == 0
        assert blocks.block % 16 == 0
