"""Idefics 3 (arXiv 2408.12637) and SmolVLM (arXiv 2504.05299): Llama that sees images through SigLIP."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import llama
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.projectors import JoinedPlan
from jaxllm.models.towers.vision_transformer import TransformerPlan, vision_names


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Llama's configuration in `text_config`, and the tower's."""
    tower = _read_tower(file)
    config = llama.read_config(text_part(file), architecture)
    return replace(config, tower=tower)


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    vision.ignore(
        "model_type", "attention_dropout", "initializer_range", "size", "max_image_size", "tie_word_embeddings"
    )
    patch_size, image_size = vision.integer("patch_size", 32), vision.integer("image_size", 224)
    if image_size % patch_size:
        raise vision.wrong("image_size", f"a multiple of patch_size={patch_size}")
    hidden_size, heads = vision.integer("hidden_size", 1152), vision.integer("num_attention_heads", 16)
    if hidden_size % heads:
        raise vision.wrong("hidden_size", f"a multiple of num_attention_heads={heads}")
    plan = TransformerPlan(
        hidden_size=hidden_size,
        intermediate_size=vision.integer("intermediate_size", 3072),
        num_layers=vision.integer("num_hidden_layers", 12),
        num_heads=heads,
        patch_size=patch_size,
        side=image_size // patch_size,
        spreads_positions=True,
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm=NormPlan(kind="layer", eps=vision.number("layer_norm_eps", 1e-6), bias=True),
        channels=vision.integer("num_channels", 3),
    )
    merge = file.integer("scale_factor", 2)
    if plan.side % merge:
        raise file.wrong("scale_factor", f"a divisor of {plan.side}, the patches on each side of an image")
    token_id = file.integer("image_token_id", 128257, minimum=0)
    return TowerPlan(vision=plan, projector=JoinedPlan(), merge=merge, token_id=token_id, sizes=(plan.side**2,))


TOWER_NAMES: Names = {
    **vision_names("model.vision_model"),
    "tower.vision.patches": Source("model.vision_model.embeddings.patch_embedding", ConvolutionAsMatrix()),
    "tower.projector.linear": "model.connector.modality_projection.proj",
}

FAMILY = Family(
    read_config,
    weight_names={**LLAMA_NAMES, **TOWER_NAMES},
    renamed={"model.text_model.": "model."},
    other_parts=("model.vision_model.", "model.connector."),
)
