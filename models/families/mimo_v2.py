"""MiMo-V2-Flash: values narrower than keys, sinks and more KV heads in layers with a window, experts after the first
layer.
"""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    SLIDING,
    layer_types,
    mlp_types,
    read_llama,
    read_ropes,
    with_biases,
    with_experts,
    with_types,
)
from jaxllm.models.families.expert_groups import check_expert_groups, sigmoid_router
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names

_PART = 0.334
_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 5_000_000.0, "partial_rotary_factor": _PART},
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": _PART},
}
_DEFAULTS = {"num_key_value_heads": 4, "head_dim": 192, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """MiMo-V2-Flash's configuration. Layers that predict further tokens are not used."""
    file = file.reading(**_DEFAULTS, bos_token_id=1, rope_parameters=_ROPES, partial_rotary_factor=_PART)
    ropes = read_ropes(file)
    options, bias = read_llama(file, rope=ropes[FULL]), file.boolean("attention_bias", False)
    count, window = len(options["layers"]), file.integer("sliding_window", 129)
    if file.has("sliding_window_size"):
        # Without the token itself.
        window = file.integer("sliding_window_size") + 1
    types = layer_types(file, count, [SLIDING if layer and (layer + 1) % 6 else FULL for layer in range(count)])
    key = "attention_value_scale"
    scale = file.optional_number(key) if key in file.values else 0.707
    heads = 2 * options["num_kv_heads"]
    if options["num_heads"] % heads and SLIDING in types:
        raise file.wrong("num_attention_heads", f"a multiple of twice 'num_key_value_heads', {heads}")
    sliding = {"rope": ropes[SLIDING], "window": window, "sinks": True, "num_kv_heads": heads}
    size = file.integer("v_head_dim", 128)
    if size > options["head_size"]:
        raise file.wrong("v_head_dim", f"at most 'head_dim' = {options['head_size']}")
    values = {"value_size": size, "value_scale": 1.0 if scale is None else scale}
    layers = with_types(with_biases(options["layers"], qkv=bias, output=False), types, full={}, sliding=sliding)
    kinds, router = mlp_types(file, count, dense=1), sigmoid_router(file)
    experts = file.integer("n_routed_experts", 256)
    check_expert_groups(file, router, experts)
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(**values) for layer in layers),
        only=[layer for layer, kind in enumerate(kinds) if kind == "sparse"],
        count=experts,
        per_token=file.integer("num_experts_per_tok", 8),
        size=file.integer("moe_intermediate_size", 2048),
        router=router,
    )
    return ModelConfig(architecture=architecture, **options)


NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    "layers.*.attention": Source("model.layers.*.self_attn", endings={"sinks": ".attention_sink_bias"}),
    "layers.*.mlp.router": Source("model.layers.*.mlp.gate", endings={"correction": ".e_score_correction_bias"}),
}

FAMILY = Family(read_config, weight_names=NAMES, other_parts=("model.mtp.",))
