"""Slots for adapters at some of a model's modules only (`lora_target_modules`)."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx

from jaxllm.errors import ConfigError
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.places import Places
from jaxllm.models.adapters.targets import target_paths
from jaxllm.models.causal_lm import abstract_model, checkpoint_names
from jaxllm.models.checkpoint.names import CheckpointNames


def with_generative_targets(resolved: ResolvedConfig) -> ResolvedConfig:
    """`with_target_modules` of a model that generates."""
    model = abstract_model(resolved.model, resolved.forward, jnp.dtype(resolved.dtype))
    return with_target_modules(resolved, model, checkpoint_names(resolved.model, resolved.forward))


def with_target_modules(resolved: ResolvedConfig, model: nnx.Module, names: CheckpointNames) -> ResolvedConfig:
    """The configuration with slots for the modules that it names. Raises `ConfigError` for one that is not there.

    `model` has shapes for parameters, and its checkpoints have these `names`.
    """
    targets = resolved.config.lora.lora_target_modules
    if resolved.adapters is None or not targets:
        return resolved
    try:
        modules = target_paths(Places(model, names), targets)
    except AdapterError as error:
        raise ConfigError(str(error)) from error
    return replace(resolved, adapters=replace(resolved.adapters, modules=modules))
