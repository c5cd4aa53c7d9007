"""DeepSeek-OCR (arXiv 2510.18234): DeepSeek V2 with Llama's attention, which sees through SAM and CLIP.

CLIP gets one patch in 16 of what SAM's vision model makes. Only its authors have a format for it, whose names of
tensors DeepSeek-OCR 2 has, too.
"""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import AsRow, Fused, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek
from jaxllm.models.families.family import LLAMA_NAMES, TEXT_PARTS, Family, Names
from jaxllm.models.families.llava import image_token_id
from jaxllm.models.families.sam import STRIDE, published_sam_names, read_sam
from jaxllm.models.families.vision import check_heads
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import ProjectorPlan, TowerPlan
from jaxllm.models.towers.sam import SamPlan
from jaxllm.models.towers.second_vision import SecondVisionPlan

TEXT = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "n_routed_experts": 64, "moe_intermediate_size": 1407, "eos_token_id": 2,
}  # fmt: skip
_SHORT = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}
"""What the authors' configuration calls sizes."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configurations of the language model in `language_config`, and the tower's."""
    width, sam, channels = read_published(file)
    clip = (width.section("clip-l-14-224") or ConfigFile({}, file.source)).reading(_SHORT)
    clip = clip.reading(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, image_size=224, patch_size=14)
    check_heads(clip)
    plan, size = read_sam(sam), clip.integer("hidden_size")
    if channels[1:] != [size]:
        raise sam.wrong("downsample_channels", f"two numbers, the second being {size}, the size of CLIP")
    second = SecondVisionPlan(
        hidden_size=size,
        intermediate_size=4 * size,
        num_heads=clip.integer("num_attention_heads"),
        activation="quick_gelu",
        norm=NormPlan(kind="layer", eps=1e-5, bias=True),
        num_layers=clip.integer("num_hidden_layers"),
        side=clip.integer("image_size") // clip.integer("patch_size"),
        inner_channels=channels[0],
    )
    # Tiles of 640 pixels for images of 1024.
    tower = make_tower(file, plan, second, plan.side * 5 // 8)
    return replace(published_text(file, architecture), tower=replace(tower, has_learned_row=True))


def read_published(file: ConfigFile) -> tuple[ConfigFile, ConfigFile, list[int]]:
    """Sizes of what sees, SAM's as transformers calls them, and the channels that convolutions after it give."""
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    # `mlp_ratio` is of neither model.
    vision.ignore("model_name", "mlp_ratio")
    width = vision.section("width") or ConfigFile({}, file.source)
    sam = (width.section("sam_vit_b") or ConfigFile({}, file.source)).reading(_SHORT)
    sam = sam.reading(image_size=vision.integer("image_size", 1024))
    projector = file.section("projector_config") or ConfigFile({}, file.source)
    projector.expect(projector_type="linear")
    projector.ignore("input_dim", "n_embed")
    return width, sam, sam.integers("downsample_channels") if sam.has("downsample_channels") else [512, 1024]


def published_text(file: ConfigFile, architecture: str) -> ModelConfig:
    """The language model in a configuration of the authors' format."""
    text = file.section("language_config") or ConfigFile({}, file.source)
    # The whole repeats it. Where tiles stand, the tower and the placeholders say.
    file.ignore(*text.values, "candidate_resolutions", "global_view_pos", "tile_tag")
    text.ignore("lm_head", "rm_head", "v_head_dim")
    return deepseek.read_plain_v2(text.reading(**TEXT), architecture)


def make_tower(file: ConfigFile, plan: SamPlan, projector: ProjectorPlan, tile_side: int) -> TowerPlan:
    """The tower: of every crop there is a learned row that stands after an image."""
    return TowerPlan(
        vision=plan,
        projector=projector,
        merge=STRIDE,
        token_id=image_token_id(file, 128815),
        sizes=(tile_side**2, plan.side**2),
        side=plan.side,
        tile_side=tile_side,
        class_rows=1,
    )


SAM, CLIP, PROJECTOR = "model.sam_model", "model.vision_model", "model.projector"
_ITSELF = {"weight": ""}
NAMES: Names = {
    **LLAMA_NAMES,
    **deepseek.SHARING_EXPERTS,
    **published_sam_names(SAM),
    "tower.projector.strides.first": f"{SAM}.net_2",
    "tower.projector.strides.second": f"{SAM}.net_3",
    "tower.projector.linear": f"{PROJECTOR}.layers",
    "tower.projector.separator": Source("model.view_seperator", AsRow(), _ITSELF),
}
"""Of both models."""


def weight_names(config: ModelConfig) -> Names:
    """Names of the tensors."""
    assert config.tower is not None
    assert isinstance(config.tower.projector, SecondVisionPlan)
    layer, sizes = f"{CLIP}.transformer.layers.*", (config.tower.projector.hidden_size,) * 3
    parts = {
        f"tower.projector.layers.*.attention.{part}": Source(f"{layer}.self_attn.qkv_proj", Fused(sizes, index))
        for index, part in enumerate(("query", "key", "value"))
    }
    return {
        **NAMES,
        **parts,
        "tower.learned_row": Source("model.image_newline", AsRow(), _ITSELF),
        "tower.projector.class_token": Source(f"{CLIP}.embeddings.class_embedding", AsRow(), _ITSELF),
        "tower.projector.positions": f"{CLIP}.embeddings.position_embedding",
        # The name in checkpoints.
        "tower.projector.first_norm": f"{CLIP}.pre_layrnorm",
        "tower.projector.layers.*.attention_norm": f"{layer}.layer_norm1",
        "tower.projector.layers.*.attention.output": f"{layer}.self_attn.out_proj",
        "tower.projector.layers.*.mlp_norm": f"{layer}.layer_norm2",
        "tower.projector.layers.*.mlp.up": f"{layer}.mlp.fc1",
        "tower.projector.layers.*.mlp.down": f"{layer}.mlp.fc2",
    }


RENAMED = {
    **TEXT_PARTS,
    "model.vision_tower.sam_encoder.": f"{SAM}.",
    "model.multi_modal_projector.": f"{PROJECTOR}.layers.",
}
"""What adapters may call parts, after transformers."""

FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed={**RENAMED, "model.vision_tower.vision_encoder.encoder.": f"{CLIP}.transformer."},
    # What CLIP would embed patches with.
    ignored_tensors=(".rotary_emb.inv_freq", ".patch_embedding.weight"),
    other_parts=(f"{SAM}.", f"{CLIP}.", f"{PROJECTOR}.", "model.view_seperator", "model.image_newline"),
    like="UnlimitedOcr",
)
"""It computes what Unlimited-OCR does, but that all tokens see all before them."""
