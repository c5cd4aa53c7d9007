"""Reads adapters of an engine's model, on the thread of the adapter store."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.adapters.store import HostAdapter, Read
from jaxllm.errors import RequestError, quoted
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.adapters.slot_arrays import slot_arrays
from jaxllm.models.causal_lm import abstract_model, checkpoint_names
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.adapter_slots import split_adapters
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.requests.lora_request import LoRARequest


def make_reader(resolved: ResolvedConfig) -> Read:
    """Reads adapters of the model."""
    options, dtype = resolved.forward, jnp.dtype(resolved.dtype)
    model = abstract_model(resolved.model, options, dtype)
    flat: Any = nnx.to_flat_state(nnx.state(model))
    specs = {path: ParameterSpec.of(variable) for path, variable in flat}
    with_slots = abstract_model(resolved.model, replace(options, adapters=resolved.adapters), dtype)
    _, slots = split_adapters(with_slots)
    names, max_rank = checkpoint_names(resolved.model, options), resolved.config.lora.max_lora_rank

    def read(lora: LoRARequest) -> HostAdapter:
        try:
            # In float32: what is rounded is what the slots have.
            found = read_adapter(Path(lora.lora_path), model, names, dtype=np.float32, max_rank=max_rank)
            arrays = slot_arrays(found, slots, specs)
        except ModelError as error:
            raise RequestError(f"adapter {quoted(lora.lora_name)}: {error}", "lora_request") from error
        return HostAdapter(bytes.fromhex(found.digest), tuple(arrays))

    return read
