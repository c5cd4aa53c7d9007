"""Phi-4 multimodal (arXiv 2503.01743): Phi-4-mini that sees through SigLIP, and hears through a conformer.

In transformers' format, and in that of microsoft/Phi-4-multimodal-instruct.
"""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import OfOne, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import phi3
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.phi4_sound import PUBLISHED_SOUND, read_published_sound, read_sound, sound_names
from jaxllm.models.families.vision import clip_names, read_siglip, taken_layers
from jaxllm.models.towers.plan import PixelPlan, TowerPlan, program_sizes
from jaxllm.models.towers.pooled_projector import LearnedTwoLayerPlan

WHITE = 255


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The language model's configuration, the tower's and the audio model's."""
    tower = _read_tower(file)
    sound = read_sound(file.section("audio_config") or ConfigFile({}, file.source))
    file.ignore("vision_config", "audio_config", "embd_pdrop", "resid_pdrop")
    return replace(phi3.read_config(file, architecture), tower=tower, sound=sound)


def read_published(file: ConfigFile, architecture: str) -> ModelConfig:
    """The same of the authors' own code, `modeling_phi4mm.py`, whose vision model has one size."""
    layer = file.section("embd_layer") or ConfigFile({}, file.source)
    layer.expect(embedding_cls="image_audio")
    image = layer.section("image_embd_layer") or ConfigFile({}, file.source)
    for key in ("use_hd_transform", "with_learnable_separator"):
        if not image.boolean(key, False):
            raise image.wrong(key, "true")
    image.expect(
        embedding_cls="tune_image", projection_cls="mlp", hd_transform_order="sub_glb",
        image_token_compression_cls="avg_pool_2d",
    )  # fmt: skip
    tower = _read_tower(file)
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    image.expect(crop_size=vision.integer("image_size", 448))
    image.ignore("enable_gradient_checkpointing")
    sound = read_published_sound(file, layer)
    # Sizes of its adapters, which are in files of their own.
    file.ignore("vision_lora", "speech_lora", "img_processor", "embd_pdrop", "resid_pdrop")
    return replace(phi3.read_config(file, architecture), tower=tower, sound=sound)


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = (file.section("vision_config") or ConfigFile({}, file.source)).reading(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=448,
        patch_size=14, crop_size=448, image_token_id=200010,
    )  # fmt: skip
    layers = taken_layers(vision, "feature_layer", vision.integer("num_hidden_layers"), -2)
    if len(layers) != 1:
        raise vision.wrong("feature_layer", "one number")
    plan = replace(read_siglip(vision, layers), spreads_positions=True)
    if plan.side % 2:
        raise vision.wrong("image_size", "an even number of patches: four of a square become a row")
    vision.expect(crop_size=vision.integer("image_size"))
    return TowerPlan(
        vision=plan,
        projector=LearnedTwoLayerPlan("gelu"),
        merge=2,
        class_rows=2,
        token_id=vision.integer("image_token_id", minimum=0),
        sizes=program_sizes(plan.side**2, 4),
        pixels=PixelPlan(is_fine=True),
        fill=WHITE,
    )


IMAGES = "model.embed_tokens_extend.image_embed"


def weight_names(config: ModelConfig) -> Names:
    """Names of the tensors of all three models."""
    itself = {"weight": ""}
    return {
        **phi3.weight_names(config),
        **sound_names(config),
        **clip_names(f"{IMAGES}.img_processor"),
        "tower.projector.line_end": Source(f"{IMAGES}.sub_img_feature_extensor", OfOne(2), itself),
        "tower.projector.between": Source(f"{IMAGES}.global_img_feature_extensor", OfOne(), itself),
        "tower.projector.first": f"{IMAGES}.img_projection_up",
        "tower.projector.second": f"{IMAGES}.img_projection_down",
    }


def published_names(config: ModelConfig) -> Names:
    """The same as the authors call them."""
    itself = {"weight": ""}
    return {
        **weight_names(config),
        **sound_names(config, PUBLISHED_SOUND),
        "tower.projector.line_end": Source(f"{IMAGES}.sub_GN", OfOne(2), itself),
        "tower.projector.between": Source(f"{IMAGES}.glb_GN", OfOne(), itself),
        "tower.projector.first": f"{IMAGES}.img_projection.0",
        "tower.projector.second": f"{IMAGES}.img_projection.2",
    }


_ADAPTERS = tuple(f".lora_{part}.{name}.weight" for name in ("vision", "speech") for part in "AB")

FAMILY = Family(read_config, weight_names=weight_names, other_parts=("model.embed_tokens_extend.",))
PUBLISHED = Family(
    read_published,
    weight_names=published_names,
    other_parts=("model.embed_tokens_extend.",),
    omitted=".base_layer",
    ignored_tensors=_ADAPTERS,
    like="Phi4Multimodal",
)
