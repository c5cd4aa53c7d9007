"""DeepSeek-VL (arXiv 2403.05525), as its smaller models have it: Llama that sees through SigLIP."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.llava import PROJECTOR, VISION, image_token_id
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS, SIGLIP, clip_names, read_siglip
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.projectors import TwoLayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    if vision.text("model_type", SIGLIP) != SIGLIP:
        raise vision.wrong("model_type", SIGLIP)
    plan = read_siglip(vision, None)
    tower = TowerPlan(
        vision=plan,
        projector=TwoLayerPlan("gelu"),
        merge=1,
        token_id=image_token_id(file, 100015),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=CLIP_PIXELS,
    )
    return replace(read_text_model(file, architecture, "llama"), tower=tower)


NAMES: Names = {
    **TEXT_NAMES,
    **clip_names(VISION),
    "tower.projector.first": f"{PROJECTOR}.linear1",
    "tower.projector.second": f"{PROJECTOR}.linear2",
}

FAMILY = Family(
    read_config,
    weight_names=NAMES,
    renamed={
        **TEXT_PARTS,
        "model.vision_model.vision_model.": f"{VISION}.",
        "model.vision_model.": f"{VISION}.",
        "model.aligner.": f"{PROJECTOR}.",
    },
    other_parts=(f"{VISION}.", f"{PROJECTOR}."),
)
