"""A decode through a mixture of experts on CPU: its time compared with that of reading the weights of its experts once.

    python benchmarks/experts.py [--experts 128] [--active 8] [--hidden 2048] [--size 768] [--dtype float32]

Each step chooses other experts. The time to read as many bytes is that of the kernel for dense products, with one row.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.experts import MixtureOfExperts
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.linear import Weight, choose_layout, linear

STEPS, INPUTS = 100, 16


def make_layer(options: argparse.Namespace) -> MixtureOfExperts:
    """A layer with random weights, as the engine has it on CPU."""
    plan = ExpertsPlan(
        count=options.experts, per_token=options.active, size=options.size, router=RouterPlan(normalised=True)
    )
    config = ModelConfig(
        architecture="", vocab_size=1, hidden_size=options.hidden, num_heads=1, num_kv_heads=1, head_size=2,
        intermediate_size=options.size, layers=(),
    )  # fmt: skip
    forward = ForwardOptions(native_matmul=True)
    layer = MixtureOfExperts(config, plan, dtype=jnp.dtype(options.dtype), options=forward)
    graph, state = nnx.split(layer)
    leaves = [
        (path, variable.replace(random(ParameterSpec.of(variable).array, number)))
        for number, (path, variable) in enumerate(nnx.to_flat_state(state))
    ]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def random(like: Any, seed: int) -> jax.Array:
    """Small numbers of a shape and a type."""
    make = jax.jit(lambda: (jax.random.normal(jax.random.key(seed), like.shape) * 0.02).astype(like.dtype))
    array: jax.Array = make()
    return array


def seconds(*kinds: Iterator[Callable[[], jax.Array]]) -> list[tuple[float, float]]:
    """Of each kind of step the shortest of many, and the median. They take turns, so that other load meets all."""
    times: list[list[float]] = [[] for _ in kinds]
    for _ in range(STEPS):
        for steps, own in zip(kinds, times, strict=True):
            step = next(steps)
            start = time.perf_counter()
            step().block_until_ready()
            own.append(time.perf_counter() - start)
    return [(min(own), sorted(own)[STEPS // 2]) for own in times]


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--active", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--size", type=int, default=768)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    layer = make_layer(options)
    graph, state = nnx.split(layer)
    run = jax.jit(lambda state, x: nnx.merge(graph, state)(x, ForwardContext(jnp.int32(1))))
    rows = [random(jnp.zeros((1, options.hidden)), seed) * 50 for seed in range(INPUTS)]
    # A matrix of as many bytes as the experts that a token has, several of them, or a cache would hold it.
    layout = choose_layout((options.active * options.size * 3, options.hidden), options.dtype, native=True)
    dense = [random(jax.ShapeDtypeStruct(layout.array_shape, options.dtype), seed) for seed in range(4)]
    multiply = jax.jit(lambda x, array: linear(x, Weight(layout, array)))
    mixture = cycle([lambda x=x: run(state, x) for x in rows])
    reading = cycle([lambda array=array: multiply(rows[0], array) for array in dense])
    for warm in (mixture, reading):
        next(warm)().block_until_ready()
    found, bound = seconds(mixture, reading)
    size = dense[0].nbytes
    print(f"{options.active} of {options.experts} experts, {size / 2**20:.0f} MiB of {options.dtype}")
    for name, index in {"best": 0, "median": 1}.items():
        each, least = found[index], bound[index]
        print(
            f"{name:7} mixture {each * 1e3:7.2f} ms, reading {least * 1e3:7.2f} ms "
            f"({size / least / 1e9:.1f} GB/s): {each / least:.2f} x"
        )


if __name__ == "__main__":
    main()
