"""The weights of an engine at its start: from a checkpoint, from a saved state, or random."""

import logging
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
from jaxllm.models.checkpoint.weight_target import ParameterPath

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.loading import WeightSource
    from jaxllm.models.checkpoint.parameter_loader import Change

logger = logging.getLogger(__name__)

LoadWeights = Callable[[ResolvedConfig, Progress], tuple[jax.Array, ...]]
"""Gives the parameters' leaves of an engine, or of a stage of it, on the devices. Raises `ModelError`."""


def open_engine_weights(resolved: ResolvedConfig) -> LoadWeights:
    """Open what an engine's weights come from, once for all of its stages. Nothing is read yet. Raises `ModelError`."""
    options = resolved.config.model
    if resolved.config.lora.merge_lora is not None:
        # Few engines merge an adapter: starts are faster without the import.
        from jaxllm.executor.weights.merging import merge_while_loading

        if options.weight_cache_size:
            logger.warning("weight_cache_size has no effect: merge_lora changes the weights")
        return merge_while_loading(resolved, load_leaves)
    if options.load_format == "sharded_state" or options.weight_cache_size:
        # Few engines read what others saved: starts are faster without the import.
        from jaxllm.executor.weights.cached import open_saved

        return open_saved(resolved, load_leaves)
    return partial(load_leaves, open_weights(resolved.folder, options.load_format, options.seed))


def load_leaves(
    source: "WeightSource", resolved: ResolvedConfig, progress: Progress, change: "Change | None" = None
) -> tuple[jax.Array, ...]:
    """The parameters' leaves, see `load_model`."""

    def report(done: int, total: int) -> None:
        progress("Loading weights", done, total)

    drafter = open_drafter_weights(resolved)
    model = load_model(source, resolved.model, resolved.forward, jnp.dtype(resolved.dtype), report, drafter, change)
    return tuple(jax.tree.leaves(nnx.split(model)[1]))


def load_drafter(resolved: ResolvedConfig) -> dict[ParameterPath, jax.Array]:
    """The parameters of a drafter that has its own checkpoint, by their paths in the model. Raises `ModelError`."""
    source, plan, dtype = open_drafter_weights(resolved), resolved.drafter, jnp.dtype(resolved.dtype)
    assert source is not None
    assert plan is not None
    loaded = plan.load(plan.make(resolved.model, resolved.forward, dtype), source, None)
    return {("drafter", *path): leaf[...] for path, leaf in nnx.to_flat_state(nnx.state(loaded))}


def open_drafter_weights(resolved: ResolvedConfig) -> "WeightSource | None":
    """Open the weights of a drafter that has its own checkpoint. Raises `ModelError`."""
    if resolved.drafter_folder is None or resolved.forward.drafter is None:
        return None
    options = resolved.config.model
    return open_weights(resolved.drafter_folder, "dummy" if options.load_format == "dummy" else "auto", options.seed)
