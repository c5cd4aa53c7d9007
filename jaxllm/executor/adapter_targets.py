"""Slots for adapters at some of a model's modules only (`lora_target_modules`)."""

from dataclasses import replace

import jax.numpy as jnp

from jaxllm.errors import ConfigError
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.places import Places
from jaxllm.models.adapters.targets import target_paths
from jaxllm.models.causal_lm import abstract_model, checkpoint_names


def with_target_modules(resolved: ResolvedConfig, runner: str) -> ResolvedConfig:
    """The configuration with slots for the modules that it names. Raises `ConfigError` for one that is not there."""
    targets = resolved.config.lora.lora_target_modules
    if resolved.adapters is None or not targets:
        return resolved
    if runner == "pooling":
        raise ConfigError("lora_target_modules: not supported by pooling models; omit it")
    model = abstract_model(resolved.model, resolved.forward, jnp.dtype(resolved.dtype))
    places = Places(model, checkpoint_names(resolved.model, resolved.forward))
    try:
        modules = target_paths(places, targets)
    except AdapterError as error:
        raise ConfigError(str(error)) from error
    return replace(resolved, adapters=replace(resolved.adapters, modules=modules))
