"""A TPU allocates for a KV cache as libtpu lays out the argument of a program for an absent chip."""

import json

import pytest

from tests.conftest import RunPython

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")

PAGES = 300
MEASURE = f"""
import json

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from jaxllm.executor.memory.memory import CacheShape

device = SingleDeviceSharding(topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices[0])
nothing = jax.jit(lambda cache: jnp.int32(0), keep_unused=True)
for implementation in ("tpu", "xla"):
    for heads, size, page_size, dtype in ((8, 64, 64, "bfloat16"), (1, 64, 16, "bfloat16"), (2, 80, 16, "float32")):
        cache = CacheShape(2, page_size, heads, size, dtype, implementation, platform="tpu")
        array = jax.ShapeDtypeStruct(cache.array({PAGES}), jnp.dtype(dtype), sharding=device)
        stats = nothing.lower(array).compile().memory_analysis()
        print(json.dumps([implementation, heads, size, cache.page_bytes, stats.argument_size_in_bytes]))
"""


def test_pages_are_as_large_as_what_is_allocated(run_python: RunPython) -> None:
    done = run_python("-c", MEASURE)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) == 6
    for implementation, heads, size, page_bytes, allocated in found:
        assert PAGES * page_bytes == allocated, (implementation, heads, size)
    # Of two KV heads of 64 in a row nothing is padding.
    assert found[0][3] == found[3][3] == 2 * 64 * 2 * 8 * 64 * 2
