"""Compiles grouped products for a chip that is not there: run by a test."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.grouped_matmul import choose_grouped_layout, grouped_matmul
from jaxllm.pallas_kernels.linear import Weight

SIZES = ((512, 128, 1536, 2048, "bfloat16"), (4096, 16, 640, 360, "bfloat16"), (64, 8, 1024, 512, "float32"))
"""Rows, groups, and (out, in) of a matrix: a decode, a prompt whose matrices are padded, and float32."""


def main() -> None:
    """Compile every size for the chip named by the argument, and print the bytes of temporaries."""
    chip = CHIPS[sys.argv[1]]
    options: dict[str, Any] = dict(chip.topology_options)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=chip.topology, **options)
    mesh = Mesh(np.array(topology.devices[:1]), ("model",))
    same = NamedSharding(mesh, PartitionSpec())

    def shape(*dims: int, dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=same)

    with jax.set_mesh(mesh):
        for rows, groups, out_size, in_size, dtype in SIZES:
            layout = choose_grouped_layout(groups, (out_size, in_size), dtype, backend="tpu")
            weight = Weight(layout, shape(2, *layout.array_shape, dtype=dtype), shape(dtype=jnp.int32))
            function = jax.jit(lambda x, weight, sizes: grouped_matmul(x, weight, sizes, platform="tpu"))
            lowered = function.lower(shape(rows, in_size, dtype=dtype), weight, shape(groups, dtype=jnp.int32))
            memory: Any = lowered.compile().memory_analysis()
            stack = weight.array.size * weight.array.dtype.itemsize
            print(memory.temp_size_in_bytes / stack, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
