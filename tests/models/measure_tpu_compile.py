"""Compiles a scanned Llama of several depths for one TPU v6e and prints a line of JSON for each: run by a test."""

import json
import sys
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.models.batch import Batch
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.config import ModelConfig
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch

TOKENS, ROWS, WIDTH, PAGES, PAGE_SIZE = 64, 16, 32, 2048, 16


def model_config(layers: int) -> ModelConfig:
    """About a tenth of Llama-3-8B per layer."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=32000,
        hidden_size=2048,
        num_layers=layers,
        num_heads=16,
        num_kv_heads=8,
        head_size=128,
        intermediate_size=5632,
        windows=(0,) * layers,
    )


def measure(layers: int, mesh: Mesh) -> dict[str, float]:
    """Processor seconds of compilation, and bytes of cache, aliases, temporaries and code."""
    config = model_config(layers)
    sharding = NamedSharding(mesh, PartitionSpec())

    def shape(dims: tuple[int, ...], dtype: Any = jnp.int32) -> jax.Array:
        return cast(jax.Array, cast(Any, jax.ShapeDtypeStruct)(dims, dtype, sharding=sharding))

    model = abstract_model(config, ForwardOptions(platform="tpu", stack="scan", max_model_len=512), "bfloat16")
    graph, state = nnx.split(model)
    state = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype), state)
    rows = (shape((ROWS + 1,)), shape((ROWS,)), shape((ROWS, WIDTH)))
    batch = Batch(shape((TOKENS,)), RaggedBatch(shape((TOKENS,)), shape((TOKENS,)), *rows, *(shape(()),) * 3))
    cache = shape((layers, PAGES, PAGE_SIZE, 2 * config.num_kv_heads, config.head_size), jnp.bfloat16)

    def step(state: Any, batch: Batch, kv_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, state)
        hidden, kv_cache = model(batch, kv_cache)
        return jnp.argmax(model.logits(hidden), axis=-1), kv_cache

    lowered = jax.jit(step, donate_argnums=2).lower(state, batch, cache)
    # Processor time of all threads: the machine may have other work.
    start = time.process_time()
    compiled = lowered.compile()
    seconds = time.process_time() - start
    memory = cast(Any, compiled.memory_analysis())
    return {
        "layers": layers,
        "seconds": seconds,
        "cache": cache.size * 2,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
    }


def main() -> None:
    """Measure every depth given as an argument, after a warm-up that starts the compiler."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2")
    mesh = Mesh(np.array(topology.devices[:1]), ("tp",))
    with jax.set_mesh(mesh):
        measure(2, mesh)
        for layers in sys.argv[1:]:
            print(json.dumps(measure(int(layers), mesh)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
