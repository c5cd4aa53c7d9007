"""Granite 3 with experts, which are one tensor; the same with an MLP for all tokens; and with windows and sinks."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source, fused, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.granite import read_granite, with_sinks_and_windows
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Granite's configuration, and that of its experts."""
    config = read_granite(file, architecture)
    size = file.integer("shared_intermediate_size", 0, minimum=0)
    layers = with_experts(
        file,
        config.layers,
        count=file.integer("num_local_experts", 8),
        per_token=file.integer("num_experts_per_tok", 2),
        size=config.intermediate_size,
        router=RouterPlan(kind="chosen_softmax"),
        shared=MLPPlan(activation=config.layers[0].mlp.activation, size=size) if size else None,
    )
    return replace(config, layers=layers)


def read_swa(file: ConfigFile, architecture: str) -> ModelConfig:
    """The same with windows on most layers, sinks, and a base of the rotary embedding for each layer."""
    config = read_config(file, architecture)
    return replace(config, layers=with_sinks_and_windows(file, config.layers))


def weight_names(config: ModelConfig) -> Names:
    """Gates and what they gate are one tensor, too."""
    plan = config.layers[0].mlp
    assert isinstance(plan, ExpertsPlan)
    block, count, halves = "model.layers.*.block_sparse_moe", plan.count, (plan.size, plan.size)
    names: dict[str, str | Source] = {
        **LLAMA_NAMES,
        "layers.*.mlp.router": f"{block}.router.layer",
        "layers.*.mlp.expert_gate": Source(f"{block}.input_linear", OfExpert(count, Fused(halves, 0))),
        "layers.*.mlp.expert_up": Source(f"{block}.input_linear", OfExpert(count, Fused(halves, 1))),
        "layers.*.mlp.expert_down": Source(f"{block}.output_linear", OfExpert(count)),
    }
    if plan.shared is None or plan.shared.size is None:
        return names
    shared = fused("model.layers.*.shared_mlp.input_linear", {"gate": plan.shared.size, "up": plan.shared.size})
    names |= {f"layers.*.mlp.shared.{name}": source for name, source in shared.items()}
    return {**names, "layers.*.mlp.shared.down": "model.layers.*.shared_mlp.output_linear"}


def swa_names(config: ModelConfig) -> Names:
    """Names of layers with sinks, where tensors of experts are named as transformers has them in memory."""
    names, block, weight = dict(weight_names(config)), "model.layers.*.block_sparse_moe", {"weight": ""}
    tensors = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}
    for part, name in tensors.items():
        source = source_of(names[f"layers.*.mlp.expert_{part}"])
        names[f"layers.*.mlp.expert_{part}"] = replace(source, name=f"{block}.experts.{name}", endings=weight)
    return {**names, "layers.*.mlp.router": f"{block}.router", "layers.*.attention": "model.layers.*.self_attn"}


FAMILY = Family(read_config, weight_names=weight_names)
SWA = Family(read_swa, weight_names=swa_names)
