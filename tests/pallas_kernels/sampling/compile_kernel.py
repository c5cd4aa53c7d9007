"""Compiles the kernel that chooses tokens for a chip that is not there: run by a test."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.sampling import Choice, choose_tokens

SIZES = ((1, 32_000), (8, 50_257), (64, 128_256), (256, 151_936), (16, 262_144))
"""Rows and tokens, as models have them."""


def main() -> None:
    """Compile every size for the chip named by the argument, and print the bytes of temporaries."""
    chip = CHIPS[sys.argv[1]]
    options: dict[str, Any] = dict(chip.topology_options)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=chip.topology, **options)
    mesh = Mesh(np.array(topology.devices[:1]), ("model",))
    same = NamedSharding(mesh, PartitionSpec())
    with jax.set_mesh(mesh):
        for rows, size in SIZES:

            def shape(*dims: int, dtype: Any = jnp.float32) -> Any:
                return jax.ShapeDtypeStruct(dims, dtype, sharding=same)

            floats = {name: shape(rows) for name in ("temperature", "top_p", "min_p")}
            choice = Choice(**floats, top_k=shape(rows, dtype=jnp.int32), chance=shape(rows, 2))
            function = jax.jit(lambda logits, choice: choose_tokens(logits, choice, implementation="tpu"))
            try:
                function.lower(shape(rows, size), choice).compile()
                print(rows, size, "compiled", flush=True)  # noqa: T201
            except NotImplementedError as refusal:
                print(rows, size, refusal, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
