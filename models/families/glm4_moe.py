"""GLM-4.5 and 4.6, dots.llm1 and Solar Open: some dense layers, then experts in groups alongside those all tokens
have.
"""

from collections.abc import Sequence

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    layer_types,
    read_llama,
    with_biases,
    with_experts,
    with_types,
)
from jaxllm.models.families.expert_groups import check_expert_groups, sigmoid_router
from jaxllm.models.families.family import (
    FURTHER_LAYER,
    LLAMA_NAMES,
    Family,
    Names,
    expert_names,
    further_layers,
    read_mtp_layers,
)
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import LayerPlan


def read_config(file: ConfigFile, architecture: str, rope: RopeConfig | None = None) -> ModelConfig:
    """GLM-4-MoE's configuration. Its rotary embedding may be given."""
    file = file.reading(_NAMES, max_position_embeddings=131072, rms_norm_eps=1e-5, partial_rotary_factor=0.5)
    options, bias = read_llama(file, rope=rope), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=False)
    if file.boolean("use_qk_norm", False):
        layers = tuple(layer.attending(norm=layer.attention_norm) for layer in layers)
    options["layers"] = _with_experts(file, layers, dense=file.integer("first_k_dense_replace", 1, minimum=0))
    return ModelConfig(architecture=architecture, mtp_layers=read_mtp_layers(file), **options)


def read_dots1(file: ConfigFile, architecture: str) -> ModelConfig:
    """dots.llm1's: queries and keys are normalised, and upper layers may have windows."""
    file.expect(moe_layer_freq=1)
    # Published files name the method of the routing there, which is this one.
    if file.text("scoring_func", "sigmoid") not in ("sigmoid", "noaux_tc"):
        raise file.wrong("scoring_func", "'sigmoid' or 'noaux_tc'")
    file = file.reading(_NAMES, max_position_embeddings=2048, norm_topk_prob=False)
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    window, first = file.optional_integer("sliding_window", 4096), file.integer("max_window_layers", 62, minimum=0)
    types = [SLIDING if window and layer >= first else FULL for layer in range(len(layers))]
    layers = with_types(layers, layer_types(file, len(layers), types), full={}, sliding={"window": window or 0})
    layers = tuple(layer.attending(norm=layer.attention_norm) for layer in layers)
    options["layers"] = _with_experts(file, layers, dense=file.integer("first_k_dense_replace", 0, minimum=0))
    return ModelConfig(architecture=architecture, **options)


def read_solar_open(file: ConfigFile, architecture: str) -> ModelConfig:
    """Solar Open's: experts in every layer."""
    sizes = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
    file = file.reading(_NAMES, **sizes, moe_intermediate_size=1280, rope_theta=1e6, partial_rotary_factor=1.0)
    file = file.reading(intermediate_size=file.integer("moe_intermediate_size"))
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    options["layers"] = _with_experts(file, with_biases(options["layers"], qkv=bias, output=False), dense=0)
    return ModelConfig(architecture=architecture, **options)


_NAMES = {"n_routed_experts": "num_local_experts"}


def _with_experts(file: ConfigFile, layers: Sequence[LayerPlan], *, dense: int) -> tuple[LayerPlan, ...]:
    """The same layers, those after the first `dense` ones with experts."""
    size, shared = file.integer("moe_intermediate_size", 1408), file.integer("n_shared_experts", 1)
    count = file.integer("n_routed_experts", 128)
    router = sigmoid_router(file)
    per_token = file.integer("num_experts_per_tok", 8)
    check_expert_groups(file, router, count)
    return with_experts(
        file,
        layers,
        only=range(dense, len(layers)),
        count=count,
        per_token=per_token,
        size=size,
        router=router,
        shared=MLPPlan(activation=layers[0].mlp.activation, size=size * shared),
    )


NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    "layers.*.mlp.router": Source("model.layers.*.mlp.gate", endings={"correction": ".e_score_correction_bias"}),
    "layers.*.mlp.shared.gate": "model.layers.*.mlp.shared_experts.gate_proj",
    "layers.*.mlp.shared.up": "model.layers.*.mlp.shared_experts.up_proj",
    "layers.*.mlp.shared.down": "model.layers.*.mlp.shared_experts.down_proj",
}

FAMILY = Family(read_config, weight_names=NAMES, other_parts=further_layers, mtp=FURTHER_LAYER)
DOTS1 = Family(read_dots1, weight_names=NAMES)
SOLAR_OPEN = Family(read_solar_open, weight_names=NAMES)
