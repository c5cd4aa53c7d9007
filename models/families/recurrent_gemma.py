"""RecurrentGemma: Gemma with Griffin's recurrent blocks, and windows on the layers with attention."""

from dataclasses import replace

import jax.numpy as jnp

from jaxllm.models.channel_plan import RealGatedPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import InHeads, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, with_norms
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, OutputPlan

RECURRENT, ATTENTION = "recurrent", "attention"


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """RecurrentGemma's configuration."""
    file.ignore("w_init_variance_scale", "final_w_init_variance_scale", "embeddings_scale_by_sqrt_dim", "_block_types")
    # transformers computes it.
    file.ignore("head_dim")
    file = file.but(head_dim=None).reading(
        {"hidden_act": "hidden_activation", "sliding_window": "attention_window_size"},
        hidden_act="gelu_pytorch_tanh",
        sliding_window=2048,
        max_position_embeddings=8192,
        partial_rotary_factor=0.5,
        tie_word_embeddings=True,
        bos_token_id=2,
        eos_token_id=1,
    )
    wide = file.integer("intermediate_size")
    if wide % 2:
        raise file.wrong("intermediate_size", "an even number: gates are half of it")
    options = read_llama(file.but(intermediate_size=wide // 2))
    _check_rope(file)
    norm, hidden = NormPlan(eps=file.number("rms_norm_eps", 1e-6), offset=1.0), options["hidden_size"]
    bias = file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=True, mlp=True)
    layers = with_norms(layers, attention_norm=norm, mlp_norm=norm)
    full = layers[0].with_window(file.integer("sliding_window"))
    recurrent = replace(layers[0], recurrence=_plan(file, hidden, options["num_heads"]))
    kinds = _kinds(file, len(layers))
    # The scale is rounded, whatever the model's type.
    scale = float(jnp.bfloat16(hidden**0.5))
    return ModelConfig(
        architecture=architecture,
        **options
        | {
            "layers": tuple(recurrent if kind == RECURRENT else full for kind in kinds),
            "norm": norm,
            "embedding": EmbeddingPlan(scale=scale),
            "output": OutputPlan(soft_cap=file.positive("logits_soft_cap", 30.0)),
        },
    )


def _plan(file: ConfigFile, hidden: int, heads: int) -> RealGatedPlan:
    channels = file.optional_integer("lru_width") or hidden
    if channels % heads:
        raise file.wrong("lru_width", f"a multiple of 'num_attention_heads', {heads}")
    return RealGatedPlan(
        channels=channels,
        blocks=heads,
        width=file.integer("conv1d_width", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "gelu_pytorch_tanh"),
    )


def _kinds(file: ConfigFile, count: int) -> list[str]:
    """The kind of each layer: those of `block_types`, again and again."""
    kinds = file.texts("block_types") if file.has("block_types") else [RECURRENT, RECURRENT, ATTENTION]
    if not kinds or not set(kinds) <= {RECURRENT, ATTENTION}:
        raise file.wrong("block_types", f"a list of {RECURRENT!r} and {ATTENTION!r}")
    return [kinds[layer % len(kinds)] for layer in range(count)]


def _check_rope(file: ConfigFile) -> None:
    rope = file.section("rope_scaling") or file.section("rope_parameters")
    if rope is not None and rope.text("rope_type", "default") != "default":
        raise rope.wrong("rope_type", "default")


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint."""
    layer, blocks = "model.layers.*", config.num_heads
    block, unit = f"{layer}.temporal_block", f"{layer}.temporal_block.rg_lru"
    names: dict[str, str | Source] = {
        **LLAMA_NAMES,
        "norm": "model.final_norm",
        "layers.*.attention_norm": f"{layer}.temporal_pre_norm",
        "layers.*.mlp_norm": f"{layer}.channel_pre_norm",
        **{f"layers.*.attention.{name}": f"{block}.{name[0]}_proj" for name in ("query", "key", "value", "output")},
        **{f"layers.*.mlp.{name}": f"{layer}.mlp_block.{name}_proj" for name in ("gate", "up", "down")},
        "layers.*.recurrence": Source(unit, endings={"rate": ".recurrent_param"}),
        "layers.*.recurrence.x": f"{block}.linear_x",
        "layers.*.recurrence.gate": f"{block}.linear_y",
        "layers.*.recurrence.convolution": f"{block}.conv_1d",
        "layers.*.recurrence.output": f"{block}.linear_out",
    }
    for gate in ("input_gate", "recurrent_gate"):
        endings = {part: f"_{part}" for part in ("weight", "bias")}
        names[f"layers.*.recurrence.{gate}"] = Source(f"{unit}.{gate}", InHeads(blocks), endings)
    return names


FAMILY = Family(read_config, weight_names=weight_names)
