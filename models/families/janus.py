"""Janus and Janus-Pro (arXiv 2501.17811) as far as they see: Llama that sees through SigLIP. They draw nothing here."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.llava import PROJECTOR, VISION, image_token_id
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS, clip_names, read_siglip
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.projectors import TwoLayerPlan

_DEFAULTS = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 384, "patch_size": 16,
    "hidden_act": "gelu", "layer_norm_eps": 1e-6, "mlp_ratio": 4.0, "projection_dim": 2048,
}  # fmt: skip


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    vision = (file.section("vision_config") or ConfigFile({}, file.source)).reading(**_DEFAULTS)
    vision.expect(use_qk_norm=False, depth=2)
    vision.ignore("projection_dropout", "hidden_dropout_rate", "num_image_tokens")
    inner = int(vision.integer("hidden_size") * vision.positive("mlp_ratio"))
    plan = replace(
        read_siglip(vision.but(intermediate_size=inner), None), qkv_bias=vision.boolean("attention_bias", True)
    )
    config = read_text_model(file, architecture, "llama")
    vision.expect(projection_dim=config.hidden_size)
    # What draws images.
    file.ignore("vq_config")
    tower = TowerPlan(
        vision=plan,
        projector=TwoLayerPlan(plan.activation),
        merge=1,
        token_id=image_token_id(file, 100581),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=CLIP_PIXELS,
    )
    return replace(config, tower=tower)


NAMES: Names = {
    **TEXT_NAMES,
    **clip_names(VISION),
    "tower.vision.layers.*.attention.output": f"{VISION}.encoder.layers.*.self_attn.projection_layer",
    "tower.projector.first": f"{PROJECTOR}.fc1",
    "tower.projector.second": f"{PROJECTOR}.hidden_layers.0",
}

FAMILY = Family(
    read_config,
    weight_names=NAMES,
    renamed={**TEXT_PARTS, "model.vision_model.": f"{VISION}.", "model.aligner.": f"{PROJECTOR}."},
    other_parts=(f"{VISION}.", f"{PROJECTOR}.", "model.vqmodel.", "model.generation_"),
)
