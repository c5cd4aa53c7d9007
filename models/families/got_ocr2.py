"""GOT-OCR 2 (arXiv 2409.01704): Qwen2 that sees through SAM's vision model, 16 patches to a row."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.llava import PARTS, PROJECTOR, SEEING_PARTS, VISION, image_token_id
from jaxllm.models.families.sam import STRIDE, read_sam, sam_names
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.sam import StridedPlan

_TEXT_DEFAULTS = {
    "model_type": "qwen2", "vocab_size": 151860, "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "tie_word_embeddings": True,
    "rope_theta": 1000000.0,
}  # fmt: skip


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    file = file.reading(text_config=_TEXT_DEFAULTS)
    return replace(read_text_model(file, architecture, "qwen2"), tower=_read_tower(file))


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    plan = read_sam(vision.reading(mlp_dim=3072))
    return TowerPlan(
        vision=plan,
        projector=StridedPlan(),
        merge=STRIDE,
        token_id=image_token_id(file, 151859),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=CLIP_PIXELS,
    )


NAMES: Names = {
    **TEXT_NAMES,
    **sam_names(VISION),
    "tower.projector.strides.first": f"{PROJECTOR}.conv_upsampler1",
    "tower.projector.strides.second": f"{PROJECTOR}.conv_upsampler2",
    "tower.projector.linear": f"{PROJECTOR}.multimodal_projector",
}

FAMILY = Family(read_config, weight_names=NAMES, renamed=PARTS, other_parts=SEEING_PARTS)
