"""Loads a checkpoint in a process of its own and prints how far resident memory rose: run by test_load_memory."""

import json
import sys
from pathlib import Path
from typing import Literal, cast

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions


def memory(field: str) -> int:
    """Bytes resident now (`VmRSS`) or at most so far (`VmHWM`), mapped file pages included.

    Not `getrusage`: its peak is inherited from the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main(folder: Path, options: ForwardOptions, dtype: str) -> None:
    """Print peak memory beyond the baseline and the size of the weights, both in bytes, as JSON."""
    # What JAX itself takes, once, is not the loader's.
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.zeros((64, 64))))
    baseline = memory("VmRSS")
    model = load_model(Checkpoint(folder), read_config(folder), options, dtype)
    leaves = jax.tree.leaves(nnx.split(model)[1])
    jax.block_until_ready(leaves)
    print(json.dumps({"peak": memory("VmHWM") - baseline, "weights": sum(leaf.nbytes for leaf in leaves)}))  # noqa: T201


if __name__ == "__main__":
    stack, layout = sys.argv[2:4]
    chosen = ForwardOptions(stack=cast(Literal["scan", "loop"], stack), native_matmul=layout == "packed")
    main(Path(sys.argv[1]), chosen, sys.argv[4])
