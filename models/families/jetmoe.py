"""JetMoe: experts in place of the heads of attention, and of MLPs."""

from dataclasses import replace

from jaxllm.models.attention_plan import AttentionPlan, HeadExpertsPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """JetMoe's configuration. Query heads are as many as KV heads for each of a token's experts."""
    file.ignore("aux_loss_coef", "num_layers")
    names = {"hidden_act": "activation_function", "head_dim": "kv_channels"}
    defaults = {"num_key_value_heads": 16, "kv_channels": 128, "max_position_embeddings": 4096}
    file = file.reading(names, **defaults, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    file = file.but(head_dim=file.integer("kv_channels"))
    count, per_token = file.integer("num_local_experts", 8), file.integer("num_experts_per_tok", 2)
    # What transformers makes of both.
    file.ignore("num_attention_heads")
    file = file.but(num_attention_heads=per_token * file.integer("num_key_value_heads"))
    options = read_llama(file)
    layers = with_experts(
        file,
        options["layers"],
        count=count,
        per_token=per_token,
        size=options["intermediate_size"],
        router=RouterPlan(kind="chosen_softmax"),
        output_bias=True,
    )
    # Whatever the file says of the last norm.
    norm = NormPlan(eps=1e-6)
    layers = tuple(
        replace(layer, attention_norm=norm, mlp_norm=norm).attending(
            experts=HeadExpertsPlan(count=count, per_token=per_token)
        )
        for layer in layers
    )
    return ModelConfig(architecture=architecture, **(options | {"layers": layers}))


def weight_names(config: ModelConfig) -> Names:
    """Keys and values are one tensor, and so are the matrices of all experts."""
    layer = config.layers[0]
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(attention, AttentionPlan)
    assert isinstance(mlp, ExpertsPlan)
    block, experts, halves = "model.layers.*.mlp", "model.layers.*.self_attention.experts", (mlp.size, mlp.size)
    wide, each = config.num_kv_heads * config.head_size, OfExpert(mlp.count)
    both = fused("model.layers.*.self_attention.kv_proj", {"key": wide, "value": wide})
    return {
        **LLAMA_NAMES,
        **{f"layers.*.attention.{name}": source for name, source in both.items()},
        "layers.*.attention.experts": experts,
        "layers.*.attention.experts.router": f"{experts}.router.layer",
        "layers.*.attention.experts.expert_query": Source(f"{experts}.input_linear", each),
        "layers.*.attention.experts.expert_output": Source(f"{experts}.output_linear", each),
        "layers.*.mlp": Source(block, endings={"output_bias": ".bias"}),
        "layers.*.mlp.router": f"{block}.router.layer",
        "layers.*.mlp.expert_gate": Source(f"{block}.input_linear", OfExpert(mlp.count, Fused(halves, 0))),
        "layers.*.mlp.expert_up": Source(f"{block}.input_linear", OfExpert(mlp.count, Fused(halves, 1))),
        "layers.*.mlp.expert_down": Source(f"{block}.output_linear", each),
    }


FAMILY = Family(read_config, weight_names=weight_names)
