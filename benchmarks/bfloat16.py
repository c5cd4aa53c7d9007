"""Products of bfloat16 on CPU as it is (AVX512-BF16), compared with those widened to float32, alternating in one run.

    python -m benchmarks.bfloat16 [--rows 1,4,8,32,128,512] [--shapes 768x2304,3072x16384] [--megabytes 300]

A step goes through a stack of matrices, inputs x outputs, so that no cache holds them. Of each kind of product: the
least and the median time of a matrix, the operations and bytes per second that the least stands for, and its share of
what the machine can do at best, by arithmetic or memory, whichever is slower.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.shared.machine import Machine, measure_machine
from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.linear import Weight, choose_layout, linear

SHAPES = "768x2304,768x768,768x4096,2048x768,3072x5120,3072x3072,3072x16384,8192x3072"
"""Of a decoder of 125 million parameters and one of 3 billion: attention's two products, and those of the MLP."""
Step = Callable[[jax.Array], jax.Array]


def make_step(weight: Weight, layers: int) -> Step:
    """One product after another with all layers of a stack."""

    @jax.jit
    def run(x: jax.Array, weight: Weight) -> jax.Array:
        def body(layer: jax.Array, last: jax.Array) -> jax.Array:
            # Each product waits for the last one.
            x_now = lax.optimization_barrier((x, last))[0]
            return linear(x_now, Weight(weight.layout, weight.array, layer), out_dtype=x.dtype)

        zero = jnp.zeros((x.shape[0], weight.layout.shape[0]), x.dtype)
        found: jax.Array = lax.fori_loop(0, layers, body, zero)
        return found

    return lambda x: run(x, weight)


def make_steps(in_size: int, out_size: int, megabytes: int) -> tuple[dict[str, Step], int]:
    """By the kind of products a step, and how many matrices it goes through."""
    layers = max(1, megabytes * 10**6 // (2 * in_size * out_size))
    kinds = {"widened": False, "native": True}
    layouts = {
        name: choose_layout((out_size, in_size), "bfloat16", native=True, multiplies_pairs=native)
        for name, native in kinds.items()
    }
    numbers = np.random.default_rng(0).standard_normal(layouts["widened"].array_shape, np.float32)
    stack = jax.jit(lambda array: jnp.broadcast_to(array.astype(jnp.bfloat16), (layers, *array.shape)) + 0)(numbers)
    weights = {name: Weight(layout, stack.reshape(layers, *layout.array_shape), 0) for name, layout in layouts.items()}
    return {name: make_step(weight, layers) for name, weight in weights.items()}, layers


def measure(steps: dict[str, Step], x: jax.Array, repeats: int) -> dict[str, list[float]]:
    """Seconds of each step, taking turns; one more goes first."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step(x).block_until_ready()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return times


def bound(machine: Machine, name: str, rows: int, shape: tuple[int, int]) -> float:
    """Seconds of a product, if nothing but arithmetic or reading the weights took time."""
    flops = machine.flops if name == "widened" else machine.bfloat16_flops
    return max(2 * rows * shape[0] * shape[1] / flops, 2 * shape[0] * shape[1] / machine.bandwidth)


def main() -> None:
    """Print a line for each shape, number of rows and kind of product."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,4,8,32,128,512")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if not host_processor().multiplies_bfloat16:
        raise SystemExit("this processor has no AVX512-BF16")
    machine = measure_machine()
    print(
        f"machine: {machine.flops / 1e9:.0f} GFLOP/s of float32, {machine.bfloat16_flops / 1e9:.0f} of bfloat16, "
        f"{machine.bandwidth / 1e9:.0f} GB/s"
    )
    rng = np.random.default_rng(1)
    for shape in ((int(part[0]), int(part[1])) for part in (each.split("x") for each in options.shapes.split(","))):
        steps, layers = make_steps(*shape, options.megabytes)
        for rows in map(int, options.rows.split(",")):
            x = jnp.asarray(rng.standard_normal((rows, shape[0]), np.float32), jnp.bfloat16)
            times = measure(steps, x, max(3, options.repeats // (1 + rows // 64)))
            least = {name: min(own) / layers for name, own in times.items()}
            for name, seconds in least.items():
                middle = statistics.median(times[name]) / layers
                print(
                    f"{shape[0]:5} x {shape[1]:5}  {rows:4} rows  {name:8} {seconds * 1e6:8.0f} us  median"
                    f" {middle * 1e6:8.0f}  {2 * rows * shape[0] * shape[1] / seconds / 1e9:6.1f} GFLOP/s"
                    f"  {2 * shape[0] * shape[1] / seconds / 1e9:5.1f} GB/s"
                    f"  {100 * bound(machine, name, rows, shape) / seconds:4.0f} %"
                    f"  {least['widened'] / seconds:5.2f} x",
                    flush=True,
                )


if __name__ == "__main__":
    main()
