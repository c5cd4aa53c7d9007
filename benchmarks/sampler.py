"""What choosing tokens costs: milliseconds of the sampler alone, for batches that use more and more of it.

    python benchmarks/sampler.py [--rows 32] [--vocab 32000] [--max-logprobs 20]

All cases run the same executable. Logits are normal with a deviation of 3, about as peaked as a small model's.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.sampler.rows import SamplingRows, SamplingState, empty_state
from jaxllm.executor.sampler.sampler import SampledRows, sample
from jaxllm.executor.sampler.table import SamplingTable
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

FILTERS: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "top_p, nearly flat": {"temperature": 2.0, "top_p": 0.99},
    "top_k + top_p": FILTERS,
    "greedy + penalties": {"temperature": 0, "repetition_penalty": 1.1},
    "greedy + bias": {"temperature": 0, "logit_bias": {1: 1.0}},
    "greedy + logprobs": {"temperature": 0, "logprobs": 5},
    "everything": FILTERS | {"min_p": 0.01, "presence_penalty": 0.1, "logit_bias": {1: 1.0}, "logprobs": 5},
}


def packed(num_rows: int, vocab: int, params: SamplingParams) -> tuple[jax.Array, jax.Array]:
    """Rows that all have the same parameters."""
    table = SamplingTable(num_rows, vocab)
    for slot in range(num_rows):
        prompt = np.array([1], np.int32)
        table.set(Request(request_id=str(slot), prompt_token_ids=prompt, params=params, slot=slot, arrival=slot))
    slots = np.arange(num_rows, dtype=np.int32)
    ints, floats = table.pack(slots, slots, np.ones(num_rows, np.bool_), num_rows)
    return jnp.asarray(ints), jnp.asarray(floats)


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--max-logprobs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    rows, vocab = options.rows, options.vocab

    def step(
        logits: jax.Array, ints: jax.Array, floats: jax.Array, state: SamplingState
    ) -> tuple[SampledRows, SamplingState]:
        return sample(logits, SamplingRows.unpack(ints, floats), state, max_logprobs=options.max_logprobs)

    logits = 3 * jax.random.normal(jax.random.key(0), (rows, vocab))
    state = empty_state(rows, vocab)
    begin = time.perf_counter()
    ints, floats = packed(rows, vocab, SamplingParams())
    compiled = jax.jit(step, donate_argnums=3).lower(logits, ints, floats, state).compile()
    print(f"{rows} rows, vocabulary of {vocab}; compiled in {time.perf_counter() - begin:.1f} s")
    print(f"{'':20} {'median ms':>10} {'best ms':>10}")
    for name, values in CASES.items():
        ints, floats = packed(rows, vocab, SamplingParams(**values))
        times = []
        for _ in range(options.repeats + 1):
            begin = time.perf_counter()
            sampled, state = compiled(logits, ints, floats, state)
            jax.block_until_ready(sampled)
            times.append(1e3 * (time.perf_counter() - begin))
        print(f"{name:20} {np.median(times[1:]):10.2f} {min(times[1:]):10.2f}")


if __name__ == "__main__":
    main()
