"""Command A Vision: Cohere 2 that sees through SigLIP, four patches to a row."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.llava import PARTS, PROJECTOR, SEEING_PARTS, VISION, image_token_id
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS, SIGLIP, clip_names, read_siglip
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.projectors import TwoLayerPlan

_VISION_DEFAULTS = {
    "hidden_size": 1152, "intermediate_size": 3072, "image_size": 512, "num_hidden_layers": 27,
    "num_attention_heads": 12,
}  # fmt: skip


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    tower = _read_tower(file)
    return replace(read_text_model(file, architecture, "cohere2"), tower=tower)


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = file.section("vision_config") or ConfigFile(_VISION_DEFAULTS, file.source)
    if vision.text("model_type", SIGLIP) != SIGLIP:
        raise vision.wrong("model_type", SIGLIP)
    plan, merge = read_siglip(vision, None), file.integer("downsample_factor", 2)
    if plan.side % merge:
        raise file.wrong("downsample_factor", f"a divisor of {plan.side}, the patches on each side of a tile")
    inner_size = file.integer("alignment_intermediate_size", 36864)
    if inner_size % 2:
        raise file.wrong("alignment_intermediate_size", "an even number")
    return TowerPlan(
        vision=plan,
        projector=TwoLayerPlan("silu", inner_size=inner_size, is_gated=True),
        merge=merge,
        token_id=image_token_id(file, 255036),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=CLIP_PIXELS,
    )


NAMES: Names = {
    **TEXT_NAMES,
    **clip_names(VISION),
    "tower.projector.first": f"{PROJECTOR}.linear_1",
    "tower.projector.second": f"{PROJECTOR}.linear_2",
}

FAMILY = Family(read_config, weight_names=NAMES, renamed=PARTS, other_parts=SEEING_PARTS)
