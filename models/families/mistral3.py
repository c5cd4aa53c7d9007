"""Mistral Small 3.1 and later, 4 included, Ministral 3, and LightOnOCR (arXiv 2601.14251), which is like them.

They see through Pixtral's vision model, four patches to a row.
"""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ChannelsFirst, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import text_part
from jaxllm.models.families.deepseek import read_mistral4
from jaxllm.models.families.deepseek import weight_names as latent_names
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.llava import PARTS, PROJECTOR, SEEING_PARTS, VISION, image_token_id
from jaxllm.models.families.ministral import read_ministral, read_ministral3
from jaxllm.models.families.mistral import read_config as read_mistral
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS, PIXTRAL, pixtral_names, read_pixtral, taken_layers
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan, program_sizes
from jaxllm.models.towers.projectors import MergedPlan, TwoLayerPlan

_READERS = {
    "mistral": read_mistral,
    "ministral": read_ministral,
    "ministral3": read_ministral3,
    "mistral4": read_mistral4,
}
_VISION_DEFAULTS = {"model_type": PIXTRAL, "patch_size": 14, "image_size": 1540, "hidden_act": "gelu"}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model, one of Mistral's, and the tower's."""
    text = text_part(file)
    kind = text.text("model_type", "mistral")
    if kind not in _READERS:
        raise text.wrong("model_type", f"one of {', '.join(_READERS)}")
    config = _READERS[kind](text, architecture)
    assert config.norm is not None
    return replace(config, tower=_read_tower(file, config.norm.eps))


def read_lighton(file: ConfigFile, architecture: str) -> ModelConfig:
    """LightOnOCR: Qwen3, with the same tower."""
    tower_file = file.reading(
        vision_config={**_VISION_DEFAULTS, "hidden_act": "silu"}, vision_feature_layer=-1, image_token_id=151655
    )
    config = read_text_model(file, architecture, "qwen3")
    assert config.norm is not None
    return replace(config, tower=_read_tower(tower_file, config.norm.eps))


def _read_tower(file: ConfigFile, eps: float) -> TowerPlan:
    """The tower; its projector has a norm with this `eps`."""
    vision = file.section("vision_config") or ConfigFile(_VISION_DEFAULTS, file.source)
    if vision.text("model_type", PIXTRAL) != PIXTRAL:
        raise vision.wrong("model_type", PIXTRAL)
    layers = taken_layers(file, "vision_feature_layer", vision.integer("num_hidden_layers", 24), -1)
    if len(layers) > 1:
        raise file.wrong("vision_feature_layer", "one number")
    plan, merge = read_pixtral(vision, layers), file.integer("spatial_merge_size", 2)
    # Crops have whole squares.
    most = (-(-plan.side // merge) * merge) ** 2
    projector = TwoLayerPlan(
        read_activation(file, "projector_hidden_act", "gelu"), bias=file.boolean("multimodal_projector_bias", False)
    )
    return TowerPlan(
        vision=plan,
        projector=MergedPlan(projector, NormPlan(eps=eps)),
        merge=merge,
        token_id=image_token_id(file, 10),
        sizes=program_sizes(most, merge**2),
        pixels=CLIP_PIXELS,
    )


def names(config: ModelConfig) -> Names:
    """Names of the tensors; the product of a square's patches has its columns in another order."""
    tower = config.tower
    assert tower is not None
    return {
        **(TEXT_NAMES if config.latent is None else latent_names(config)),
        **pixtral_names(VISION),
        "tower.projector.norm": f"{PROJECTOR}.norm",
        "tower.projector.merge": Source(
            f"{PROJECTOR}.patch_merger.merging_layer", ChannelsFirst(tower.patches_per_row)
        ),
        "tower.projector.projector.first": f"{PROJECTOR}.linear_1",
        "tower.projector.projector.second": f"{PROJECTOR}.linear_2",
    }


FAMILY = Family(read_config, weight_names=names, renamed=PARTS, other_parts=SEEING_PARTS)
LIGHTON = replace(
    FAMILY,
    read_config=read_lighton,
    renamed={
        **PARTS,
        "model.vision_encoder.": f"{VISION}.",
        "vision_encoder.": f"{VISION}.",
        "model.vision_projection.": f"{PROJECTOR}.",
        "vision_projection.": f"{PROJECTOR}.",
    },
)
