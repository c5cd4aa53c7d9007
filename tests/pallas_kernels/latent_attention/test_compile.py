"""Latent attention compiled for TPUs that are not there: the cache stays in place, and is as large as planned."""

import json

import pytest

from tests.conftest import RunPython
from tests.thinned import thinned

pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")

COMPILE = """
import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from dataclasses import replace
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.latent_attention import LatentGeometry, latent_cache_shape
from jaxllm.pallas_kernels.latent_attention.cases import Case, abstract_inputs

rows = (*((1, 1023),) * 32, (224, 3000))
case = Case("step", rows, num_heads=16, latent_size=512, rope_size=64, page_size=64, dtype="bfloat16", layers=4)
more = {"index": {"index_heads": 64, "index_size": 128, "top": 2048}, "window": {"window": 512}}
for name in sys.argv[2:]:
    case = replace(case, sinks=True, **more[name])
inputs = abstract_inputs(case)
geometry = LatentGeometry(4, 2000, case.page_size, case.sizes, case.dtype, for_tpu=True)


def compiled(chip, implementation):
    options = dict(chip.topology_options)
    device = topologies.get_topology_desc(platform="tpu", topology_name=chip.topology, **options).devices[0]
    mesh = Mesh(np.array([device]), ("model",))
    cache = jax.ShapeDtypeStruct(latent_cache_shape(implementation, geometry), jnp.bfloat16)
    others = replace(inputs, kv_cache=None)

    def layers(cache, others):
        def layer(carry, index):
            queries, cache = carry
            out, cache = replace(others, q_latent=queries, kv_cache=cache).call(implementation, index)
            return (out, cache), None

        return jax.lax.scan(layer, (others.q_latent, cache), jnp.arange(4, dtype=jnp.int32))[0]

    sharding = NamedSharding(mesh, PartitionSpec())
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), (cache, others))
    with jax.set_mesh(mesh):
        memory = jax.jit(layers, donate_argnums=0).lower(*placed).compile().memory_analysis()
    return [math.prod(cache.shape) * 2, memory.alias_size_in_bytes, memory.temp_size_in_bytes]


print(json.dumps([compiled(CHIPS[chip], implementation) for chip, implementation in json.loads(sys.argv[1])]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("chip", thinned(["v6e"], ["v5e", "v5p"]))
def test_the_cache_stays_in_place(run_python: RunPython, chip: str) -> None:
    asked = [(chip, "tpu"), *([(chip, "xla")] if chip == "v6e" else [])]
    done = run_python("-c", COMPILE, json.dumps(asked))
    assert done.returncode == 0, done.stderr
    for size, alias, temporary in json.loads(done.stdout.splitlines()[-1]):
        assert size == 4 * 2000 * 64 * 640 * 2
        # What is aliased is the cache, without padding; what is not holds blocks, queries and results.
        assert alias == size
        assert temporary < size / 4


@pytest.mark.slow
def test_with_windows_and_sinks_the_cache_stays_in_place(run_python: RunPython) -> None:
    done = run_python("-c", COMPILE, json.dumps([("v6e", "tpu")]), "window")
    assert done.returncode == 0, done.stderr
    ((size, alias, temporary),) = json.loads(done.stdout.splitlines()[-1])
    assert size == alias == 4 * 2000 * 64 * 640 * 2
    assert temporary < size / 4


@pytest.mark.slow
@pytest.mark.parametrize("chip", thinned(["v4"], ["v5e", "v6e", "v5p", "tpu7x"]))
def test_with_an_index_the_cache_stays_in_place(run_python: RunPython, chip: str) -> None:
    done = run_python("-c", COMPILE, json.dumps([(chip, "tpu")]), "index")
    assert done.returncode == 0, done.stderr
    ((size, alias, temporary),) = json.loads(done.stdout.splitlines()[-1])
    assert size == alias == 4 * 2000 * 64 * 768 * 2
    assert temporary < size / 4
