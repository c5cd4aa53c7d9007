"""LongCat Flash: layers of two attentions and two MLPs, whose experts are added at the end; some do not compute."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import with_experts
from jaxllm.models.families.family import Family, Names, expert_names
from jaxllm.models.families.latent import latent_names, read_latent_llama
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.plan import LayerPlan

_NAMES = {
    "intermediate_size": "ffn_hidden_size",
    "num_experts_per_tok": "moe_topk",
    "moe_intermediate_size": "expert_ffn_hidden_size",
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """LongCat Flash's configuration. Each of its layers is two: the first leaves what experts give to the second."""
    count, hidden = file.integer("num_layers", 28), file.integer("hidden_size")
    # Counts both halves of a layer, in some versions of transformers, and what predicts further tokens is not used.
    file.ignore("num_hidden_layers", "mtp_*", "num_nextn_predict_layers")
    file.expect(attention_method="MLA", zero_expert_type="identity", router_bias=False)
    file.expect(mla_scale_q_lora=True, mla_scale_kv_lora=True, router_dtype="float32")
    file.expect(head_dim=file.integer("qk_rope_head_dim", 64))
    file = file.but(num_hidden_layers=2 * count, head_dim=None)
    sizes = {"num_experts_per_tok": 12, "n_routed_experts": 512, "moe_intermediate_size": 2048, "rope_theta": 1e7}
    sizes |= {"intermediate_size": 12288, "max_position_embeddings": 131_072, "q_lora_rank": 1536, "kv_lora_rank": 512}
    file = file.reading(_NAMES, **sizes, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    options, rank = read_latent_llama(file, interleaved=True), file.integer("q_lora_rank")
    first = options["layers"][0]
    plan = first.attention
    assert plan.scale is not None
    growth, latent_scale = (hidden / rank) ** 0.5, (hidden / plan.rank) ** 0.5
    layer = first.attending(scale=plan.scale * growth, latent_scale=latent_scale)
    layers = (_with_late_experts(file, layer), replace(layer, adds_late=True)) * count
    return ModelConfig(architecture=architecture, **(options | {"layers": layers}))


def _with_late_experts(file: ConfigFile, layer: LayerPlan) -> LayerPlan:
    """The first half of a layer: its MLP, and experts that get the same, for the second half to add."""
    identities, per_token = file.integer("zero_expert_num", 256, minimum=0), file.integer("num_experts_per_tok")
    count = file.integer("n_routed_experts")
    if per_token > count + identities:
        raise file.wrong("num_experts_per_tok", f"at most {count + identities}, how many experts there are")
    (late,) = with_experts(
        file,
        [layer],
        count=count,
        per_token=min(per_token, count),
        size=file.integer("moe_intermediate_size"),
        router=RouterPlan(correction=True, scale=file.number("routed_scaling_factor", 6.0)),
        identities=identities,
    )
    assert isinstance(late.mlp, ExpertsPlan)
    assert isinstance(layer.mlp, MLPPlan)
    experts = replace(late.mlp, per_token=per_token)
    return replace(late, mlp=experts, residual_mlp=layer.mlp, is_late=True)


def weight_names(config: ModelConfig) -> Names:
    """Names of both halves: what each layer of the checkpoint has two of bears the half's number."""
    dense = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    twice = {
        **latent_names(config),
        "layers.*.attention_norm": "model.layers.*.input_layernorm",
        "layers.*.mlp_norm": "model.layers.*.post_attention_layernorm",
        **{
            f"layers.*.{block}.{ours}": f"model.layers.*.mlps.{name}" for ours, name in dense.items() for block in _MLPS
        },
    }
    names = {module: _of_half(source_of(source), config.num_layers) for module, source in twice.items()}
    once: Names = {
        **expert_names("mlp"),
        "layers.*.mlp.router": Source(
            "model.layers.*.mlp.router",
            endings={"weight": ".classifier.weight", "correction": ".e_score_correction_bias"},
        ),
    }
    whole = tuple(layer // 2 for layer in range(config.num_layers))
    return names | {module: replace(source_of(source), layers=whole) for module, source in once.items()}


_MLPS = ("mlp", "residual_mlp")
"""Where the two halves have their MLPs."""

_PARTS = ("self_attn", "mlps", "input_layernorm", "post_attention_layernorm")


def _of_half(source: Source, count: int) -> Source:
    """The source of a module that each half of a layer has."""
    before, star, inside = source.name.partition("*.")
    part, dot, end = inside.partition(".")
    if not star or part not in _PARTS:
        return source
    numbers = tuple(f"{layer // 2}.{part}.{layer % 2}" for layer in range(count))
    return replace(source, name=f"{before}*{dot}{end}", layers=numbers)


def other_parts(config: ModelConfig) -> tuple[str, ...]:
    """What predicts further tokens; and matrices that transformers writes for experts that have none."""
    plan = config.layers[0].mlp
    assert isinstance(plan, ExpertsPlan)
    spare = range(plan.count, plan.count + plan.identities)
    layers = range(config.num_layers // 2)
    return ("model.mtp.", *(f"model.layers.{layer}.mlp.experts.{expert}." for layer in layers for expert in spare))


FAMILY = Family(read_config, weight_names=weight_names, other_parts=other_parts)
