"""Gemma 4 that sees images through a vision model of its own."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import AsRow, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gemma4
from jaxllm.models.families.family import Names
from jaxllm.models.families.gemma_images import with_tower
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.gemma4_vision import Gemma4ProjectorPlan, Gemma4VisionPlan
from jaxllm.models.towers.plan import PixelPlan, TowerPlan, program_sizes

USUAL_TOKENS = 280
"""Rows of an image at most, unless the image processor says more."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Gemma 4's configuration in `text_config`, and the tower's, if there is one.

    Tokens of an image see one another where the file says so, in layers with a window.
    """
    vision, text = file.section("vision_config"), file.section("text_config") or ConfigFile({}, file.source)
    tower = None if vision is None else _read_tower(file, vision, text)
    config = gemma4.read_gemma4(file, architecture)
    if tower is None or not config.is_causal:
        return config
    if not text.has("use_bidirectional_attention"):
        return replace(config, tower=tower)
    return with_tower(config, tower, "images", only_windows=True)


def _read_tower(file: ConfigFile, vision: ConfigFile, text: ConfigFile) -> TowerPlan:
    vision.ignore("model_type", "attention_dropout", "initializer_range", "max_position_embeddings")
    vision.expect(attention_bias=False)
    ropes = vision.section("rope_parameters") or ConfigFile({}, vision.source)
    ropes.expect(rope_type="axial")
    heads, head_size = vision.integer("num_attention_heads", 12), vision.integer("head_dim", 64)
    kv_heads = vision.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise vision.wrong("num_key_value_heads", f"a divisor of num_attention_heads={heads}")
    if head_size % 4:
        raise vision.wrong("head_dim", "a multiple of 4")
    norm, merge = NormPlan(eps=vision.number("rms_norm_eps", 1e-6)), vision.integer("pooling_kernel_size", 3)
    plan = Gemma4VisionPlan(
        hidden_size=vision.integer("hidden_size", 768),
        intermediate_size=vision.integer("intermediate_size", 3072),
        num_layers=vision.integer("num_hidden_layers", 16),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        patch_size=vision.integer("patch_size", 16),
        num_positions=vision.integer("position_embedding_size", 10_240),
        rope_theta=ropes.number("rope_theta", 100.0),
        activation=read_activation(vision, "hidden_activation", "gelu_pytorch_tanh"),
        norm=norm,
        clips=vision.boolean("use_clipped_linears", False),
    )
    return TowerPlan(
        vision=plan,
        projector=Gemma4ProjectorPlan(gemma4.norm_without(norm), vision.boolean("standardize", False)),
        merge=merge,
        token_id=file.integer("image_token_id", 258_880, minimum=0),
        pad_token_id=text.integer("pad_token_id", 0, minimum=0),
        sizes=program_sizes(USUAL_TOKENS * merge**2, merge**2),
        most_rows_field="max_soft_tokens",
        pixels=PixelPlan(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    )


_VISION, _LAYER = "model.vision_tower", "model.vision_tower.encoder.layers.*"
_PRODUCTS = {
    **{f"attention.{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value", "output")},
    **{f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
}

TOWER_NAMES: Names = {
    "tower.vision": Source(f"{_VISION}.patch_embedder", endings={"positions": ".position_embedding_table"}),
    "tower.vision.patches": f"{_VISION}.patch_embedder.input_proj",
    **{f"tower.vision.layers.*.{own}": f"{_LAYER}.{theirs}" for own, theirs in _NORMS.items()},
    **{f"tower.vision.layers.*.{own}": Source(f"{_LAYER}.{theirs}", AsRow()) for own, theirs in _PRODUCTS.items()},
    **{f"tower.vision.layers.*.{own}.linear": f"{_LAYER}.{theirs}.linear" for own, theirs in _PRODUCTS.items()},
    "tower.projector": Source(_VISION, endings={"bias": ".std_bias", "scale": ".std_scale"}),
    "tower.projector.linear": "model.embed_vision.embedding_projection",
}


def weight_names(config: ModelConfig) -> Names:
    """Names of the language model and of the tower."""
    return {**gemma4.weight_names(config), **TOWER_NAMES}


FAMILY = replace(gemma4.FAMILY, read_config=read_config, weight_names=weight_names)
