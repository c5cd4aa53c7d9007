"""Compiles paged attention for a chip that is not there and prints a line of JSON per case: run by a test.

python -m tests.pallas_kernels.paged_attention.tpu.compile_kernels CHIP/IMPLEMENTATION/MODEL ...
"""

import json
import sys
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.paged_attention import (
    AttentionOptions,
    CacheGeometry,
    RaggedBatch,
    cache_shape,
    get_backend,
    paged_attention,
)

SHAPES = {
    "llama-3-8b": (32, 8, 128, "bfloat16"),
    "llama-3-8b-merged": (32, 8, 128, "bfloat16"),
    "llama-3-70b-tp8": (8, 1, 128, "bfloat16"),
    "llama-3-70b-tp8-int8": (8, 1, 128, "int8"),
    "qwen3-0.6b": (16, 8, 128, "bfloat16"),
    "qwen3-32b": (64, 8, 128, "float8_e4m3fn"),
    "gpt-oss-20b": (64, 8, 64, "bfloat16"),
    "llama-3.2-1b": (32, 8, 64, "bfloat16"),
    "gemma-2-2b": (8, 4, 256, "bfloat16"),
    "gemma-3-4b-images": (8, 4, 256, "bfloat16"),
    "small-float32": (4, 2, 80, "float32"),
}
"""Query heads, KV heads, head size and type of the cache, on one device; merged: as one product makes them."""

LAYERS, PAGES, PAGE_SIZE, TOKENS, ROWS, WIDTH = 4, 8192, 16, 512, 64, 512


def compile_case(name: str, mesh: Mesh, implementation: str) -> dict[str, Any]:
    """Bytes of the cache, of aliases and temporaries."""
    heads, kv_heads, size, kv_dtype = SHAPES[name]
    sharding = NamedSharding(mesh, PartitionSpec())

    def shape(dims: tuple[int, ...], dtype: Any = jnp.int32) -> jax.Array:
        return cast(jax.Array, cast(Any, jax.ShapeDtypeStruct)(dims, dtype, sharding=sharding))

    rows = (shape((ROWS + 1,)), shape((ROWS,)), shape((ROWS, WIDTH)))
    until = shape((TOKENS,)) if name.endswith("images") else None
    batch = RaggedBatch(shape((TOKENS,)), shape((TOKENS,)), *rows, *(shape(()),) * 3, visible_until=until)
    geometry = CacheGeometry(LAYERS, PAGES, PAGE_SIZE, kv_heads, size, kv_dtype, for_tpu=True)
    cache = shape(cache_shape(implementation, geometry), jnp.dtype(kv_dtype))
    q_dtype = jnp.dtype("float32" if kv_dtype == "float32" else "bfloat16")
    q, kv = shape((TOKENS, heads, size), q_dtype), shape((TOKENS, kv_heads, size), q_dtype)
    per_head = shape((heads,), jnp.float32) if name == "gpt-oss-20b" else None
    soft_cap = 50.0 if name.startswith("gemma") else None

    def all_layers(q: Any, kv: Any, cache: Any, windows: Any, batch: Any, per_head: Any) -> Any:
        def layer(carry: Any, index_and_window: Any) -> Any:
            q, cache = carry
            index, window = index_and_window
            k_scale = window.astype(jnp.float32)
            options = AttentionOptions(0.1, window, soft_cap, sinks=per_head, alibi_slopes=per_head, k_scale=k_scale)
            return paged_attention(q, kv, kv, cache, index, batch, options, implementation=implementation), None

        layers = jnp.arange(LAYERS, dtype=jnp.int32)
        return jax.lax.scan(layer, (q, cache), (layers, windows))[0]

    def all_merged(qkv: Any, angles: Any, cache: Any, batch: Any) -> Any:
        def layer(carry: Any, index: Any) -> Any:
            qkv, cache = carry
            assert merged is not None
            out, cache = merged(qkv, (angles, angles), cache, index, batch, AttentionOptions(0.1))
            return (jnp.pad(out, ((0, 0), (0, 2 * kv_heads * size))), cache), None

        return jax.lax.scan(layer, (qkv, cache), jnp.arange(LAYERS, dtype=jnp.int32))[0]

    merged = get_backend(implementation).merged
    if merged is None or not name.endswith("merged"):
        function = jax.jit(all_layers, donate_argnums=2)
        compiled = function.lower(q, kv, cache, shape((LAYERS,)), batch, per_head).compile()
    else:
        qkv, angles = shape((TOKENS, (heads + 2 * kv_heads) * size), q_dtype), shape((TOKENS, size // 2), jnp.float32)
        compiled = jax.jit(all_merged, donate_argnums=2).lower(qkv, angles, cache, batch).compile()
    memory = cast(Any, compiled.memory_analysis())
    return {
        "cache": cache.size * cache.dtype.itemsize,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }


def main() -> None:
    """Compile the cases that the arguments name: chip, implementation and model."""
    for case in sys.argv[1:]:
        chip_name, implementation, name = case.split("/")
        chip = CHIPS[chip_name]
        options: dict[str, Any] = dict(chip.topology_options)
        topology = topologies.get_topology_desc(platform="tpu", topology_name=chip.topology, **options)
        mesh = Mesh(np.array(topology.devices[:1]), ("model",))
        with jax.set_mesh(mesh):
            found = compile_case(name, mesh, implementation)
        print(json.dumps({"case": case, **found}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
