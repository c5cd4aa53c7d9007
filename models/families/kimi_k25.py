"""Kimi-K2.5 (arXiv 2602.02276) and Kimi-VL (arXiv 2504.07491): DeepSeek V3 that sees through MoonViT.

Four patches become a row. Kimi-VL is in the format of its authors' code; transformers has none for it.
"""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, Fused, OfSquare, Source
from jaxllm.models.checkpoint.tower_tensors import AxialPairs
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import TEXT_PARTS, Names, further_layers
from jaxllm.models.families.vision import check_heads
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.grid_vision import GridVisionPlan
from jaxllm.models.towers.merger import MergerPlan
from jaxllm.models.towers.plan import TowerPlan

_NAMES = {
    "hidden_size": "vt_hidden_size", "intermediate_size": "vt_intermediate_size",
    "num_hidden_layers": "vt_num_hidden_layers", "num_attention_heads": "vt_num_attention_heads",
    "pos_emb_height": "init_pos_emb_height", "pos_emb_width": "init_pos_emb_width",
}  # fmt: skip
"""Names of transformers, and of the authors' own code."""
_DEFAULTS = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "pos_emb_height": 64, "pos_emb_width": 64, "patch_size": 14,
}  # fmt: skip


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    tower = _read_tower(file)
    return replace(deepseek.read_v3(text_part(file), architecture), tower=tower)


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = (file.section("vision_config") or ConfigFile({}, file.source)).reading(_NAMES, **_DEFAULTS)
    vision.ignore("model_type", "initializer_range", "pos_emb_time", "init_pos_emb_time", "*_hidden_size")
    vision.expect(
        merge_type="sd2_tpool", pos_emb_type="divided_fixed", video_attn_type="spatial_temporal",
        mm_projector_type="patchmerger", projector_hidden_act="gelu",
    )  # fmt: skip
    check_heads(vision)
    size, heads, side = (vision.integer(key) for key in ("hidden_size", "num_attention_heads", "pos_emb_height"))
    if size // heads % 4:
        raise vision.wrong("hidden_size", "four times as many for each head, for height and width to rotate pairs")
    if vision.integer("pos_emb_width") != side:
        raise vision.wrong("pos_emb_width", f"{side}, the height")
    if file.integer("projection_hidden_size", size) != size:
        raise file.wrong("projection_hidden_size", f"{size}, the vision model's hidden_size")
    kernel = vision.integers("merge_kernel_size") if vision.has("merge_kernel_size") else [2, 2]
    if len(kernel) != 2 or kernel[0] != kernel[1] or kernel[0] < 1:
        raise vision.wrong("merge_kernel_size", "height and width of a square")
    rope = vision.section("rope_parameters") or ConfigFile({}, file.source)
    rope.expect(rope_type="axial")
    norm, key = NormPlan(kind="layer", eps=1e-5, bias=True), "projection_layer_norm_eps"
    plan = GridVisionPlan(
        size=size,
        intermediate_size=vision.integer("intermediate_size"),
        num_layers=vision.integer("num_hidden_layers"),
        num_heads=heads,
        patch_size=vision.integer("patch_size"),
        merge=kernel[0],
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm=norm,
        last_norm=norm,
        patch_bias=True,
        theta=rope.positive("rope_theta", 10000.0),
        side=side,
        interpolation="cubic",
        frames=1,
    )
    eps = file.number(key) if file.has(key) else vision.number("projector_ln_eps", 1e-5)
    older = "media_placeholder_token_id"
    return TowerPlan(
        vision=plan,
        projector=MergerPlan(norm=replace(norm, eps=eps)),
        merge=plan.merge,
        token_id=file.integer(older if file.has(older) else "image_token_id", 163605, minimum=0),
    )


def names(config: ModelConfig) -> Names:
    """Names of the tensors of both models, as published."""
    text, tower, block = deepseek.weight_names(config), config.tower, "vision_tower.encoder.blocks.*"
    assert tower is not None
    assert isinstance(tower.vision, GridVisionPlan)
    sizes, head_size = (tower.vision.size,) * 3, tower.vision.head_size
    parts = [Fused(sizes, index) for index in range(3)]
    return {
        **text,
        "tower.vision.patches": Source("vision_tower.patch_embed.proj", ConvolutionAsMatrix()),
        "tower.vision.positions": Source("vision_tower.patch_embed.pos_emb", OfSquare(is_batch=False)),
        "tower.vision.last_norm": "vision_tower.encoder.final_layernorm",
        "tower.vision.layers.*.attention_norm": f"{block}.norm0",
        "tower.vision.layers.*.attention.query": Source(f"{block}.wqkv", AxialPairs(head_size, parts[0])),
        "tower.vision.layers.*.attention.key": Source(f"{block}.wqkv", AxialPairs(head_size, parts[1])),
        "tower.vision.layers.*.attention.value": Source(f"{block}.wqkv", parts[2]),
        "tower.vision.layers.*.attention.output": f"{block}.wo",
        "tower.vision.layers.*.mlp_norm": f"{block}.norm1",
        "tower.vision.layers.*.up": f"{block}.mlp.fc0",
        "tower.vision.layers.*.down": f"{block}.mlp.fc1",
        "tower.projector.last.norm": "mm_projector.pre_norm",
        "tower.projector.last.up": "mm_projector.proj.0",
        "tower.projector.last.down": "mm_projector.proj.2",
    }


def _other_parts(config: ModelConfig) -> tuple[str, ...]:
    return (*further_layers(config), "vision_tower.", "mm_projector.")


FAMILY = replace(
    deepseek.V3,
    read_config=read_config,
    weight_names=names,
    renamed={
        # As transformers 5.24 writes what it read by the published names.
        "language_model.model.blocks.": "model.layers.",
        "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
        "model.mm_projector.": "mm_projector.",
        **TEXT_PARTS,
    },
    other_parts=_other_parts,
)

KIMI_VL = replace(
    FAMILY,
    renamed={
        "multi_modal_projector.pre_norm.": "mm_projector.pre_norm.",
        "multi_modal_projector.linear_1.": "mm_projector.proj.0.",
        "multi_modal_projector.linear_2.": "mm_projector.proj.2.",
        **TEXT_PARTS,
    },
    like="Kimi_K25",
)
