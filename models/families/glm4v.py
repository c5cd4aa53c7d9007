"""GLM-4.1V, GLM-4.5V and GLM-4.6V (arXiv 2507.01006): GLM-4 that sees, dense or with experts; and GLM-OCR."""

from dataclasses import replace

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import glm, glm4_moe
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import Family, Names, further_layers
from jaxllm.models.families.grid_towers import (
    VISUAL,
    block_names,
    check_output,
    grid_plan,
    tower_of,
    vision_section,
)
from jaxllm.models.families.qwen_tower import BLOCKS, RENAMED
from jaxllm.models.families.rotary import read_grid_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.grid_vision import GridVisionPlan
from jaxllm.models.towers.merger import GatedMergerPlan
from jaxllm.models.towers.plan import TowerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of a dense model."""
    tower, text = read_tower(file, 151_343), text_part(file)
    head_size = text.integer("hidden_size") // text.integer("num_attention_heads")
    sizes = {"head_dim": head_size, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
    text = text.reading(**sizes, partial_rotary_factor=1.0)
    return replace(glm.read_glm4(text, architecture, _rope(text, interleaved=True)), tower=tower)


def read_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """That with experts, whose halves of heads are rotated as elsewhere."""
    tower = read_tower(file, 151_363)
    sizes = {"max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "attention_bias": True}
    text = text_part(file).reading(**sizes, partial_rotary_factor=0.5)
    return replace(glm4_moe.read_config(text, architecture, _rope(text)), tower=tower)


def read_ocr(file: ConfigFile, architecture: str) -> ModelConfig:
    """GLM-OCR's: a dense model without biases, whose tower has norms of heads and no learned positions."""
    tower, text = _read_ocr_tower(file), text_part(file)
    # A layer after the last one that predicts a further token.
    text.ignore("num_nextn_predict_layers")
    heads = text.integer("num_attention_heads")
    sizes = {"head_dim": text.integer("hidden_size") // heads, "num_key_value_heads": 8, "attention_bias": False}
    text = text.reading(**sizes, rms_norm_eps=1e-5, partial_rotary_factor=1.0)
    text.expect(attention_bias=False)
    return replace(glm.read_glm4(text, architecture, _rope(text, interleaved=True)), tower=tower)


def _rope(text: ConfigFile, *, interleaved: bool = False) -> RopeConfig:
    return read_grid_rope(text, (8, 12, 12), mixed=False, interleaved=interleaved)


def read_tower(file: ConfigFile, token_id: int) -> TowerPlan:
    """The tower, in `vision_config`."""
    vision = vision_section(file).reading(num_heads=12)
    size, patch = vision.integer("hidden_size", 1536), vision.integer("patch_size", 14)
    norm = NormPlan(eps=vision.number("rms_norm_eps", 1e-5))
    activation = read_activation(vision, "hidden_act", "silu")
    plan = grid_plan(
        vision,
        size,
        depth=24,
        norm=norm,
        # What is called the intermediate size is the merger's.
        intermediate_size=vision.integer("out_hidden_size", 4096),
        activation=activation,
        is_gated=True,
        patch_bias=True,
        side=vision.integer("image_size", 336) // patch,
        interpolation="cubic",
        patch_norm=norm,
        last_norm=norm,
        qkv_bias=vision.boolean("attention_bias", False),
        bias=False,
    )
    check_output(file, vision, "out_hidden_size", 4096)
    merger = GatedMergerPlan(size=vision.integer("intermediate_size", 13696), activation=activation)
    return tower_of(file, plan, merger, token_id)


def _read_ocr_tower(file: ConfigFile) -> TowerPlan:
    vision = vision_section(file)
    vision.ignore("image_size")
    norm, bias = NormPlan(eps=vision.number("rms_norm_eps", 1e-5)), vision.boolean("attention_bias", True)
    activation, channels = read_activation(vision, "hidden_act", "silu"), vision.integer("in_channels", 3)
    plan = grid_plan(
        vision,
        vision.integer("hidden_size", 1024),
        depth=24,
        norm=norm,
        last_norm=norm,
        head_norm=norm,
        intermediate_size=vision.integer("intermediate_size", 4096),
        activation=activation,
        is_gated=True,
        patch_bias=True,
        qkv_bias=bias,
        bias=bias,
    )
    check_output(file, vision, "out_hidden_size", 1536)
    merger = GatedMergerPlan(size=vision.integer("out_hidden_size", 1536) * channels, activation=activation)
    return tower_of(file, plan, merger, 59_280)


def tower_names(config: ModelConfig) -> Names:
    """Names of the tower's tensors."""
    assert config.tower is not None
    plan = config.tower.vision
    assert isinstance(plan, GridVisionPlan)
    merger = f"{VISUAL}.merger"
    return {
        **block_names(plan, BLOCKS["gated"]),
        "tower.vision.layers.*.attention.query_norm": f"{VISUAL}.blocks.*.attn.q_norm",
        "tower.vision.layers.*.attention.key_norm": f"{VISUAL}.blocks.*.attn.k_norm",
        "tower.vision.positions": f"{VISUAL}.embeddings.position_embedding",
        "tower.vision.patch_norm": f"{VISUAL}.post_conv_layernorm",
        "tower.vision.last_norm": f"{VISUAL}.post_layernorm",
        "tower.projector.joint": Source(f"{VISUAL}.downsample", ConvolutionAsMatrix(plan.size)),
        "tower.projector.inner": f"{merger}.proj",
        "tower.projector.norm": f"{merger}.post_projection_norm",
        **{f"tower.projector.{part}": f"{merger}.{part}_proj" for part in ("gate", "up", "down")},
    }


def _other_parts(config: ModelConfig) -> tuple[str, ...]:
    return (f"{VISUAL}.", *further_layers(config))


FAMILY = Family(
    read_config,
    weight_names=lambda config: {**glm.glm4_names(config), **tower_names(config)},
    renamed=RENAMED,
    other_parts=_other_parts,
)
MOE = replace(FAMILY, read_config=read_moe, weight_names=lambda config: {**glm4_moe.NAMES, **tower_names(config)})
OCR = replace(FAMILY, read_config=read_ocr)
