"""InternVL 2 to 3.5 (arXiv 2412.05271), in the format of its authors, which most checkpoints have."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, OfOne, Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import phi3
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.internvl import read_tower, read_with_vision
from jaxllm.models.families.llama_like import internlm2_names, read_internlm2
from jaxllm.models.families.text_models import READERS, TEXT_NAMES, read_text_model
from jaxllm.models.towers.plan import PixelPlan

_READERS: Final = {**READERS, "internlm2": read_internlm2, "phi3": phi3.read_config}
_NAMES: Final = {"internlm2": internlm2_names, "phi3": phi3.weight_names}
"""Names of the language models that have others than most, by their type."""

_IMAGENET: Final = PixelPlan(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""As in the code of the model cards."""

_GENERATION: Final = (
    "num_beams", "num_beam_groups", "num_return_sequences", "*_penalty", "temperature", "top_k", "top_p", "typical_p",
    "moe_config",
)  # fmt: skip
"""Defaults of generation that transformers 4 wrote into configurations of parts."""

_WHOLE: Final[Mapping[str, str]] = {"text_config": "llm_config", "vision_feature_layer": "select_layer"}
_VISION: Final[Mapping[str, str]] = {"attention_bias": "qkv_bias", "use_qk_norm": "qk_normalization"}
"""What options are called here, by the names that transformers has for them."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "hidden_size": 3200, "intermediate_size": 12800, "num_attention_heads": 25, "num_hidden_layers": 48,
    "norm_type": "rms_norm", "attention_bias": False, "use_qk_norm": True, "image_size": 224, "patch_size": 14,
}  # fmt: skip
"""Of `InternVisionConfig`, which is InternViT-6B."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `llm_config`, and the tower's."""
    # How images are cut, which the server's process reads, and what only training needs.
    file.ignore("*_dynamic_patch", "dynamic_image_size", "use_thumbnail", "template", "*_lora", "pad2square")
    file.expect(ps_version="v2")
    vision = (file.section("vision_config") or ConfigFile({}, file.source)).reading(_VISION, **_DEFAULTS)
    vision.expect(use_moe=False)
    vision.ignore(
        "drop_path_rate", "use_flash_attn", "*moe*", "*_expert*", "num_*experts", "*capacity_factor", "laux_allreduce",
        "noisy_gate_policy", "use_residual", "use_rts", "use_weighted_residual",
    )  # fmt: skip
    view = file.reading(_WHOLE)
    tower = replace(read_tower(view, vision), token_id=-1, token="<IMG_CONTEXT>", pixels=_IMAGENET)
    file.expect(force_image_size=vision.integer("image_size"))
    text = view.section("text_config") or ConfigFile({}, file.source)
    for part in (vision, text):
        part.ignore(*_GENERATION)
    found = read_text_model(view, architecture, "qwen2", readers=_READERS)
    return replace(found, tower=tower, language=text.text("model_type", "qwen2"))


def read_qianfan(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qianfan-OCR, whose configuration is that of transformers: Qwen3, and a vision model with biases."""
    vision = (file.section("vision_config") or ConfigFile({}, file.source)).reading(attention_bias=True)
    vision.ignore("drop_path_rate", "projection_dropout")
    return read_with_vision(file, architecture, vision, "qwen3")


_VISION_MODEL = "vision_model"
_LAYER = f"{_VISION_MODEL}.encoder.layers.*"


def weight_names(config: ModelConfig) -> Names:
    """Names of the tensors of both models."""
    assert config.tower is not None
    size, itself = config.tower.vision.hidden_size, {"weight": ""}
    attention = fused(f"{_LAYER}.attn.qkv", {"query": size, "key": size, "value": size})
    return {
        **(_NAMES[config.language](config) if config.language in _NAMES else TEXT_NAMES),
        "tower.vision.patches": Source(f"{_VISION_MODEL}.embeddings.patch_embedding", ConvolutionAsMatrix()),
        "tower.vision.class_token": Source(f"{_VISION_MODEL}.embeddings.class_embedding", OfOne(), itself),
        "tower.vision.positions": Source(f"{_VISION_MODEL}.embeddings.position_embedding", OfOne(), itself),
        **{f"tower.vision.layers.*.attention.{name}": source for name, source in attention.items()},
        "tower.vision.layers.*.attention_norm": f"{_LAYER}.norm1",
        "tower.vision.layers.*.attention.query_norm": f"{_LAYER}.attn.q_norm",
        "tower.vision.layers.*.attention.key_norm": f"{_LAYER}.attn.k_norm",
        "tower.vision.layers.*.attention.output": f"{_LAYER}.attn.proj",
        "tower.vision.layers.*.attention_scale": Source(f"{_LAYER}.ls1", endings=itself),
        "tower.vision.layers.*.mlp_norm": f"{_LAYER}.norm2",
        "tower.vision.layers.*.mlp.up": f"{_LAYER}.mlp.fc1",
        "tower.vision.layers.*.mlp.down": f"{_LAYER}.mlp.fc2",
        "tower.vision.layers.*.mlp_scale": Source(f"{_LAYER}.ls2", endings=itself),
        "tower.projector.norm": "mlp1.0",
        "tower.projector.first": "mlp1.1",
        "tower.projector.second": "mlp1.3",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed={**TEXT_PARTS, "language_model.output.": "output."},
    other_parts=(f"{_VISION_MODEL}.", "mlp1."),
    like="InternVL",
)
QIANFAN = Family(
    read_qianfan,
    weight_names=weight_names,
    # The last as transformers 5.24 writes it.
    renamed={**TEXT_PARTS, "language_model.model.encoder.": "model."},
    other_parts=(f"{_VISION_MODEL}.", "mlp1."),
)
