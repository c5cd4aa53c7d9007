"""Loads a checkpoint in a process of its own and prints how far resident memory rose: run by test_load_memory."""

import json
import resource
import sys
from pathlib import Path
from typing import Literal, cast

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint import read_config
from jaxllm.models.options import ForwardOptions


def peak_bytes() -> int:
    """The most memory this process has had resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folder: Path, stack: Literal["scan", "loop"], dtype: str) -> None:
    """Print peak memory beyond the baseline and the size of the weights, both in bytes, as JSON."""
    # What JAX itself takes, once, is not the loader's.
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.zeros((64, 64))))
    baseline = peak_bytes()
    model = load_model(folder, read_config(folder), ForwardOptions(stack=stack), dtype)
    leaves = jax.tree.leaves(nnx.split(model)[1])
    jax.block_until_ready(leaves)
    print(json.dumps({"peak": peak_bytes() - baseline, "weights": sum(leaf.nbytes for leaf in leaves)}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), cast(Literal["scan", "loop"], sys.argv[2]), sys.argv[3])
