"""DeepSeek-OCR 2 (arXiv 2601.20552): as its first version, but learned queries read what SAM's vision model makes.

In the format of transformers, and in that of the authors. Tensors are called as in the latter.
"""

from dataclasses import replace
from math import isqrt

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek
from jaxllm.models.families.common import text_part
from jaxllm.models.families.deepseek_ocr import (
    NAMES,
    PROJECTOR,
    RENAMED,
    SAM,
    TEXT,
    make_tower,
    published_text,
    read_published,
)
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.families.sam import STRIDE, read_sam
from jaxllm.models.families.vision import check_heads
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.query_encoder import QueryEncoderPlan

_QUERIES = (144, 256)
"""Of tiles, and of whole images."""
_PUBLISHED = {
    "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "max_position_embeddings": 131072, "rope_theta": 1e6,
}  # fmt: skip
"""What the authors' code says about the encoder; the configuration has only its size."""
_ENCODER = {
    "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "max_position_embeddings": 32768,
}  # fmt: skip


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configurations of the language model in `text_config`, and the tower's."""
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    sam = vision.section("sam_config") or ConfigFile({}, file.source)
    encoder = (vision.section("encoder_config") or ConfigFile({}, file.source)).reading(**_ENCODER)
    # Half of the size, which nothing asks for.
    sam.ignore("scale")
    encoder.expect(use_sliding_window=False, layer_types=["full_attention"] * encoder.integer("num_hidden_layers"))
    encoder.ignore("vocab_size", "max_window_layers", "sliding_window")
    channels = sam.integers("downsample_channels") if sam.has("downsample_channels") else [512, 896]
    if channels[1:] != [encoder.integer("hidden_size")]:
        raise sam.wrong("downsample_channels", "two numbers, the second being the encoder's hidden_size")
    tower = _with_queries(file, sam, encoder, channels[0])
    return replace(deepseek.read_plain_v2(text_part(file).reading(**TEXT), architecture), tower=tower)


def read_published_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The same in the authors' format."""
    width, sam, channels = read_published(file)
    encoder = (width.section("qwen2-0-5b") or ConfigFile({}, file.source)).reading({"hidden_size": "dim"})
    encoder = encoder.reading(hidden_size=896, **_PUBLISHED)
    return replace(published_text(file, architecture), tower=_with_queries(file, sam, encoder, channels[0]))


def _with_queries(file: ConfigFile, sam: ConfigFile, encoder: ConfigFile, channels: int) -> TowerPlan:
    check_heads(encoder)
    plan, (tile, whole) = read_sam(sam), (STRIDE * isqrt(count) for count in _QUERIES)
    if plan.side != whole:
        raise sam.wrong("image_size", f"{whole} * patch_size={plan.patch_size}")
    heads = encoder.integer("num_attention_heads")
    kv_heads = encoder.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise encoder.wrong("num_key_value_heads", f"a divisor of num_attention_heads={heads}")
    queries = QueryEncoderPlan(
        size=encoder.integer("hidden_size"),
        inner_channels=channels,
        num_queries=_QUERIES,
        intermediate_size=encoder.integer("intermediate_size"),
        num_layers=encoder.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        rope=read_rope(encoder),
        activation=read_activation(encoder, "hidden_act", "silu"),
        norm=NormPlan(eps=encoder.number("rms_norm_eps", 1e-6)),
    )
    return make_tower(file, plan, queries, tile)


_LAYER = "model.qwen2_model.model.model.layers.*"
WEIGHT_NAMES: Names = {
    **NAMES,
    "tower.projector.queries.*": Source("model.qwen2_model.query_*", layers=("768", "1024")),
    "tower.projector.layers.*.attention_norm": f"{_LAYER}.input_layernorm",
    "tower.projector.layers.*.query": f"{_LAYER}.self_attn.q_proj",
    "tower.projector.layers.*.key": f"{_LAYER}.self_attn.k_proj",
    "tower.projector.layers.*.value": f"{_LAYER}.self_attn.v_proj",
    "tower.projector.layers.*.output": f"{_LAYER}.self_attn.o_proj",
    "tower.projector.layers.*.mlp_norm": f"{_LAYER}.post_attention_layernorm",
    "tower.projector.layers.*.mlp.gate": f"{_LAYER}.mlp.gate_proj",
    "tower.projector.layers.*.mlp.up": f"{_LAYER}.mlp.up_proj",
    "tower.projector.layers.*.mlp.down": f"{_LAYER}.mlp.down_proj",
    "tower.projector.norm": "model.qwen2_model.model.model.norm",
}

FAMILY = Family(
    read_config,
    weight_names=WEIGHT_NAMES,
    renamed={**RENAMED, "model.vision_tower.vision_encoder.": "model.qwen2_model.model.model."},
    other_parts=(f"{SAM}.", "model.qwen2_model.", f"{PROJECTOR}.", "model.view_seperator"),
)
PUBLISHED = replace(FAMILY, read_config=read_published_config, like="DeepseekOcr2")
