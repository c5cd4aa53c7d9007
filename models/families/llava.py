"""LLaVA 1.5 (arXiv 2310.03744) and those after it: a language model that sees images.

It sees through CLIP or SigLIP, or as Pixtral (arXiv 2410.07073), whose checkpoints for transformers are of this kind.
"""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import AsRow, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import (
    CLIP,
    CLIP_PIXELS,
    PIXTRAL,
    SIGLIP,
    clip_names,
    pixtral_names,
    read_clip,
    read_pixtral,
    read_siglip,
    taken_layers,
)
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import PixelPlan, TowerPlan, program_sizes
from jaxllm.models.towers.pooled_projector import AlsoMeansPlan
from jaxllm.models.towers.projectors import TwoLayerPlan
from jaxllm.models.towers.vision_transformer import TransformerPlan

VISION, PROJECTOR = "vision", "projector"
"""What the parts are called here, whatever a checkpoint calls them."""

PARTS = {
    **TEXT_PARTS,
    "model.vision_tower.vision_model.": f"{VISION}.",
    "model.vision_tower.": f"{VISION}.",
    "vision_tower.vision_model.": f"{VISION}.",
    "vision_tower.": f"{VISION}.",
    "model.multi_modal_projector.": f"{PROJECTOR}.",
    "multi_modal_projector.": f"{PROJECTOR}.",
    "model.image_newline": "image_newline",
}
"""Where checkpoints have the parts: newer files put `model.` before most names."""

SEEING_PARTS = (f"{VISION}.", f"{PROJECTOR}.", "image_newline")

_LAYERS = {CLIP: 12, SIGLIP: 12, PIXTRAL: 24}
"""Vision models, and how many layers they have where a configuration does not say it."""

_CLIP_DEFAULTS = {
    "intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14, "image_size": 336, "num_hidden_layers": 24,
    "num_attention_heads": 16,
}  # fmt: skip

_ONE_VISION_DEFAULTS = {
    "model_type": SIGLIP, "intermediate_size": 4304, "hidden_size": 1152, "patch_size": 14, "image_size": 384,
    "num_hidden_layers": 26, "num_attention_heads": 16,
}  # fmt: skip


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    return replace(read_text_model(file, architecture, "llama"), tower=read_tower(file))


def read_next(file: ConfigFile, architecture: str) -> ModelConfig:
    """LLaVA-NeXT: the image, and tiles of it that are lines of rows, which a learned row ends."""
    return _with_lines(read_config(file, architecture), file)


def read_one_vision(file: ConfigFile, architecture: str) -> ModelConfig:
    """LLaVA-OneVision (arXiv 2408.03326): likewise, and large images have fewer rows, which are sums."""
    file = file.reading(
        vision_config=_ONE_VISION_DEFAULTS, text_config={"model_type": "qwen2"}, image_token_index=151646,
        vision_feature_layer=-1, vision_feature_select_strategy="full",
    )  # fmt: skip
    key = "video_token_id" if file.has("video_token_id") else "video_token_index"
    video_token_id = file.integer(key, 151647, minimum=0)
    tower = replace(read_tower(file, SIGLIP), has_sums=True, video_token_id=video_token_id)
    return _with_lines(replace(read_text_model(file, architecture, "qwen2"), tower=tower), file)


def read_next_video(file: ConfigFile, architecture: str) -> ModelConfig:
    """LLaVA-NeXT-Video: likewise, and rows of videos are of the means of squares of patches."""
    key = "video_token_id" if file.has("video_token_id") else "video_token_index"
    video_token_id, size = file.integer(key, 32000, minimum=0), file.integer("spatial_pool_stride", 2)
    file.expect(spatial_pool_mode="average")
    config = read_next(file.reading(image_token_index=32001), architecture)
    tower = config.tower
    assert tower is not None
    assert tower.side is not None
    assert isinstance(tower.projector, TwoLayerPlan)
    if tower.side % size:
        raise file.wrong("spatial_pool_stride", f"a divisor of {tower.side}, the patches on a side of a frame")
    return replace(
        config,
        tower=replace(
            tower,
            projector=AlsoMeansPlan(tower.projector, tower.side, size),
            class_rows=(tower.side // size) ** 2,
            video_token_id=video_token_id,
        ),
    )


def read_vip(file: ConfigFile, architecture: str) -> ModelConfig:
    """ViP-LLaVA (arXiv 2312.00784): the states of several layers of the vision model, normalised together."""
    file = file.reading(vision_feature_layer=[-2, -5, -8, -11, 6])
    config = read_config(file, architecture)
    tower = config.tower
    assert tower is not None
    assert isinstance(tower.projector, TwoLayerPlan)
    norm = NormPlan(kind="layer", eps=file.number("projector_layernorm_eps", 1e-5), bias=True)
    return replace(config, tower=replace(tower, projector=replace(tower.projector, norm=norm)))


def _with_lines(config: ModelConfig, file: ConfigFile) -> ModelConfig:
    assert config.tower is not None
    if config.tower.class_rows or config.tower.side is None:
        raise file.wrong("vision_feature_select_strategy", "'default' for CLIP, since tiles are squares of patches")
    return replace(config, tower=replace(config.tower, has_learned_row=True))


def read_tower(file: ConfigFile, default: str = CLIP) -> TowerPlan:
    """The tower of LLaVA 1.5, whose vision model is the `default` one unless the file names another.

    Raises `ModelError` for a class token that is to be left out where there is none.
    """
    vision = file.section("vision_config") or ConfigFile(_CLIP_DEFAULTS, file.source)
    kind = vision.text("model_type", default)
    if kind not in _LAYERS:
        raise vision.wrong("model_type", f"one of {', '.join(_LAYERS)}")
    layers = taken_layers(file, "vision_feature_layer", vision.integer("num_hidden_layers", _LAYERS[kind]), -2)
    strategy = file.text("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full") or (strategy == "default" and kind != CLIP):
        raise file.wrong("vision_feature_select_strategy", "'full', or for CLIP 'default'")
    keeps_class = kind == CLIP and strategy == "full"
    if kind == CLIP:
        plan = read_clip(vision, layers, keeps_class=keeps_class)
    else:
        plan = (read_pixtral if kind == PIXTRAL else read_siglip)(vision, layers)
    projector = TwoLayerPlan(
        read_activation(file, "projector_hidden_act", "gelu"),
        bias=file.boolean("multimodal_projector_bias", True),
        layers=len(layers),
    )
    most = plan.side**2
    return TowerPlan(
        vision=plan,
        projector=projector,
        merge=1,
        token_id=image_token_id(file, 32000),
        sizes=program_sizes(most, 1) if kind == PIXTRAL else (most,),
        side=None if kind == PIXTRAL else plan.side,
        class_rows=int(keeps_class),
        pixels=PixelPlan() if kind == SIGLIP else CLIP_PIXELS,
    )


def image_token_id(file: ConfigFile, default: int) -> int:
    """The token that stands for a row of an image, by its newer name or its older one."""
    key = "image_token_id" if file.has("image_token_id") else "image_token_index"
    return file.integer(key, default, minimum=0)


def names(config: ModelConfig) -> Names:
    """Names of the tensors of any of the vision models."""
    tower = config.tower
    assert tower is not None
    assert isinstance(tower.vision, TransformerPlan)
    vision = clip_names if tower.vision.has_positions else pixtral_names
    learned = {"tower.learned_row": Source("image_newline", AsRow(), {"weight": ""})} if tower.has_learned_row else {}
    return {
        **TEXT_NAMES,
        **vision(VISION),
        "tower.projector.first": f"{PROJECTOR}.linear_1",
        "tower.projector.second": f"{PROJECTOR}.linear_2",
        "tower.projector.norm": f"{PROJECTOR}.projector_layernorm",
        **learned,
    }


FAMILY = Family(read_config, weight_names=names, renamed=PARTS, other_parts=SEEING_PARTS)
NEXT = replace(FAMILY, read_config=read_next)
NEXT_VIDEO = replace(FAMILY, read_config=read_next_video)
VIP = replace(FAMILY, read_config=read_vip)
ONE_VISION = replace(FAMILY, read_config=read_one_vision)
