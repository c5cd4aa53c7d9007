"""DeepSeek V2 and V3, Kimi-K2, GLM-4.7-Flash, A.X-K1, Mistral Small 4: latent attention, and experts in groups
alongside one that all tokens have.

A layer after the last that predicts a further token (`num_nextn_predict_layers`) serves speculative decoding.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import QueryScale
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import mlp_types, read_llama, with_biases, with_experts
from jaxllm.models.families.expert_groups import check_expert_groups, sigmoid_router
from jaxllm.models.families.family import FURTHER_LAYER, Family, Names, expert_names, further_layers, read_mtp_layers
from jaxllm.models.families.latent import latent_names, read_latent_llama
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan


def read_v2(file: ConfigFile, architecture: str) -> ModelConfig:
    """DeepSeek V2's configuration, and V2-Lite's."""
    file = file.reading(max_position_embeddings=2048, q_lora_rank=1536, n_shared_experts=2, bos_token_id=1)
    router, dense = _v2_router(file), range(file.integer("first_k_dense_replace", 0, minimum=0))
    return with_latent_experts(file, architecture, router, dense, interleaved=True)


def read_plain_v2(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of V2's experts with Llama's attention, which V2's says by `use_mla`."""
    file = file.reading(max_position_embeddings=2048, n_shared_experts=2, bos_token_id=1)
    file.expect(use_mla=False)
    bias = file.boolean("attention_bias", False)
    options = read_llama(file)
    options["layers"] = with_biases(options["layers"], qkv=bias, output=bias)
    return _with_experts(file, architecture, options, _v2_router(file), dense_layers(file, 1))


def _v2_router(file: ConfigFile) -> RouterPlan:
    _expect(file, scoring_func="softmax", norm_topk_prob=False, mlp_bias=False)
    method = file.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise file.wrong("topk_method", "'greedy' or 'group_limited_greedy'")
    scale = file.number("routed_scaling_factor", 1.0)
    if method == "greedy":
        file.ignore("n_group", "topk_group")
        return RouterPlan(scale=scale)
    return RouterPlan(scale=scale, groups=file.integer("n_group"), top_groups=file.integer("topk_group"))


def read_v3(file: ConfigFile, architecture: str) -> ModelConfig:
    """DeepSeek V3's and R1's configuration, and that of models which are alike: Moonlight, Kimi-K2."""
    file = file.reading(max_position_embeddings=4096, q_lora_rank=1536, n_group=8, topk_group=4, bos_token_id=0)
    _expect(file, scoring_func="sigmoid", topk_method="noaux_tc")
    dense = range(file.integer("first_k_dense_replace", 3, minimum=0))
    interleaved = file.boolean("rope_interleave", True)
    return with_latent_experts(
        file, architecture, sigmoid_router(file, groups=None, scale=2.5), dense, interleaved=interleaved
    )


def read_glm4_lite(file: ConfigFile, architecture: str) -> ModelConfig:
    """GLM-4.7-Flash's configuration."""
    file = file.reading(max_position_embeddings=202752, q_lora_rank=768, rms_norm_eps=1e-5, n_group=1, topk_group=1)
    _expect(file, scoring_func="sigmoid", topk_method="noaux_tc")
    interleaved = file.boolean("rope_interleave", True)
    router, dense = sigmoid_router(file, groups=None, scale=1.8), dense_layers(file, 1)
    return with_latent_experts(file, architecture, router, dense, interleaved=interleaved)


def read_axk1(file: ConfigFile, architecture: str) -> ModelConfig:
    """A.X-K1's configuration (SK Telecom): V3's layers, with a norm after experts alone."""
    sizes = {"max_position_embeddings": 32768, "q_lora_rank": 1536, "n_group": 8, "topk_group": 4}
    file = file.reading(**sizes, bos_token_id=163_691, eos_token_id=163_691)
    _expect(file, scoring_func="sigmoid", topk_method="noaux_tc")
    router, dense = sigmoid_router(file, groups=None, scale=2.5), dense_layers(file, 1)
    interleaved = file.boolean("rope_interleave", True)
    config = with_latent_experts(file, architecture, router, dense, interleaved=interleaved)
    behind = (None if layer in dense else config.norm for layer in range(config.num_layers))
    layers = (replace(layer, mlp_output_norm=norm) for layer, norm in zip(config.layers, behind, strict=True))
    return replace(config, layers=tuple(layers))


def read_mistral4(file: ConfigFile, architecture: str) -> ModelConfig:
    """Mistral Small 4's configuration: V3's layers with softmax scores, and queries that grow with positions."""
    sizes = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128}
    file = file.reading(**sizes, q_lora_rank=1024, max_position_embeddings=1_048_576, n_group=1, topk_group=1)
    file = file.reading(bos_token_id=1, eos_token_id=2, n_routed_experts=128, num_experts_per_tok=4)
    file = file.reading(moe_intermediate_size=2048, rope_parameters=_MISTRAL4_ROPE)
    # It is what the sizes say, too, and here the head is what is rotated.
    part = file.integer("qk_rope_head_dim") / (file.integer("qk_rope_head_dim") + file.integer("qk_nope_head_dim"))
    whole = file.section("rope_parameters")
    assert whole is not None
    whole.expect(partial_rotary_factor=part)
    file = file.but(rope_parameters={key: whole.values[key] for key in whole.values if key != "partial_rotary_factor"})
    router = RouterPlan(
        groups=file.integer("n_group"),
        top_groups=file.integer("topk_group"),
        group_score="best_two",
        normalised=file.boolean("norm_topk_prob", True),
        epsilon=1e-20,
        scale=file.number("routed_scaling_factor", 1.0),
    )
    dense = range(file.integer("first_k_dense_replace", 0, minimum=0))
    interleaved = file.boolean("rope_interleave", True)
    config = with_latent_experts(file, architecture, router, dense, interleaved=interleaved)
    rope = file.section("rope_parameters")
    beta = rope.optional_number("llama_4_scaling_beta") if rope else None
    if rope is None or not beta:
        return config
    scale = QueryScale(beta=beta, length=rope.integer("original_max_position_embeddings"))
    return replace(config, layers=tuple(layer.attending(query_scale=scale) for layer in config.layers))


_MISTRAL4_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def dense_layers(file: ConfigFile, default: int) -> Collection[int]:
    """The layers without experts: those of `mlp_layer_types`, or the first ones, `default` by default."""
    first = file.integer("first_k_dense_replace", default, minimum=0)
    types = mlp_types(file, file.integer("num_hidden_layers"), dense=first)
    return [layer for layer, kind in enumerate(types) if kind == "dense"]


def with_latent_experts(
    file: ConfigFile, architecture: str, router: RouterPlan, dense: Collection[int], *, interleaved: bool
) -> ModelConfig:
    """The configuration of a model whose layers have experts, but for those that are `dense`."""
    return _with_experts(file, architecture, read_latent_llama(file, interleaved=interleaved), router, dense)


def _with_experts(
    file: ConfigFile, architecture: str, options: dict[str, Any], router: RouterPlan, dense: Collection[int]
) -> ModelConfig:
    """The same with these arguments of `ModelConfig`, whose layers have no experts yet."""
    _expect(file, moe_layer_freq=1)
    file.ignore("ep_size", "aux_loss_alpha", "seq_aux")
    layers, size = options["layers"], file.integer("moe_intermediate_size")
    count, shared = file.integer("n_routed_experts"), file.optional_integer("n_shared_experts", 1)
    check_expert_groups(file, router, count)
    options["layers"] = with_experts(
        file,
        layers,
        only=[layer for layer in range(len(layers)) if layer not in dense],
        count=count,
        per_token=file.integer("num_experts_per_tok"),
        size=size,
        router=router,
        shared=MLPPlan(activation=layers[0].mlp.activation, size=size * shared) if shared else None,
    )
    return ModelConfig(architecture=architecture, mtp_layers=read_mtp_layers(file), **options)


def _expect(file: ConfigFile, **expected: str | bool | int) -> None:
    """Raise `ModelError` for an option with another value than the one that is implemented."""
    for key, value in expected.items():
        if file.has(key) and file.values[key] != value:
            raise file.wrong(key, repr(value))


def weight_names(config: ModelConfig) -> Names:
    """Weight names, including those of layers with experts."""
    return {**latent_names(config), **SHARING_EXPERTS}


SHARING_EXPERTS: Names = {
    **expert_names("mlp"),
    "layers.*.mlp.router": Source("model.layers.*.mlp.gate", endings={"correction": ".e_score_correction_bias"}),
    "layers.*.mlp.shared.gate": "model.layers.*.mlp.shared_experts.gate_proj",
    "layers.*.mlp.shared.up": "model.layers.*.mlp.shared_experts.up_proj",
    "layers.*.mlp.shared.down": "model.layers.*.mlp.shared_experts.down_proj",
}
"""Names of experts alongside one that all tokens have."""


def axk1_names(config: ModelConfig) -> Names:
    """And the norm after experts."""
    return {**weight_names(config), "layers.*.mlp_output_norm": "model.layers.*.post_mlp_layernorm"}


V2 = Family(read_v2, weight_names=weight_names)
V3 = Family(read_v3, weight_names=weight_names, other_parts=further_layers, mtp=FURTHER_LAYER)
GLM4_LITE = Family(read_glm4_lite, weight_names=weight_names, other_parts=further_layers, mtp=FURTHER_LAYER)
# Released checkpoints have the norm after dense layers, too, where it is not used.
AXK1 = Family(
    read_axk1, weight_names=axk1_names, ignored_tensors=(".rotary_emb.inv_freq", ".post_mlp_layernorm.weight")
)
MISTRAL4 = Family(read_mistral4, weight_names=weight_names)
KIMI_K2 = replace(V3, like="DeepseekV3")
