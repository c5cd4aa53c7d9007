"""Aya Vision (arXiv 2505.08751): Cohere 2 that sees through SigLIP, four patches to a row."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.llava import PARTS, PROJECTOR, SEEING_PARTS, VISION, image_token_id
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS, SIGLIP, clip_names, read_siglip, taken_layers
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.projectors import TwoLayerPlan

_VISION_DEFAULTS = {
    "model_type": SIGLIP, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14, "image_size": 384,
    "num_hidden_layers": 26, "num_attention_heads": 14,
}  # fmt: skip


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    return replace(read_text_model(file, architecture, "cohere2"), tower=_read_tower(file))


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = file.section("vision_config") or ConfigFile(_VISION_DEFAULTS, file.source)
    if vision.text("model_type", SIGLIP) != SIGLIP:
        raise vision.wrong("model_type", SIGLIP)
    # SigLIP has no class token to leave out.
    file.expect(vision_feature_select_strategy="full")
    layers = taken_layers(file, "vision_feature_layer", vision.integer("num_hidden_layers", 12), -1)
    plan, merge = read_siglip(vision, layers), file.integer("downsample_factor", 2)
    if plan.side % merge:
        raise file.wrong("downsample_factor", f"a divisor of {plan.side}, the patches on each side of a tile")
    inner_size = file.optional_integer("alignment_intermediate_size")
    if inner_size is not None and inner_size % 2:
        raise file.wrong("alignment_intermediate_size", "an even number")
    projector = TwoLayerPlan(
        "silu",
        norm=NormPlan(kind="layer", eps=file.number("adapter_layer_norm_eps", 1e-6), bias=True),
        layers=len(layers),
        inner_size=inner_size,
        is_gated=True,
    )
    return TowerPlan(
        vision=plan,
        projector=projector,
        merge=merge,
        token_id=image_token_id(file, 255036),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=CLIP_PIXELS,
    )


NAMES: Names = {
    **TEXT_NAMES,
    **clip_names(VISION),
    "tower.projector.norm": f"{PROJECTOR}.layernorm",
    "tower.projector.first": f"{PROJECTOR}.linear_1",
    "tower.projector.second": f"{PROJECTOR}.linear_2",
}

FAMILY = Family(read_config, weight_names=NAMES, renamed=PARTS, other_parts=SEEING_PARTS)
