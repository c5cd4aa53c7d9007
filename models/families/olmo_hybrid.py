"""OLMo Hybrid: OLMo 3's attention in every fourth layer, and delta nets, whose rates reach 2, in the others."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import FULL
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.olmo import read_olmo2
from jaxllm.models.families.qwen3_next import LINEAR, read_delta
from jaxllm.models.norm_plan import NormPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """OLMo Hybrid's configuration. Released models do not see positions but through recurrent layers."""
    heads = file.integer("num_attention_heads", 30)
    keys = file.optional_integer("linear_num_key_heads") or heads
    size = file.optional_integer("linear_key_head_dim") or int(0.75 * file.integer("hidden_size") / keys)
    file = file.reading(
        max_position_embeddings=65536,
        rms_norm_eps=1e-6,
        eos_token_id=100_257,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=size,
        linear_value_head_dim=2 * size,
    )
    # Of use where weights are drawn.
    file.ignore("linear_a_log_*", "linear_dt_*")
    config = read_olmo2(file, architecture)
    norm, scale = config.norm, 2.0 if file.boolean("linear_allow_neg_eigval", True) else 1.0
    delta = replace(read_delta(file), norm=NormPlan(eps=1e-5), rate_scale=scale)
    rope = file.section("rope_parameters")
    sees_positions = file.has("rope_theta") or (rope is not None and rope.has("rope_theta"))
    full = config.layers[0] if sees_positions else config.layers[0].attending(rope=None)
    linear = replace(full, recurrence=delta, attention_norm=norm, mlp_norm=norm)
    linear = replace(linear, attention_output_norm=None, mlp_output_norm=None)
    kinds = _kinds(file, config.num_layers)
    return replace(config, layers=tuple(full if kind == FULL else linear for kind in kinds))


def _kinds(file: ConfigFile, count: int) -> list[str]:
    """For each layer, `FULL` or `LINEAR`; by default every fourth is full, and if there is none, the last."""
    if file.has("layer_types"):
        kinds = file.texts("layer_types")
    else:
        kinds = [LINEAR if layer % 4 != 3 else FULL for layer in range(count)]
        kinds = kinds if FULL in kinds else [*kinds[:-1], FULL]
    if len(kinds) != count:
        raise ModelError(f"{file.source}: 'layer_types' has {len(kinds)} entries for {count} layers")
    unknown = sorted(set(kinds) - {FULL, LINEAR})
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layer_types'")
    return kinds


MIXER, LAYER = "model.layers.*.linear_attn", "model.layers.*"
NAMES: Names = {
    **LLAMA_NAMES,
    # Layers with attention have norms after their blocks, the others before them, with names of their own.
    "layers.*.attention_norm": f"{LAYER}.attention_layer_norm",
    "layers.*.mlp_norm": f"{LAYER}.feedforward_layer_norm",
    "layers.*.attention_output_norm": f"{LAYER}.post_attention_layernorm",
    "layers.*.mlp_output_norm": f"{LAYER}.post_feedforward_layernorm",
    "layers.*.recurrence": Source(MIXER, endings={"a_log": ".A_log", "dt_bias": ".dt_bias"}),
    "layers.*.recurrence.query": f"{MIXER}.q_proj",
    "layers.*.recurrence.key": f"{MIXER}.k_proj",
    "layers.*.recurrence.value": f"{MIXER}.v_proj",
    "layers.*.recurrence.gate": f"{MIXER}.g_proj",
    "layers.*.recurrence.rate": f"{MIXER}.b_proj",
    "layers.*.recurrence.decay": f"{MIXER}.a_proj",
    "layers.*.recurrence.query_taps": f"{MIXER}.q_conv1d",
    "layers.*.recurrence.key_taps": f"{MIXER}.k_conv1d",
    "layers.*.recurrence.value_taps": f"{MIXER}.v_conv1d",
    "layers.*.recurrence.norm": f"{MIXER}.o_norm",
    "layers.*.recurrence.output": f"{MIXER}.o_proj",
}

FAMILY = Family(read_config, weight_names=NAMES)
