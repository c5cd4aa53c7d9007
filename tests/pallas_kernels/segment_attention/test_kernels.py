"""The kernels in Pallas's interpreters against torch's attention; that for TPUs is compiled for absent chips."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.executor.compile.executables import without_compilation_cache
from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from jaxllm.pallas_kernels.segment_attention.tpu import tpu_segment_attention
from jaxllm.pallas_kernels.segment_attention.triton import triton_segment_attention
from jaxllm.planning.target import find_target
from tests.thinned import thinned

HEADS = 2
KERNELS: dict[str, Any] = {
    "tpu": partial(tpu_segment_attention, interpret=pltpu.InterpretParams(uninitialized_memory="nan")),
    "triton": partial(triton_segment_attention, interpret=True),
}


def segments_of(lengths: tuple[int, ...], tokens: int, rows: int) -> Segments:
    starts = np.full(rows + 1, sum(lengths), np.int32)
    starts[: len(lengths) + 1] = np.cumsum([0, *lengths])
    own = np.zeros(tokens, np.int32)
    own[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    return Segments(jnp.asarray(starts), jnp.asarray(own), jnp.int32(sum(lengths)), jnp.int32(len(lengths)))


@pytest.mark.parametrize(
    ("tokens", "lengths", "size", "dtype"),
    [
        (257, (257,), 64, "float32"),
        (1200, (1101,), 72, "bfloat16"),
        (1100, (64,) * 9 + (16, 32, 400), 80, "float32"),
        (40, (3, 20), 16, "float32"),
        (600, (), 16, "float32"),
    ],
    ids=["one block", "blocks", "windows", "small", "nothing"],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_equals_torch(kernel: str, tokens: int, lengths: tuple[int, ...], size: int, dtype: str) -> None:
    random = np.random.default_rng(tokens)
    operands: Any = [jnp.asarray(random.normal(size=(tokens, HEADS, size)), jnp.dtype(dtype)) for _ in range(3)]
    found = np.asarray(KERNELS[kernel](*operands, segments_of(lengths, tokens, 16), scale=0.25), np.float32)
    assert np.isfinite(found).all()
    begin = 0
    for length in lengths:
        heads = (torch.tensor(np.asarray(each, np.float32))[begin : begin + length] for each in operands)
        q, k, v = (each.transpose(0, 1) for each in heads)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.25).transpose(0, 1).numpy()
        limit = 2e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(found[begin : begin + length], wanted, atol=limit, rtol=0)
        begin += length


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_they_do_not_have(kernel: str) -> None:
    operands, attend = [jnp.zeros((8, 1, 8))] * 3, KERNELS[kernel]
    whole = segments_of((8,), 8, 1)
    with pytest.raises(NotImplementedError, match="windows"):
        attend(*operands, whole, scale=1.0, window=3)
    relative = RelativeScores(None, jnp.zeros((8, 1, 1)), jnp.zeros(3, jnp.int32))
    with pytest.raises(NotImplementedError, match="relative"):
        attend(*operands, whole, scale=1.0, relative=relative)


@pytest.mark.slow
@pytest.mark.parametrize("chip", thinned(["v6e"], ["v5p"]))
def test_compiles(chip: str) -> None:
    """For the images of Gemma 3, and the largest that Qwen's models take by default."""
    device = find_target(chip, None, 1).devices[0]
    mesh = Mesh(np.array([device]), ("x",))
    whole = NamedSharding(mesh, PartitionSpec())
    shape: Any = partial(jax.ShapeDtypeStruct, sharding=whole)
    for tokens, rows_of, size in thinned([(65536, 1024, 80)], [(4096, 1, 72)]):
        heads = shape((tokens, 16, size), jnp.bfloat16)
        starts, rows, count = (shape(each, jnp.int32) for each in ((rows_of + 1,), (tokens,), ()))
        # What compiles for a device that is not there can be written to JAX's cache, but not read from it.
        with jax.set_mesh(mesh), without_compilation_cache():
            attend: Any = jax.jit(partial(tpu_segment_attention, scale=0.1))
            compiled = attend.lower(heads, heads, heads, Segments(starts, rows, count, count)).compile()
        assert "tpu_custom_call" in (compiled.as_text() or "")
