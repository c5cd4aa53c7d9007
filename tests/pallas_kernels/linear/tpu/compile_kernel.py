"""Compiles products with quantised matrices for a chip that is not there: run by a test."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.grouped_matmul.tpu.quantized import tpu_quantized_grouped_matmul
from jaxllm.pallas_kernels.linear import Weight, linear
from jaxllm.pallas_kernels.linear.tpu.layout import Strips
from jaxllm.pallas_kernels.linear.weight_type import FP4, INT4, UINT4, Activations, Values, WeightType

W8A8 = WeightType(Values.INT8, activations=Activations.PER_TOKEN)
F8A8 = WeightType(Values.FLOAT8_E4M3, activations=Activations.PER_TOKEN)
AWQ = WeightType(Values.CODES, group=128, has_offsets=True, code=UINT4, scales="float16")
W4A8 = WeightType(Values.CODES, code=INT4, group=128, activations=Activations.PER_TOKEN)
PRODUCTS = ((W8A8, 300), (F8A8, 8), (AWQ, 64), (WeightType(Values.CODES, code=INT4, group=32), 512), (W4A8, 300))
SHAPE = (1536, 2048)
MXFP4 = WeightType(Values.CODES, group=32, code=FP4, scales="float8_e8m0fnu")


def grouped(x: jax.Array, weight: Weight, sizes: jax.Array) -> jax.Array:
    """As gpt-oss has it."""
    return tpu_quantized_grouped_matmul(x, weight, MXFP4, sizes, jnp.bfloat16)


def main() -> None:
    """Compile every product for the chip named by the argument, and print the bytes of temporaries by the matrix's."""
    chip = CHIPS[sys.argv[1]]
    options: dict[str, Any] = dict(chip.topology_options)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=chip.topology, **options)
    mesh = Mesh(np.array(topology.devices[:1]), ("model",))
    same = NamedSharding(mesh, PartitionSpec())

    def shape(*dims: int, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=same)

    def weight(layout: Strips) -> Weight:
        arrays = {name: shape(8, *own.layout.array_shape, dtype=own.dtype) for name, own in layout.arrays().items()}
        return Weight(layout, arrays.pop("values"), shape(dtype=jnp.int32), **arrays)

    def show(function: Any, *arguments: Any) -> None:
        memory: Any = jax.jit(function).lower(*arguments).compile().memory_analysis()
        print(memory.temp_size_in_bytes / memory.argument_size_in_bytes, flush=True)  # noqa: T201

    with jax.set_mesh(mesh):
        for kind, rows in PRODUCTS:
            show(lambda x, weight: linear(x, weight, platform="tpu"), shape(rows, 2048), weight(Strips(SHAPE, kind)))
        for out_size, in_size in ((5760, 2880), (2880, 2880)):
            layout = Strips((4 * out_size, in_size), MXFP4, 4)
            show(grouped, shape(64, in_size), weight(layout), shape(4, dtype=jnp.int32))


if __name__ == "__main__":
    main()
