"""Latent attention on this CPU: one implementation compared with another, at the sizes of DeepSeek's models.

    scripts/bench latent_attention                      prints a table in Markdown
    scripts/bench latent_attention --dtype bfloat16     another type of queries and of the cache
    scripts/bench latent_attention --dtype bfloat16 --of cpu cpu_pairs      the kernel that multiplies pairs
    scripts/bench latent_attention --only decode        cases whose name contains this

Times are the best of several calls, in alternating runs: on a machine that does other things as well, too.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.latent_attention.cases import Case, Inputs, make_inputs, products

ROWS: dict[str, tuple[tuple[int, int], ...]] = {
    "decode_1x128": ((1, 127),),
    "decode_1x2k": ((1, 2047),),
    "decode_1x8k": ((1, 8191),),
    "decode_1x32k": ((1, 32767),),
    "decode_8x2k": ((1, 2047),) * 8,
    "decode_32x1k": ((1, 1023),) * 32,
    "prefill_512": ((512, 0),),
    "chunk_256_behind_4k": ((256, 4096),),
}
HEADS = {"16 heads": 16, "128 heads": 128}
IMPLEMENTATIONS = ("xla", "cpu", "cpu_pairs")


def cases(dtype: str, only: str) -> Iterable[tuple[str, Case]]:
    """Every case with its heads, over a cache of a type."""
    for heads, number in HEADS.items():
        for name, rows in ROWS.items():
            if only in name:
                yield heads, Case(name, rows, number, 512, 64, page_size=64, dtype=dtype, layers=1)


def measure(case: Case, names: Sequence[str], rounds: int) -> dict[str, float]:
    """Seconds of a call, by implementation."""
    inputs = make_inputs(case)
    runs = {name: _runner(name, inputs) for name in names}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _runner(implementation: str, inputs: Inputs) -> Callable[[], None]:
    """A call that keeps its cache, as an engine does."""
    caches = [jnp.array(inputs.kv_cache)]
    others = replace(inputs, kv_cache=jnp.zeros(()))

    def call(cache: jax.Array, others: Inputs) -> tuple[jax.Array, jax.Array]:
        return replace(others, kv_cache=cache).call(implementation, 0)

    step = jax.jit(call, donate_argnums=0)

    def run() -> None:
        _, caches[0] = jax.block_until_ready(step(caches[0], others))

    run()  # Compiles.
    return run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    both = "an implementation, and the one that is compared with it"
    parser.add_argument("--of", nargs=2, choices=IMPLEMENTATIONS, default=("xla", "cpu"), help=both)
    options = parser.parse_args()
    first, second = options.of
    print(f"| heads | case | {first}, ms | {second}, ms | times as fast | Gflop/s |\n|---|---|---|---|---|---|")
    for heads, case in cases(options.dtype, options.only):
        seconds = measure(case, options.of, options.rounds)
        slow, fast, rate = seconds[first], seconds[second], products(case) / seconds[second] / 1e9
        row = (heads, case.name, f"{slow * 1e3:.2f}", f"{fast * 1e3:.2f}", f"{slow / fast:.2f}", f"{rate:.0f}")
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
