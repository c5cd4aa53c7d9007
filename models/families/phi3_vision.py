"""Phi-3-Vision and 3.5 (arXiv 2404.14219): Phi-3 that sees through CLIP, crops of an image and the whole of it.

transformers has no such model: what it computes is that of the checkpoints' own code, `image_embedding_phi3_v.py`.
"""

from dataclasses import replace
from typing import Final

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import OfOne, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import phi3
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.vision import CLIP_PIXELS, clip_names, read_clip, taken_layers
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.pooled_projector import LearnedTwoLayerPlan

IMAGE_TOKEN: Final = 32044
"""`<|image|>` of the published tokenizers; configurations do not say it."""

_CLIP: Final = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
"""openai/clip-vit-large-patch14-336, which no published configuration repeats."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The language model's configuration, and the tower's."""
    tower = _read_tower(file)
    file.ignore("embd_pdrop", "resid_pdrop")
    return replace(phi3.read_config(file, architecture), tower=tower)


def _read_tower(file: ConfigFile) -> TowerPlan:
    layer = file.section("embd_layer") or ConfigFile({}, file.source)
    for key in ("use_hd_transform", "with_learnable_separator"):
        if not layer.boolean(key, False):
            raise layer.wrong(key, "true")
    if layer.text("hd_transform_order", "glb_sub") != "sub_glb":
        raise layer.wrong("hd_transform_order", "'sub_glb'")
    layer.expect(embedding_cls="image", projection_cls="mlp")
    processor = file.section("img_processor") or ConfigFile({}, file.source)
    processor.expect(name="clip_vision_model", type_feature="patch")
    # What the crops of an image become follows from the rest.
    processor.ignore("model_name", "num_img_tokens")
    vision = (file.section("vision_config") or ConfigFile({}, file.source)).reading(**_CLIP)
    layers = taken_layers(processor, "layer_idx", vision.integer("num_hidden_layers"), -2)
    if len(layers) != 1:
        raise processor.wrong("layer_idx", "one number")
    plan = read_clip(vision, layers, keeps_class=False)
    if plan.side % 2:
        raise vision.wrong("image_size", "an even number of patches: four of a square become a row")
    if processor.integer("image_dim_out", plan.hidden_size) != plan.hidden_size:
        raise processor.wrong("image_dim_out", f"{plan.hidden_size}, the hidden size of CLIP")
    return TowerPlan(
        vision=plan,
        projector=LearnedTwoLayerPlan("gelu", joins=True),
        merge=2,
        class_rows=2,
        token_id=file.integer("image_token_id", IMAGE_TOKEN, minimum=0),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=replace(CLIP_PIXELS, is_fine=True),
    )


IMAGES = "model.vision_embed_tokens"


def weight_names(config: ModelConfig) -> Names:
    """Names of the tensors of both models."""
    itself = {"weight": ""}
    return {
        **phi3.weight_names(config),
        **clip_names(f"{IMAGES}.img_processor.vision_model"),
        "tower.projector.line_end": Source(f"{IMAGES}.sub_GN", OfOne(2), itself),
        "tower.projector.between": Source(f"{IMAGES}.glb_GN", OfOne(), itself),
        "tower.projector.first": f"{IMAGES}.img_projection.0",
        "tower.projector.second": f"{IMAGES}.img_projection.2",
    }


FAMILY = Family(read_config, weight_names=weight_names, other_parts=(f"{IMAGES}.",), like="Phi3")
