"""Reads adapters of an engine's model, on the thread of the adapter store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.adapters.adapters import Adapters, SetAdapter
from jaxllm.adapters.store import HostAdapter, Read
from jaxllm.errors import RequestError, quoted
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.expert_reading import ExpertLimit
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.adapters.slot_arrays import SlotShapes, slot_arrays
from jaxllm.models.causal_lm import abstract_model, checkpoint_names
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.weight_target import ParameterPath
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.adapter_slots import split_adapters
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.options import AdapterShape
from jaxllm.requests.lora_request import LoRARequest


def adapters_of(resolved: ResolvedConfig, set_adapter: SetAdapter) -> Adapters[Any]:
    """The adapters of an engine. None is read yet; `set_adapter` brings one to a slot."""
    options = resolved.config.lora
    return Adapters(
        make_reader(resolved),
        set_adapter,
        num_slots=options.max_loras,
        capacity=options.max_cpu_loras or options.max_loras,
    )


def make_reader(resolved: ResolvedConfig) -> Read:
    """Reads adapters of a model that generates."""
    options = resolved.config.lora
    stages = [AdaptedStage.of(each) for each in resolved.stage_configs]
    return read_for(stages, options.max_lora_rank, options.lora_target_modules, is_generative=True)


def read_for(
    stages: "Sequence[AdaptedStage]", max_rank: int, targets: Sequence[str] = (), *, is_generative: bool = False
) -> Read:
    """Reads adapters of a model of these stages, for these modules only if there are `targets`.

    Those that start at an invocation are for models that generate, as in PEFT.
    """

    def read(lora: LoRARequest) -> HostAdapter:
        folder = Path(lora.lora_path)
        try:
            # In float32: what is rounded is what the slots have.
            found = [
                read_adapter(
                    folder, stage.model, stage.names, dtype=np.float32, max_rank=max_rank, experts=stage.experts
                )
                for stage in stages
            ]
            # The folder may have changed between two stages.
            if len({each.digest for each in found}) > 1:
                raise RequestError(f"adapter {quoted(lora.lora_name)} changed while it was read", "lora_request")
            if found[0].config.invocation_tokens and not is_generative:
                raise AdapterError("'alora_invocation_tokens' is set, which pooling models do not support")
            arrays = [
                slot_arrays(each, stage.slots, stage.specs, targets) for each, stage in zip(found, stages, strict=True)
            ]
        except ModelError as error:
            raise RequestError(f"adapter {quoted(lora.lora_name)}: {error}", "lora_request") from error
        invocation = found[0].config.invocation_tokens or ()
        digest, labels = bytes.fromhex(found[0].digest), found[0].num_labels
        return HostAdapter(digest, tuple(map(tuple, arrays)), labels, invocation)

    return read


@dataclass(frozen=True)
class AdaptedStage:
    """What reading must know of a stage, or of a whole model."""

    model: nnx.Module
    """With shapes for parameters."""
    names: CheckpointNames
    specs: Mapping[ParameterPath, ParameterSpec]
    slots: SlotShapes
    experts: ExpertLimit

    @classmethod
    def of(cls, resolved: ResolvedConfig) -> Self:
        """Of a configuration."""
        options, dtype = resolved.forward, jnp.dtype(resolved.dtype)
        with_slots = abstract_model(resolved.model, replace(options, adapters=resolved.adapters), dtype)
        model = abstract_model(resolved.model, options, dtype)
        assert resolved.adapters is not None
        return cls.of_models(model, with_slots, checkpoint_names(resolved.model, options), resolved.adapters)

    @classmethod
    def of_models(cls, model: nnx.Module, with_slots: nnx.Module, names: CheckpointNames, shape: AdapterShape) -> Self:
        """Of a model, which has shapes for parameters, without slots and with them, which are of this `shape`."""
        flat: Any = nnx.to_flat_state(nnx.state(model))
        _, slots = split_adapters(with_slots)
        specs = {path: ParameterSpec.of(variable) for path, variable in flat}
        return cls(model, names, specs, slots, ExpertLimit(shape.expert_rank, shape.dtype))
