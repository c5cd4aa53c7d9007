"""Kimi Linear and BailingHybrid: delta attention with decays by element in most layers, latent attention in others."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import OfOneElement, Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import FULL
from jaxllm.models.families.deepseek import dense_layers, with_latent_experts
from jaxllm.models.families.expert_groups import sigmoid_router
from jaxllm.models.families.family import Family, Names, expert_names, further_layers
from jaxllm.models.families.latent import latent_names
from jaxllm.models.families.qwen3_next import LINEAR
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import ChannelDeltaPlan

_NAMES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Kimi Linear's configuration. Layers that predict further tokens are not used."""
    # Nothing is rotated, and heads are as large as their parts.
    file.ignore("rope_theta", "head_dim")
    file = file.but(rope_theta=10000.0, head_dim=None)
    file = file.reading(_NAMES, max_position_embeddings=1_048_576, rms_norm_eps=1e-5, n_group=1, topk_group=1)
    file = file.reading(n_routed_experts=256, num_experts_per_tok=8, bos_token_id=163_584, eos_token_id=163_586)
    file.expect(moe_router_activation_func="sigmoid", use_grouped_topk=True, mla_use_nope=True, rope_scaling=None)
    config = with_latent_experts(
        file,
        architecture,
        sigmoid_router(file, groups=None, scale=2.446),
        dense_layers(file, 1),
        interleaved=False,
    )
    kinds, plan = _kinds(file, config.num_layers), read_delta(file)

    def layer(plain: LayerPlan, kind: str) -> LayerPlan:
        plain = plain.attending(rope=None)
        return plain if kind == FULL else replace(plain, recurrence=plan)

    return replace(config, layers=tuple(layer(plain, kind) for plain, kind in zip(config.layers, kinds, strict=True)))


def read_bailing(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of BailingHybrid (Ling 3.0): bounded decays, no low ranks, positions, and gates of heads."""
    delta = ChannelDeltaPlan(
        heads=file.integer("num_attention_heads", 32),
        # transformers writes that of latent attention as the size of heads.
        head_size=file.integer("linear_head_dim", file.integer("head_dim", 128)),
        width=file.integer("short_conv_kernel_size", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        norm=NormPlan(eps=file.number("rms_norm_eps", 1e-6)),
        lowest_decay=file.number("kda_lower_bound", -5.0) if file.boolean("kda_safe_gate", True) else None,
    )
    # What transformers makes of others, and what is for training.
    file.ignore("linear_*", "kda_lower_bound", "mtp_loss_scaling_factor")
    every = file.integer("layer_group_size", 6)
    file = file.but(head_dim=None)
    sizes = {"max_position_embeddings": 262_144, "n_routed_experts": 512, "num_experts_per_tok": 8}
    file = file.reading(_NAMES, **sizes, n_group=8, topk_group=4, rope_theta=6e6, eos_token_id=156_895)
    dense = dense_layers(file, 2)
    config = with_latent_experts(
        file, architecture, sigmoid_router(file, groups=None, scale=2.5), dense, interleaved=True
    )
    default = [LINEAR if (layer + 1) % every else FULL for layer in range(config.num_layers)]
    kinds = _kinds(file if file.has("layer_types") else file.but(layer_types=default), config.num_layers)
    layers = (layer.attending(output_gate="heads") for layer in config.layers)
    mixed = (
        each if kind == FULL else replace(each, recurrence=delta) for each, kind in zip(layers, kinds, strict=True)
    )
    return replace(config, layers=tuple(mixed))


def read_delta(file: ConfigFile) -> ChannelDeltaPlan:
    """The recurrence, from a section of published files or from options that transformers makes of it."""
    own = file.section("linear_attn_config") or ConfigFile({}, file.source)
    size = own.integer("head_dim", file.integer("linear_head_dim", 128))
    return ChannelDeltaPlan(
        heads=own.integer("num_heads", file.integer("linear_num_heads", 32)),
        head_size=size,
        rank=size,
        width=own.integer("short_conv_kernel_size", file.integer("linear_conv_kernel_dim", 4, minimum=2), minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        norm=NormPlan(eps=file.number("rms_norm_eps", 1e-5)),
    )


def _kinds(file: ConfigFile, count: int) -> list[str]:
    """For each layer, `FULL` or `LINEAR`; published files of Kimi have numbers of layers, from 1 on."""
    own = file.section("linear_attn_config")
    if file.has("layer_types"):
        kinds = file.texts("layer_types")
    elif own is not None and own.has("full_attn_layers"):
        full, linear = own.integers("full_attn_layers"), own.integers("kda_layers")
        if sorted(full + linear) != list(range(1, count + 1)):
            raise own.wrong("kda_layers", f"with 'full_attn_layers' each number up to {count} once")
        kinds = [FULL if layer + 1 in full else LINEAR for layer in range(count)]
    else:
        kinds = [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(count)]
    if len(kinds) != count:
        raise ModelError(f"{file.source}: 'layer_types' has {len(kinds)} entries for {count} layers")
    unknown = sorted(set(kinds) - {FULL, LINEAR})
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layer_types'")
    return kinds


BLOCK, MIXER, EXPERTS = "layers.*.recurrence", "model.layers.*.self_attn", "model.layers.*.block_sparse_moe"


def delta_names() -> dict[str, str | Source]:
    """Names of the recurrence."""
    a_log = Source(MIXER, OfOneElement(1, before=2), endings={"a_log": ".A_log"})
    own = {
        "query": "q_proj",
        "key": "k_proj",
        "value": "v_proj",
        "rate": "b_proj",
        "decay_down": "f_a_proj",
        "decay_up": "f_b_proj",
        "gate_down": "g_a_proj",
        "gate_up": "g_b_proj",
        "query_taps": "q_conv1d",
        "key_taps": "k_conv1d",
        "value_taps": "v_conv1d",
        "norm": "o_norm",
        "output": "o_proj",
    }
    return {
        **{f"{BLOCK}.{ours}": f"{MIXER}.{theirs}" for ours, theirs in own.items()},
        f"{BLOCK}.decays": a_log,
        f"{BLOCK}.steps": Source(MIXER, endings={"dt_bias": ".dt_bias"}),
    }


def weight_names(config: ModelConfig) -> Names:
    """Weight names. Latent attention and what is in its place elsewhere have some in common."""
    return {
        **latent_names(config),
        **delta_names(),
        **expert_names("block_sparse_moe", "w1", "w3", "w2"),
        "layers.*.mlp.router": Source(f"{EXPERTS}.gate", endings={"correction": ".e_score_correction_bias"}),
        "layers.*.mlp.shared.gate": f"{EXPERTS}.shared_experts.gate_proj",
        "layers.*.mlp.shared.up": f"{EXPERTS}.shared_experts.up_proj",
        "layers.*.mlp.shared.down": f"{EXPERTS}.shared_experts.down_proj",
    }


def bailing_names(config: ModelConfig) -> Names:
    """Weight names of BailingHybrid."""
    mixer, experts = "model.layers.*.attention", "model.layers.*.mlp"
    latent = {
        module: replace(source_of(name), name=source_of(name).name.replace(".self_attn.", ".attention."))
        for module, name in latent_names(config).items()
    }
    own = {
        "query": "q_proj",
        "key": "k_proj",
        "value": "v_proj",
        "rate": "b_proj",
        "decay_up": "f_proj",
        "gate_up": "g_proj",
        "query_taps": "q_conv1d",
        "key_taps": "k_conv1d",
        "value_taps": "v_conv1d",
        "norm": "o_norm",
        "output": "dense",
    }
    return {
        **latent,
        **expert_names("mlp"),
        "embedding": "model.word_embeddings",
        "layers.*.attention.gate": f"{mixer}.g_proj",
        "layers.*.attention.output": f"{mixer}.dense",
        "layers.*.mlp.router": Source(f"{experts}.gate", endings={"correction": ".expert_bias"}),
        "layers.*.mlp.shared.gate": f"{experts}.shared_experts.gate_proj",
        "layers.*.mlp.shared.up": f"{experts}.shared_experts.up_proj",
        "layers.*.mlp.shared.down": f"{experts}.shared_experts.down_proj",
        **{f"{BLOCK}.{ours}": f"{mixer}.{theirs}" for ours, theirs in own.items()},
        f"{BLOCK}.decays": Source(mixer, endings={"a_log": ".A_log"}),
        f"{BLOCK}.steps": Source(mixer, endings={"dt_bias": ".dt_bias"}),
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    other_parts=further_layers,
    synonyms={"forget_gate": "", "mlp.shared_experts": "block_sparse_moe.shared_experts"},
)
BAILING = Family(
    read_bailing,
    weight_names=bailing_names,
    other_parts=further_layers,
    synonyms={
        "self_attn.o_proj": "attention.dense",
        "self_attn.forget_gate": "attention",
        "self_attn": "attention",
    },
)
