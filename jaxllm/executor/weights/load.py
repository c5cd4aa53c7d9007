"""The weights of an engine at its start: from a checkpoint, from a saved state, or random."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.config.progress import Progress
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.loading import open_weights

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.loading import WeightSource

LoadWeights = Callable[[ResolvedConfig, Progress], tuple[jax.Array, ...]]
"""Gives the parameters' leaves of an engine, or of a stage of it, on the devices. Raises `ModelError`."""


def open_engine_weights(resolved: ResolvedConfig) -> LoadWeights:
    """Open what an engine's weights come from, once for all of its stages. Nothing is read yet. Raises `ModelError`."""
    options = resolved.config.model
    if options.load_format == "sharded_state":
        # Few engines read one: starts are faster without the import.
        from jaxllm.executor.weights.sharded.load import SavedState

        return SavedState(resolved.folder).load
    return partial(_load, open_weights(resolved.folder, options.load_format, options.seed))


def _load(source: "WeightSource", resolved: ResolvedConfig, progress: Progress) -> tuple[jax.Array, ...]:
    def report(done: int, total: int) -> None:
        progress("Loading weights", done, total)

    model = load_model(source, resolved.model, resolved.forward, jnp.dtype(resolved.dtype), report)
    return tuple(jax.tree.leaves(nnx.split(model)[1]))
