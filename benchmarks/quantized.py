"""Products with quantised weights on CPU compared with those in float32, alternating in one run.

    python -m benchmarks.quantized [--rows 1,8,32,512] [--layers 6] [--size 8192] [--kinds int8,w8a8,int4]

A step goes through a stack of square matrices, so that no cache holds them. Of each kind of weights: the least time of
many steps, how many times as fast as float32 that is, the bandwidth that it stands for, and how much less processor
time it took, which other load on the machine changes less.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.pallas_kernels.linear import Weight, choose_layout, linear
from jaxllm.pallas_kernels.linear.cpu.quantized.layout import QuantizedPacked
from jaxllm.pallas_kernels.linear.quantized_cases import NF4, pack_matrix, random_matrix
from jaxllm.pallas_kernels.linear.weight_type import FP4, INT4, UINT4, Activations, Values, WeightType

KINDS = {
    "int8": WeightType(Values.INT8),
    "w8a8": WeightType(Values.INT8, activations=Activations.PER_TOKEN),
    "int8-128": WeightType(Values.INT8, group=128, scales="bfloat16"),
    "int4": WeightType(Values.CODES, group=128, code=INT4, scales="bfloat16"),
    "w4a8": WeightType(Values.CODES, group=128, code=INT4, activations=Activations.PER_TOKEN),
    "uint4": WeightType(Values.CODES, group=128, code=UINT4, scales="float16", has_offsets=True),
    "mxfp4": WeightType(Values.CODES, group=32, code=FP4, scales="bfloat16"),
    "nf4": WeightType(Values.CODES, group=64, code=NF4, scales="bfloat16"),
    "fp8": WeightType(Values.FLOAT8_E4M3),
}
Step = Callable[[jax.Array], jax.Array]


def stacked(weight: Weight, layers: int) -> Weight:
    """The same matrix so many times."""
    several = jax.jit(lambda array: jnp.broadcast_to(array, (layers, *array.shape)) + jnp.zeros((), array.dtype))
    names = ("array", "scales", "offsets")
    arrays = {name: several(found) for name in names if (found := getattr(weight, name)) is not None}
    return replace(weight, layer=0, **arrays)


def through(weight: Weight, layers: int) -> Step:
    """A step through a stack."""

    @jax.jit
    def run(x: jax.Array, weight: Weight) -> jax.Array:
        def body(layer: jax.Array, x: jax.Array) -> jax.Array:
            return linear(x, replace(weight, layer=layer)) * jnp.float32(0.01)

        found: jax.Array = lax.fori_loop(0, layers, body, x)
        return found

    return lambda x: run(x, weight)


def make_steps(kinds: list[str], size: int, layers: int) -> dict[str, tuple[Step, int]]:
    """By the name of a kind: its step, and the bytes of weights that it reads. Float32 is first."""
    rng = np.random.default_rng(0)
    layout = choose_layout((size, size), "float32", native=True)
    plain = Weight(layout, jnp.asarray(rng.standard_normal(layout.array_shape, np.float32)))
    weights = {"float32": stacked(plain, layers)}
    for kind in kinds:
        matrix = random_matrix((size, size), KINDS[kind], rng)
        weights[kind] = stacked(pack_matrix(QuantizedPacked(matrix.shape, KINDS[kind]), matrix), layers)
    return {
        name: (through(weight, layers), sum(leaf.nbytes for leaf in jax.tree.leaves(weight) if np.ndim(leaf) > 2))
        for name, weight in weights.items()
    }


def main() -> None:
    """Print a line for each kind and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,32,512")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    steps = make_steps(options.kinds.split(","), options.size, options.layers)
    rng = np.random.default_rng(1)
    for rows in map(int, options.rows.split(",")):
        x = jnp.asarray(rng.standard_normal((rows, options.size), np.float32))
        best = dict.fromkeys(steps, (float("inf"), float("inf")))
        for repeat in range(max(3, options.repeats // (1 + rows // 64)) + 1):
            for name, (step, _) in steps.items():
                start, used = time.perf_counter(), time.process_time()
                step(x).block_until_ready()
                if repeat:
                    found = time.perf_counter() - start, time.process_time() - used
                    best[name] = min(best[name][0], found[0]), min(best[name][1], found[1])
        for name, (_, size) in steps.items():
            seconds, processor = best[name]
            print(
                f"{rows:4} rows  {name:9} {seconds * 1e3:8.1f} ms  {best['float32'][0] / seconds:5.2f} x"
                f"  {size / seconds / 1e9:5.1f} GB/s  {best['float32'][1] / processor:5.2f} x processor time",
                flush=True,
            )


if __name__ == "__main__":
    main()
