"""DBRX: norms by mean and variance, clipped heads, and all experts of a layer in three tensors."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import OfExpert, Source, Transposed, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_experts, with_norms
from jaxllm.models.families.family import Family, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan

_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """DBRX's configuration, which has sections for attention and experts."""
    attention = file.section("attn_config") or ConfigFile({}, file.source)
    experts = file.section("ffn_config") or ConfigFile({}, file.source)
    activation = read_activation(experts.section("ffn_act_fn") or ConfigFile({}, file.source), "name", "silu")
    size, kv_heads = experts.integer("ffn_hidden_size", 3584), attention.integer("kv_n_heads", 1)
    if file.integer("num_key_value_heads", kv_heads) != kv_heads:
        raise attention.wrong("kv_n_heads", "the same as 'num_key_value_heads'")
    file = file.reading(
        _NAMES,
        num_key_value_heads=kv_heads,
        intermediate_size=size,
        hidden_act=activation,
        rope_theta=attention.number("rope_theta", 10000.0),
    )
    file.ignore("*_pdrop")
    for section in (attention, experts):
        section.ignore("*_pdrop", "moe_loss_weight", "*jitter*", "hidden_size")
    if experts.has("moe_normalize_expert_weights") and experts.number("moe_normalize_expert_weights") != 1.0:
        raise experts.wrong("moe_normalize_expert_weights", "1 or null")
    options = read_llama(file)
    norm = NormPlan(kind="layer", eps=1e-5)
    clip = attention.optional_number("clip_qkv")
    layers = with_norms(options["layers"], attention_norm=norm, mlp_norm=norm)
    options["norm"] = norm
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(clip=clip) for layer in layers),
        count=experts.integer("moe_num_experts", 4),
        per_token=experts.integer("moe_top_k", 1),
        size=size,
        router=RouterPlan(normalised=experts.has("moe_normalize_expert_weights")),
    )
    return ModelConfig(architecture=architecture, **options)


def weight_names(config: ModelConfig) -> Names:
    """Experts lie one below the other, the last of their products transposed."""
    plan = config.layers[0].mlp
    assert isinstance(plan, ExpertsPlan)
    block, inside = "transformer.blocks.*.norm_attn_norm", "transformer.blocks.*.ffn"
    queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    heads = fused(f"{block}.attn.Wqkv", {"query": queries, "key": keys, "value": keys})

    def expert(name: str, take: OfExpert) -> Source:
        return Source(f"{inside}.experts.mlp.{name}", take, {"weight": ""})

    return {
        "embedding": "transformer.wte",
        "norm": "transformer.norm_f",
        "head": "lm_head",
        "layers.*.attention_norm": f"{block}.norm_1",
        **{f"layers.*.attention.{name}": source for name, source in heads.items()},
        "layers.*.attention.output": f"{block}.attn.out_proj",
        "layers.*.mlp_norm": f"{block}.norm_2",
        "layers.*.mlp.router": f"{inside}.router.layer",
        "layers.*.mlp.expert_gate": expert("w1", OfExpert(plan.count, in_rows=True)),
        "layers.*.mlp.expert_up": expert("v1", OfExpert(plan.count, in_rows=True)),
        "layers.*.mlp.expert_down": expert("w2", OfExpert(plan.count, Transposed(), in_rows=True)),
    }


FAMILY = Family(read_config, weight_names=weight_names)
