"""Attention of one layer with an index, windows or sinks on this CPU: the kernels next to XLA's operations.

    scripts/bench cpu_indexed                   every case
    scripts/bench cpu_indexed --only m3         cases whose name contains this

The sizes are those of the models, as all their heads lie on one device. Processor time of all threads in milliseconds,
in alternating runs: the least and the median of `--rounds`. With a short context an index chooses among few keys; the
least context of each case is what it chooses.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.latent_attention import cases as latent
from jaxllm.pallas_kernels.paged_attention import BlockIndex, get_backend, paged_attention
from jaxllm.pallas_kernels.paged_attention import inputs as paged

INDEX: dict[str, Any] = {"index_heads": 64, "index_size": 128, "top": 2048}
DEEPSEEK = latent.Case("deepseek v3.2", (), 128, 512, 64, page_size=64, layers=1, **INDEX)
LATENT = (
    DEEPSEEK,
    replace(DEEPSEEK, name="hy4", num_heads=32, index_heads=16, sinks=True),
    latent.Case("dots3 window", (), 64, 1024, 64, page_size=64, layers=1, window=512),
)
M3 = paged.Case("minimax m3", (), num_heads=80, num_kv_heads=5, head_size=128, page_size=64, layers=1)
"""64 query heads and 4 KV heads; those of the index are the last."""
ROWS = {
    "1 x 2k": ((1, 2047),),
    "1 x 8k": ((1, 8191),),
    "8 x 4k": ((1, 4095),) * 8,
    "64 after 4k": ((64, 4032),),
}
Run = Callable[[str], Callable[[], None]]


def latent_runner(case: latent.Case) -> Run:
    """What makes a call of an implementation."""
    inputs = latent.make_inputs(case)

    def make(name: str) -> Callable[[], None]:
        call = jax.jit(lambda own, cache: replace(own, kv_cache=cache).call(name, 0), donate_argnums=1)
        return _keeping(call, replace(inputs, kv_cache=jnp.zeros(())), inputs.kv_cache)

    return make


def m3_runner(case: paged.Case) -> Run:
    """The same of MiniMax M3."""
    inputs, rng = paged.make_inputs(case), np.random.default_rng(1)
    query, key = (jnp.array(rng.standard_normal((len(inputs.q), *each), np.float32)) for each in ((4, 128), (128,)))
    index = BlockIndex(query, key, block=128, top=16, local=1)
    arrays = inputs.q[:, :64], inputs.k[:, :4], inputs.v[:, :4]

    def make(name: str) -> Callable[[], None]:
        def call(own: tuple[Any, ...], cache: jax.Array) -> tuple[jax.Array, jax.Array]:
            (q, k, v), index = own
            return paged_attention(q, k, v, cache, 0, inputs.batch, inputs.options, index=index, implementation=name)

        cache = get_backend(name).from_canonical(inputs.kv_cache)
        return _keeping(jax.jit(call, donate_argnums=1), (arrays, index), cache)

    return make


def _keeping(call: Callable[..., tuple[jax.Array, jax.Array]], others: Any, cache: jax.Array) -> Callable[[], None]:
    """A call that keeps its cache, as an engine does."""
    caches = [jnp.array(cache)]

    def run() -> None:
        _, caches[0] = jax.block_until_ready(call(others, caches[0]))

    run()  # Compiles.
    return run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print("| layer | step | xla, least and median | cpu, least and median | times as fast |\n|---|---|---|---|---|")
    for case in (M3, *LATENT):
        for name, rows in ROWS.items():
            if options.only not in f"{case.name} {name}":
                continue
            own: Any = replace(case, rows=rows)
            make = m3_runner(own) if isinstance(own, paged.Case) else latent_runner(own)
            runs: dict[str, tuple[Callable[[], None], list[float]]] = {
                each: (make(each), []) for each in ("xla", "cpu")
            }
            for _ in range(options.rounds):
                for run, times in runs.values():
                    start = time.process_time()
                    run()
                    times.append((time.process_time() - start) * 1e3)
            xla, cpu = ((min(times), statistics.median(times)) for _, times in runs.values())
            row = f"{xla[0]:.1f}, {xla[1]:.1f} | {cpu[0]:.1f}, {cpu[1]:.1f} | {xla[0] / cpu[0]:.1f}"
            print(f"| {case.name} | {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
