"""Gemma 3 (arXiv 2503.19786) and PaliGemma (arXiv 2407.07726, arXiv 2412.03555): Gemma that sees through SigLIP.

Tokens of an image see one another, in PaliGemma all of the prompt does.
"""

from dataclasses import replace
from math import isqrt
from typing import Literal

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, Transposed
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import LLAMA_NAMES, OTHER_PARTS, SANDWICH_NAMES, TEXT_PARTS, Family, Names
from jaxllm.models.families.gemma import read_gemma, read_gemma2, read_gemma3
from jaxllm.models.families.vision import clip_names, read_siglip
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.pooled_projector import PooledPlan
from jaxllm.models.towers.projectors import JoinedPlan


def with_tower(
    config: ModelConfig, tower: TowerPlan, spans: Literal["images", "prompt"], *, only_windows: bool = False
) -> ModelConfig:
    """The model with a tower, where tokens of spans see one another: in all layers, or in those with windows."""
    layers = (
        layer if only_windows and not layer.attention.window else layer.attending(sees_spans=True)
        for layer in config.layers
    )
    return replace(config, layers=tuple(layers), tower=replace(tower, spans=spans))


def read_gemma3_images(file: ConfigFile, architecture: str) -> ModelConfig:
    """Gemma 3's configuration in `text_config`, and the tower's, if there is one."""
    tower = None if file.section("vision_config") is None else _read_gemma3_tower(file)
    config = read_gemma3(file, architecture)
    return config if tower is None or not config.is_causal else with_tower(config, tower, "images")


def _read_gemma3_tower(file: ConfigFile) -> TowerPlan:
    """A square of patches becomes a row, such that an image has as many rows as the file says."""
    vision = file.section("vision_config")
    assert vision is not None
    plan, rows = read_siglip(vision, None), file.integer("mm_tokens_per_image", 256)
    side = isqrt(rows)
    assert plan.side is not None
    if side * side != rows or plan.side % side:
        raise file.wrong("mm_tokens_per_image", f"the square of a divisor of {plan.side}, the patches each way")
    return TowerPlan(
        vision=plan,
        projector=PooledPlan(NormPlan(eps=plan.norm.eps, offset=1.0)),
        merge=plan.side // side,
        side=plan.side,
        token_id=file.integer("image_token_index", 262_144, minimum=0),
        sizes=(plan.side**2,),
    )


def read_paligemma(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of Gemma 1 or 2 in `text_config`, and the tower's."""
    section = file.section("vision_config") or ConfigFile({}, file.source)
    section.ignore("projector_hidden_act", "num_image_tokens")
    vision = read_siglip(section, None)
    assert vision.side is not None
    tower = TowerPlan(
        vision=vision,
        projector=JoinedPlan(bias=True),
        merge=1,
        side=vision.side,
        token_id=file.integer("image_token_index", 256_000, minimum=0),
        sizes=(vision.side**2,),
    )
    given = file.section("text_config")
    is_second = given is not None and given.text("model_type", "gemma") == "gemma2"
    text = text_part(file)
    text.ignore("use_bidirectional_attention", "num_image_tokens")
    config = (read_gemma2 if is_second else read_gemma)(text, architecture)
    return with_tower(config, tower, "prompt")


_PROJECTOR = "multi_modal_projector"
PARTS = {
    **TEXT_PARTS,
    "vision_tower.vision_model.": "vision_tower.",
    "model.vision_tower.vision_model.": "vision_tower.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
"""Other names of parts, as several versions of transformers write them."""

GEMMA3_NAMES: Names = {
    **SANDWICH_NAMES,
    **clip_names("vision_tower"),
    "tower.projector.norm": f"{_PROJECTOR}.mm_soft_emb_norm",
    "tower.projector.linear": Source(f"{_PROJECTOR}.mm_input_projection_weight", Transposed(), endings={"weight": ""}),
}


def paligemma_names(config: ModelConfig) -> Names:
    """Names of Gemma 1, or of Gemma 2, which has norms after its blocks."""
    text = LLAMA_NAMES if config.layers[0].attention_output_norm is None else SANDWICH_NAMES
    return {**text, **clip_names("vision_tower"), "tower.projector.linear": f"{_PROJECTOR}.linear"}


GEMMA3 = Family(read_gemma3_images, weight_names=GEMMA3_NAMES, renamed=PARTS, other_parts=OTHER_PARTS)
PALIGEMMA = Family(read_paligemma, weight_names=paligemma_names, renamed=PARTS, other_parts=OTHER_PARTS)
