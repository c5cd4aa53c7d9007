"""LFM2-VL: LFM2 that sees through SigLIP 2, images of several sizes, four patches to a row."""

from dataclasses import replace
from math import isqrt

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import lfm2
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.llava import PARTS, PROJECTOR, SEEING_PARTS, VISION, image_token_id
from jaxllm.models.families.vision import clip_names, read_siglip
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan, program_sizes
from jaxllm.models.towers.projectors import TwoLayerPlan

SIGLIP2 = "siglip2_vision_model"
_TEXT = {"lfm2": lfm2.read_lfm2, "lfm2_moe": lfm2.read_lfm2_moe}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    tower = _read_tower(file)
    text = text_part(file)
    kind = text.text("model_type", "lfm2")
    if kind not in _TEXT:
        raise text.wrong("model_type", f"one of {', '.join(_TEXT)}")
    if file.has("tie_embedding"):
        text = text.but(tie_embedding=file.boolean("tie_embedding", True))
    return replace(_TEXT[kind](text, architecture), tower=tower)


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    if vision.text("model_type", SIGLIP2) != SIGLIP2:
        raise vision.wrong("model_type", SIGLIP2)
    # All that is asked of sizes is how many positions were trained.
    side, patch_size = isqrt(vision.integer("num_patches", 256)), vision.integer("patch_size", 16)
    vision.ignore("image_size")
    plan = replace(read_siglip(vision.but(image_size=side * patch_size), None), resizes_positions=True)
    merge = file.integer("downsample_factor", 2)
    projector = TwoLayerPlan(
        read_activation(file, "projector_hidden_act", "gelu"),
        bias=file.boolean("projector_bias", True),
        norm=NormPlan(kind="layer", eps=1e-5, bias=True) if file.boolean("projector_use_layernorm", True) else None,
        inner_size=file.integer("projector_hidden_size", 2560),
    )
    return TowerPlan(
        vision=plan,
        projector=projector,
        merge=merge,
        token_id=image_token_id(file, 396),
        sizes=program_sizes(256 * merge**2, merge**2),
        most_rows_field="max_image_tokens",
    )


def names(config: ModelConfig) -> Names:
    """Names of the tensors of both models."""
    return {
        **lfm2.weight_names(config),
        **clip_names(VISION),
        # A matrix, not a convolution, of pixels and then channels.
        "tower.vision.patches": f"{VISION}.embeddings.patch_embedding",
        "tower.projector.norm": f"{PROJECTOR}.layer_norm",
        "tower.projector.first": f"{PROJECTOR}.linear_1",
        "tower.projector.second": f"{PROJECTOR}.linear_2",
    }


FAMILY = Family(read_config, weight_names=names, renamed=PARTS, other_parts=SEEING_PARTS)
