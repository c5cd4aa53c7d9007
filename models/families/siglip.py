"""SigLIP (arXiv 2303.15343) as the eyes of Gemma 3 and PaliGemma."""

from collections.abc import Mapping

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, Source
from jaxllm.models.families.family import TEXT_PARTS, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.vision_transformer import TransformerPlan, vision_names


def read_siglip(vision: ConfigFile) -> TransformerPlan:
    """The plan in a `vision_config`, whose defaults are those of transformers."""
    vision.ignore(
        "model_type", "attention_dropout", "initializer_range", "vision_use_head", "projection_dim",
        "projector_hidden_act", "num_image_tokens",
    )  # fmt: skip
    patch_size, image_size = vision.integer("patch_size", 16), vision.integer("image_size", 224)
    if image_size % patch_size:
        raise vision.wrong("image_size", f"a multiple of patch_size={patch_size}")
    hidden_size, heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 12)
    if hidden_size % heads:
        raise vision.wrong("hidden_size", f"a multiple of num_attention_heads={heads}")
    return TransformerPlan(
        hidden_size=hidden_size,
        intermediate_size=vision.integer("intermediate_size", 3072),
        num_layers=vision.integer("num_hidden_layers", 12),
        num_heads=heads,
        patch_size=patch_size,
        side=image_size // patch_size,
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm=NormPlan(kind="layer", eps=vision.number("layer_norm_eps", 1e-6), bias=True),
        channels=vision.integer("num_channels", 3),
    )


SIGLIP_NAMES: Names = {
    **vision_names("vision_tower"),
    "tower.vision.patches": Source("vision_tower.embeddings.patch_embedding", ConvolutionAsMatrix()),
}
"""Names of the tower's parts in checkpoints, after those in `SIGLIP_PARTS` are replaced."""

SIGLIP_PARTS: Mapping[str, str] = {
    **TEXT_PARTS,
    "vision_tower.vision_model.": "vision_tower.",
    "model.vision_tower.vision_model.": "vision_tower.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
"""Other names of the parts of checkpoints, as several versions of transformers write them."""
