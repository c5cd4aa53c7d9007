"""InternVL (arXiv 2504.10479), in transformers' format: a language model that sees through InternViT."""

from dataclasses import replace
from typing import Final

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, OfOne, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.llava import PARTS, PROJECTOR, SEEING_PARTS, VISION
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS, check_heads, taken_layers
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.projectors import TwoLayerPlan
from jaxllm.models.towers.vision_transformer import TransformerPlan

_NORMS: Final = {"layer_norm": NormPlan(kind="layer", bias=True), "rms_norm": NormPlan()}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    section = file.section("vision_config") or ConfigFile({}, file.source)
    return read_with_vision(file, architecture, section, "qwen2")


def read_with_vision(file: ConfigFile, architecture: str, section: ConfigFile, text: str) -> ModelConfig:
    """The same, whose vision model has this section, and whose language model is of type `text` unless it says so."""
    vision = section.reading(hidden_size=1024, num_attention_heads=16, image_size=448, patch_size=14)
    return replace(read_text_model(file, architecture, text), tower=read_tower(file, vision))


def read_tower(file: ConfigFile, vision: ConfigFile) -> TowerPlan:
    """The tower, whose vision model has a section of its own. Raises `ModelError`."""
    plan = _read_vision(file, vision)
    # A square of features lacks its class token.
    file.expect(vision_feature_select_strategy="default")
    ratio = file.number("downsample_ratio", 0.5)
    merge = round(1 / ratio) if 0 < ratio <= 1 else 0
    if not merge or merge * ratio != 1 or plan.side % merge:
        raise file.wrong("downsample_ratio", f"1 / n, for a divisor n of {plan.side}, the patches on a side of a tile")
    norm = NormPlan(kind="layer", eps=1e-5, bias=True)
    return TowerPlan(
        vision=plan,
        projector=TwoLayerPlan(read_activation(file, "projector_hidden_act", "gelu"), norm=norm),
        merge=merge,
        token_id=file.integer("image_token_id", 151667, minimum=0),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=CLIP_PIXELS,
    )


def _read_vision(file: ConfigFile, vision: ConfigFile) -> TransformerPlan:
    vision.ignore("model_type", "*dropout*", "initializer_range", "use_mask_token", "layer_scale_init_value")
    vision.expect(use_absolute_position_embeddings=True)
    check_heads(vision)
    kind = vision.text("norm_type", "layer_norm")
    if kind not in _NORMS:
        raise vision.wrong("norm_type", f"one of {', '.join(_NORMS)}")
    has_last_norm = not vision.boolean("use_mean_pooling", True)
    if has_last_norm and kind != "layer_norm":
        raise vision.wrong("use_mean_pooling", f"true with norm_type={kind}")
    image_size, patch_size = _square(vision, "image_size"), _square(vision, "patch_size")
    if image_size < patch_size:
        raise vision.wrong("image_size", f"at least patch_size={patch_size}")
    num_layers = vision.integer("num_hidden_layers", 24)
    layers = taken_layers(file, "vision_feature_layer", num_layers, -1)
    if len(layers) > 1:
        raise file.wrong("vision_feature_layer", "one number")
    is_last = file.values.get("vision_feature_layer", -1) == -1
    return TransformerPlan(
        hidden_size=vision.integer("hidden_size"),
        intermediate_size=vision.integer("intermediate_size", 4096),
        num_layers=layers[0],
        num_heads=vision.integer("num_attention_heads"),
        activation=read_activation(vision, "hidden_act", "gelu"),
        norm=replace(_NORMS[kind], eps=vision.number("layer_norm_eps", 1e-6)),
        qkv_bias=vision.boolean("attention_bias", False),
        query_key_norm=NormPlan() if vision.boolean("use_qk_norm", False) else None,
        has_layer_scale=True,
        patch_size=patch_size,
        side=image_size // patch_size,
        channels=vision.integer("num_channels", 3),
        class_token=True,
        has_last_norm=has_last_norm and is_last,
        taken_layers=() if is_last else layers,
    )


def _square(vision: ConfigFile, key: str) -> int:
    """The side of a square, which may be given as height and width."""
    given = vision.values.get(key)
    if not isinstance(given, list):
        return vision.integer(key)
    sides = vision.integers(key)
    if len(sides) != 2 or sides[0] != sides[1] or sides[0] < 1:
        raise vision.wrong(key, "height and width of a square")
    return sides[0]


_LAYER = f"{VISION}.encoder.layer.*"
NAMES: Names = {
    **TEXT_NAMES,
    "tower.vision.patches": Source(f"{VISION}.embeddings.patch_embeddings.projection", ConvolutionAsMatrix()),
    "tower.vision.class_token": Source(f"{VISION}.embeddings.cls_token", OfOne(), {"weight": ""}),
    "tower.vision.positions": Source(f"{VISION}.embeddings.position_embeddings", OfOne(), {"weight": ""}),
    "tower.vision.norm": f"{VISION}.layernorm",
    "tower.vision.layers.*.attention_norm": f"{_LAYER}.layernorm_before",
    "tower.vision.layers.*.attention.query": f"{_LAYER}.attention.q_proj",
    "tower.vision.layers.*.attention.key": f"{_LAYER}.attention.k_proj",
    "tower.vision.layers.*.attention.value": f"{_LAYER}.attention.v_proj",
    "tower.vision.layers.*.attention.query_norm": f"{_LAYER}.attention.q_norm",
    "tower.vision.layers.*.attention.key_norm": f"{_LAYER}.attention.k_norm",
    "tower.vision.layers.*.attention.output": f"{_LAYER}.attention.projection_layer",
    "tower.vision.layers.*.attention_scale": Source(f"{_LAYER}.lambda_1", endings={"weight": ""}),
    "tower.vision.layers.*.mlp_norm": f"{_LAYER}.layernorm_after",
    "tower.vision.layers.*.mlp.up": f"{_LAYER}.mlp.fc1",
    "tower.vision.layers.*.mlp.down": f"{_LAYER}.mlp.fc2",
    "tower.vision.layers.*.mlp_scale": Source(f"{_LAYER}.lambda_2", endings={"weight": ""}),
    "tower.projector.norm": f"{PROJECTOR}.layer_norm",
    "tower.projector.first": f"{PROJECTOR}.linear_1",
    "tower.projector.second": f"{PROJECTOR}.linear_2",
}

FAMILY = Family(read_config, weight_names=NAMES, renamed=PARTS, other_parts=SEEING_PARTS)
