"""Granite 4: state spaces in most layers, attention in some, experts or one MLP in all."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import granitemoe
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.granite import read_granite
from jaxllm.models.families.mamba2 import MAMBA, block_kinds, read_hybrid, state_space_names
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import StateSpacePlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Granite 4's configuration."""
    file.ignore("logits_to_keep")
    file.expect(normalization_function="rmsnorm")
    file = file.reading({"layer_types": "layers_block_type"}, shared_intermediate_size=1024)
    if file.integer("num_local_experts", 8, minimum=0):
        config = granitemoe.read_config(file, architecture)
    else:
        file.ignore("num_experts_per_tok", "router_aux_loss_coef")
        config = read_granite(file, architecture)
        mlp = MLPPlan(activation=config.layers[0].mlp.activation, size=file.integer("shared_intermediate_size"))
        config = replace(config, layers=tuple(replace(layer, mlp=mlp) for layer in config.layers))
    count = config.num_layers
    kinds = block_kinds(file, file.texts("layer_types") if file.has("layer_types") else [MAMBA] * count, count)
    plan = read_hybrid(file) if MAMBA in kinds else None
    has_rope = file.has("position_embedding_type") and file.text("position_embedding_type") == "rope"

    def layer_of(layer: LayerPlan, kind: str) -> LayerPlan:
        own = layer if has_rope else layer.attending(rope=None)
        return replace(own, recurrence=plan) if kind == MAMBA else own

    return replace(config, layers=tuple(map(layer_of, config.layers, kinds)))


def weight_names(config: ModelConfig) -> Names:
    """Gates and what they gate are one tensor."""
    mlp = config.layers[0].mlp
    if isinstance(mlp, ExpertsPlan):
        names = dict(granitemoe.weight_names(config))
    else:
        size = mlp.size or config.intermediate_size
        wide = fused("model.layers.*.shared_mlp.input_linear", {"gate": size, "up": size})
        names = {**LLAMA_NAMES, **{f"layers.*.mlp.{name}": source for name, source in wide.items()}}
        names["layers.*.mlp.down"] = "model.layers.*.shared_mlp.output_linear"
    for plan in config.recurrences[:1]:
        assert isinstance(plan, StateSpacePlan)
        names |= state_space_names("model.layers.*.mamba", plan)
    return names


FAMILY = Family(read_config, weight_names=weight_names)
