"""Aria's language model: experts in every layer, alongside what all tokens have; attention as Llama's."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source, Transposed
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import llama
from jaxllm.models.families.common import with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model. What counts in training alone is not used."""
    file.ignore("moe_z_loss_coeff", "moe_aux_loss_coeff", "pretraining_tp")
    config = llama.read_config(file, architecture)
    own, size = config.layers[0].mlp, config.intermediate_size
    shared = MLPPlan(activation=own.activation, bias=own.bias, size=size * file.integer("moe_num_shared_experts", 2))
    # Biases are those of what all tokens have; experts have another activation where that is not silu.
    plain = tuple(replace(layer, mlp=MLPPlan()) for layer in config.layers)
    layers = with_experts(
        file,
        plain,
        count=file.integer("moe_num_experts", 8),
        per_token=file.integer("moe_topk", 2),
        size=size,
        router=RouterPlan(kind="chosen_softmax"),
        shared=shared,
    )
    return replace(config, layers=layers)


def weight_names(config: ModelConfig) -> Names:
    """Experts are one tensor, transposed, with the columns of gates before those of what they gate."""
    plan = config.layers[0].mlp
    assert isinstance(plan, ExpertsPlan)
    block = "model.layers.*.mlp"

    def wide(index: int) -> Source:
        parts = Transposed(Fused((plan.size, plan.size), index))
        return Source(f"{block}.experts.fc1", OfExpert(plan.count, parts))

    return {
        **LLAMA_NAMES,
        "layers.*.mlp.router": f"{block}.router",
        "layers.*.mlp.expert_gate": wide(0),
        "layers.*.mlp.expert_up": wide(1),
        "layers.*.mlp.expert_down": Source(f"{block}.experts.fc2", OfExpert(plan.count, Transposed())),
        **{f"layers.*.mlp.shared.{part}": f"{block}.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    }


FAMILY = Family(read_config, weight_names=weight_names)
