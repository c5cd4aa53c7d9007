"""Paged attention on a GPU: right on every case, and how near to the memory and the matrix units, compared with cuDNN.

    scripts/bench gpu_attention                       everything; prints Markdown for docs/benchmarks.md
    scripts/bench gpu_attention --only llama_3_8b     cases whose name contains this
    scripts/bench gpu_attention --check               numerics alone

Exit code 0 when every case is right, 1 when one is wrong, 2 when there is no GPU.
"""

import argparse
import dataclasses
import datetime as dt
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.paged_attention.cases import (
    BENCHMARK_CASES,
    CASES,
    LONG_CASES,
    Case,
    Inputs,
    make_inputs,
    minimum_bytes,
    tolerance,
)
from jaxllm.pallas_kernels.paged_attention.gpu.options import is_hopper
from jaxllm.pallas_kernels.paged_attention.triton.options import HALF_TYPES, problem_of
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major

REPEATS = 20
"""Times that an operation runs in one call, each waiting for the one before: what the host does is not measured."""

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Machine:
    """Peak rates of this GPU in the simplest use of it: the measure of everything else."""

    bandwidth: float
    """Bytes per second, read and written, of a copy of 2 GB."""
    flops: float
    """Operations per second of a bfloat16 product of 8192 x 8192 matrices."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One case in the table."""

    case: Case
    seconds: dict[str, float | str]
    """By implementation; a string says why there is none."""


def on_gpu(case: Case) -> Case:
    """`case` in the types that the GPU kernel takes: bfloat16 where it is float32."""
    return dataclasses.replace(case, dtype="bfloat16", kv_dtype=None if case.kv_dtype == "float32" else case.kv_dtype)


def kernels_of(device: Any) -> tuple[str, ...]:
    """The kernels that a GPU can run, the one that `auto` takes first."""
    own = ("gpu",) if is_hopper(device) else ()
    return own if problem_of(device) else (*own, "triton")


def attention_flops(case: Case) -> int:
    """Operations of both products, for the keys that each query sees."""
    seen = 0
    for new, computed in case.rows:
        for position in range(computed, computed + new):
            seen += min(position + 1, case.window or position + 1)
    return 4 * seen * case.num_heads * case.head_size


def _with_own_cache(inputs: Inputs, implementation: str) -> Inputs:
    """`inputs` with the cache in the shape of the implementation."""
    return dataclasses.replace(inputs, kv_cache=head_major(inputs.kv_cache)) if implementation == "xla" else inputs


def largest_error(case: Case, implementation: str) -> float:
    """Largest difference between `implementation` and the reference, over what is not padding; infinite for NaN."""
    inputs = make_inputs(case)
    own = _with_own_cache(inputs, implementation)
    wide = dataclasses.replace(inputs, **{name: getattr(inputs, name).astype(jnp.float32) for name in ("q", "k", "v")})
    got, cache = jax.jit(lambda inputs: inputs.call(implementation))(own)
    cache = canonical(cache) if implementation == "xla" else cache
    with jax.default_matmul_precision("highest"):
        expected, expected_cache = jax.jit(lambda inputs: inputs.call("reference"))(wide)
    if not np.array_equal(np.asarray(cache)[:, 1:].view(np.uint8), np.asarray(expected_cache)[:, 1:].view(np.uint8)):
        return float("inf")
    difference = np.abs(np.asarray(got, np.float32) - np.asarray(expected))[: case.num_tokens]
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


def check_all(cases: list[Case], implementation: str) -> list[str]:
    """Print the error of every case. Returns the names of those that are wrong."""
    wrong = []
    for case in cases:
        error = largest_error(case, implementation)
        verdict = "ok" if error <= tolerance(case) else "WRONG"
        print(f"{case.name:24} {error:10.2e} of {tolerance(case):.0e} {verdict}", flush=True)
        if verdict != "ok":
            wrong.append(case.name)
    return wrong


def seconds_of(function: Function, *arrays: Any, donate: tuple[int, ...] = ()) -> float:
    """Time of one call; the best of five. Donated arguments must be the first results."""
    run = jax.jit(function, donate_argnums=donate)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        results = jax.block_until_ready(run(*arrays))
        times.append(time.perf_counter() - start)
        if donate:
            arrays = (*results, *arrays[len(results) :])
    return min(times[1:])  # The first compiled.


def measure_machine() -> Machine:
    """Measure the copy bandwidth and the matrix rate of the device."""
    array = jnp.zeros((1 << 30,), jnp.bfloat16)

    def copies(array: jax.Array) -> tuple[jax.Array]:
        return (jax.lax.fori_loop(0, REPEATS, lambda _, x: jax.lax.optimization_barrier(-x), array),)

    bandwidth = 2 * array.nbytes * REPEATS / seconds_of(copies, array, donate=(0,))
    matrix = jnp.full((8192, 8192), 1e-4, jnp.bfloat16)

    def products(x: jax.Array, y: jax.Array) -> tuple[jax.Array]:
        return (jax.lax.fori_loop(0, REPEATS, lambda _, x: x @ y, x),)

    flops = 2 * 8192**3 * REPEATS / seconds_of(products, matrix, matrix + 0, donate=(0,))
    return Machine(bandwidth, flops)


def time_paged(case: Case, implementation: str) -> float:
    """Seconds of one paged attention, as in a model: the cache carried along, each call waiting for the last."""
    inputs = _with_own_cache(make_inputs(case), implementation)

    def layers(q: jax.Array, kv_cache: jax.Array, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        def layer(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            inputs_here = dataclasses.replace(inputs, q=carry[0], kv_cache=carry[1])
            return inputs_here.call(implementation, index % case.layers)

        return jax.lax.fori_loop(0, REPEATS, layer, (q, kv_cache))

    rest = dataclasses.replace(inputs, q=inputs.q[:0], kv_cache=inputs.kv_cache[:0])
    return seconds_of(layers, inputs.q, inputs.kv_cache, rest, donate=(0, 1)) / REPEATS


def time_cudnn(case: Case) -> float:
    """Seconds of cuDNN's attention on the same shapes, with keys and values contiguous and already written.

    Raises:
        ValueError: a batch that cuDNN, as JAX calls it, has no equivalent of.
    """
    if len(set(case.rows)) != 1:
        raise ValueError("rows differ")
    new, computed = case.rows[0]
    if new > 1 and computed:
        raise ValueError("a causal mask begins at the first key")
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (len(case.rows), new + computed, case.num_kv_heads, case.head_size)
    k, v = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys[:2])
    q = jax.random.normal(keys[2], (len(case.rows), new, case.num_heads, case.head_size), jnp.bfloat16)
    attend = functools.partial(jax.nn.dot_product_attention, is_causal=new > 1, implementation="cudnn")

    def layers(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array]:
        return (jax.lax.fori_loop(0, REPEATS, lambda _, q: attend(q, k, v), q),)

    return seconds_of(layers, q, k, v, donate=(0,)) / REPEATS


def measure(case: Case, implementations: tuple[str, ...]) -> Row:
    """Time a case with each implementation and with cuDNN."""
    seconds: dict[str, float | str] = {}
    for name in (*implementations, "cudnn"):
        try:
            seconds[name] = time_cudnn(case) if name == "cudnn" else time_paged(case, name)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            seconds[name] = str(error).splitlines()[0][:60]
    return Row(case, seconds)


def table(rows: list[Row], machine: Machine) -> str:
    """Markdown: for each case and implementation the time, and the share of what the machine reaches.

    A case of decodes is held to the bandwidth (bytes that must move), any other to the matrix rate.
    """
    names = list(rows[0].seconds) if rows else []
    lines = [
        "| case | bound | " + " | ".join(f"{name} ms | {name} share" for name in names) + " |",
        "|---|---|" + "---:|---:|" * len(names),
    ]
    for row in rows:
        decode = all(new == 1 for new, _ in row.case.rows)
        least = minimum_bytes(row.case) / machine.bandwidth if decode else attention_flops(row.case) / machine.flops
        cells = []
        for seconds in row.seconds.values():
            if isinstance(seconds, str):
                cells.append(f"- | {seconds}")
            else:
                cells.append(f"{seconds * 1e3:.3f} | {least / seconds:.0%}")
        lines.append(f"| {row.case.name} | {'memory' if decode else 'matrix'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--check", action="store_true", help="numerics alone")
    options = parser.parse_args(arguments)
    if jax.default_backend() != "gpu":
        print(f"gpu_attention: no GPU here; JAX runs on {jax.default_backend()}", file=sys.stderr)
        return 2
    kernels, wrong = kernels_of(jax.devices()[0]), []
    for kernel in kernels:
        print(kernel)
        cases = [on_gpu(case) for case in (*CASES, *LONG_CASES) if options.only in case.name and not case.scale_bytes]
        taken = [case for case in cases if kernel == "gpu" or str(case.cache_dtype) in HALF_TYPES]
        wrong += [f"{name} ({kernel})" for name in check_all(taken, kernel)]
    if wrong:
        print(f"wrong: {', '.join(wrong)}")
    if options.check:
        return bool(wrong)
    machine = measure_machine()
    device = jax.devices()[0].device_kind
    print(f"\n{device}, JAX {jax.__version__}, {dt.datetime.now(dt.UTC):%Y-%m-%d}.")
    print(f"Copy {machine.bandwidth / 1e12:.2f} TB/s, matrix product {machine.flops / 1e12:.0f} TFLOP/s.\n")
    print(table([measure(case, (*kernels, "xla")) for case in BENCHMARK_CASES if options.only in case.name], machine))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
