"""GOT-OCR 2 (arXiv 2409.01704): Qwen2 that sees through SAM's vision model, 16 patches to a row."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, OfSquare, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.llava import PARTS, PROJECTOR, SEEING_PARTS, VISION, image_token_id
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import CLIP_PIXELS
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.sam import SamPlan, StridedPlan

_TEXT_DEFAULTS = {
    "model_type": "qwen2", "vocab_size": 151860, "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "tie_word_embeddings": True,
    "rope_theta": 1000000.0,
}  # fmt: skip
_MERGE = 4


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    file = file.reading(text_config=_TEXT_DEFAULTS)
    return replace(read_text_model(file, architecture, "qwen2"), tower=_read_tower(file))


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    vision.ignore("model_type", "attention_dropout", "initializer_range")
    size, heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 12)
    if size % heads:
        raise vision.wrong("hidden_size", f"a multiple of num_attention_heads={heads}")
    image_size, patch_size = vision.integer("image_size", 1024), vision.integer("patch_size", 16)
    if image_size % (patch_size * _MERGE):
        raise vision.wrong("image_size", f"a multiple of {_MERGE} * patch_size={patch_size}")
    num_layers = vision.integer("num_hidden_layers", 12)
    plan = SamPlan(
        hidden_size=vision.integer("output_channels", 256),
        inner_size=size,
        intermediate_size=vision.integer("mlp_dim", 3072),
        num_layers=num_layers,
        num_heads=heads,
        patch_size=patch_size,
        side=image_size // patch_size,
        window=vision.integer("window_size", 14),
        whole=tuple(vision.integers("global_attn_indexes") if vision.has("global_attn_indexes") else (2, 5, 8, 11)),
        activation=read_activation(vision, "hidden_act", "gelu"),
        norm=NormPlan(kind="layer", eps=vision.number("layer_norm_eps", 1e-6), bias=True),
        qkv_bias=vision.boolean("qkv_bias", True),
        has_positions=vision.boolean("use_abs_pos", True),
        is_relative=vision.boolean("use_rel_pos", True),
        channels=vision.integer("num_channels", 3),
    )
    return TowerPlan(
        vision=plan,
        projector=StridedPlan(),
        merge=_MERGE,
        token_id=image_token_id(file, 151859),
        sizes=(plan.side**2,),
        side=plan.side,
        pixels=CLIP_PIXELS,
    )


_LAYER = f"{VISION}.layers.*"
NAMES: Names = {
    **TEXT_NAMES,
    "tower.vision.patches": Source(f"{VISION}.patch_embed.projection", ConvolutionAsMatrix()),
    "tower.vision.positions": Source(f"{VISION}.pos_embed", OfSquare(), {"weight": ""}),
    "tower.vision.layers.*.attention_norm": f"{_LAYER}.layer_norm1",
    "tower.vision.layers.*.attention.qkv": f"{_LAYER}.attn.qkv",
    "tower.vision.layers.*.attention.output": f"{_LAYER}.attn.proj",
    "tower.vision.layers.*.attention.by_height": Source(f"{_LAYER}.attn.rel_pos_h", endings={"weight": ""}),
    "tower.vision.layers.*.attention.by_width": Source(f"{_LAYER}.attn.rel_pos_w", endings={"weight": ""}),
    "tower.vision.layers.*.mlp_norm": f"{_LAYER}.layer_norm2",
    "tower.vision.layers.*.up": f"{_LAYER}.mlp.lin1",
    "tower.vision.layers.*.down": f"{_LAYER}.mlp.lin2",
    # A convolution of single patches.
    "tower.vision.neck": Source(f"{VISION}.neck.conv1", ConvolutionAsMatrix(None)),
    "tower.vision.neck_norm": f"{VISION}.neck.layer_norm1",
    "tower.vision.mix": f"{VISION}.neck.conv2",
    "tower.vision.mix_norm": f"{VISION}.neck.layer_norm2",
    "tower.projector.first": f"{PROJECTOR}.conv_upsampler1",
    "tower.projector.second": f"{PROJECTOR}.conv_upsampler2",
    "tower.projector.linear": f"{PROJECTOR}.multimodal_projector",
}

FAMILY = Family(read_config, weight_names=NAMES, renamed=PARTS, other_parts=SEEING_PARTS)
