"""Bamba: state spaces in most layers, attention in some, and an MLP in all."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.mamba2 import read_hybrid, state_space_names
from jaxllm.models.recurrent_plan import StateSpacePlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Bamba's configuration."""
    file.ignore("z_loss_coefficient", "num_logits_to_keep", "use_mamba_kernels")
    file = file.reading(partial_rotary_factor=0.5, rms_norm_eps=1e-5, num_key_value_heads=8)
    options = read_llama(file)
    size = options["head_size"] * file.number("partial_rotary_factor")
    file.expect(attn_rotary_emb=int(size))
    bias, attending = file.boolean("attention_bias", False), file.integers("attn_layer_indices")
    plan = read_hybrid(file)
    layers = with_biases(options["layers"], qkv=bias, output=bias, mlp=file.boolean("mlp_bias", False))
    options["layers"] = tuple(
        layer if number in attending else replace(layer, recurrence=plan) for number, layer in enumerate(layers)
    )
    return ModelConfig(architecture=architecture, **options)


def weight_names(config: ModelConfig) -> Names:
    """Blocks have names of their own."""
    feed_forward = {name: f"model.layers.*.feed_forward.{name}_proj" for name in ("gate", "up", "down")}
    names = {
        **LLAMA_NAMES,
        "norm": "model.final_layernorm",
        "layers.*.mlp_norm": "model.layers.*.pre_ff_layernorm",
        **{f"layers.*.mlp.{name}": tensor for name, tensor in feed_forward.items()},
    }
    plans = [plan for plan in config.recurrences if isinstance(plan, StateSpacePlan)]
    return {**names, **(state_space_names("model.layers.*.mamba", plans[0]) if plans else {})}


FAMILY = Family(read_config, weight_names=weight_names)
