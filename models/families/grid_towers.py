"""What the configurations of towers for images of any size have in common, and the names of their tensors."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import FramesAsMatrix, Source, fused
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.grid_vision import GridVisionPlan
from jaxllm.models.towers.plan import PixelPlan, ProjectorPlan, TowerPlan

PIXELS = PixelPlan((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Those of CLIP, which the image processors have by default."""
LAYER = NormPlan(kind="layer", eps=1e-6, bias=True)
WITHOUT_EFFECT = ("model_type", "initializer_range", "in_chans", "spatial_patch_size", "tokens_per_second")
"""Names of code before transformers' for what is there under another name, and times where videos need none."""
VISUAL = "model.visual"


def vision_section(file: ConfigFile) -> ConfigFile:
    """The part of a configuration about the tower."""
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    vision.ignore(*WITHOUT_EFFECT)
    return vision


def grid_plan(
    vision: ConfigFile, size: int, *, depth: int = 32, patch_size: int = 14, **options: object
) -> GridVisionPlan:
    """The plan, with what all of them have."""
    heads = vision.integer("num_heads", 16)
    if size % heads or size // heads % 4:
        raise vision.wrong("num_heads", f"so many that the size of heads, {size} / num_heads, is a multiple of 4")
    rope = vision.section("rope_parameters") or ConfigFile({}, vision.source)
    rope.expect(rope_type="axial")
    return GridVisionPlan(
        size=size,
        num_layers=vision.integer("depth", depth),
        num_heads=heads,
        patch_size=vision.integer("patch_size", patch_size),
        merge=vision.integer("spatial_merge_size", 2),
        frames=vision.integer("temporal_patch_size", 2),
        channels=vision.integer("in_channels", 3),
        theta=rope.positive("rope_theta", 10000.0),
        **options,  # type: ignore[arg-type]
    )


def check_output(file: ConfigFile, vision: ConfigFile, key: str, default: int) -> None:
    """Raise `ModelError` where rows of images are not as wide as the language model."""
    text = file.section("text_config") or file
    wanted = text.integer("hidden_size", default)
    if vision.integer(key, default) != wanted:
        raise vision.wrong(key, f"{wanted}, the language model's hidden_size")


def tower_of(
    file: ConfigFile,
    plan: GridVisionPlan,
    merger: ProjectorPlan,
    token_id: int,
    row_parts: int = 1,
    video_token_id: int | None = None,
) -> TowerPlan:
    """The tower of these, whose tokens have these ids unless the file says otherwise; without one, videos have none."""
    return TowerPlan(
        vision=plan,
        projector=merger,
        merge=plan.merge,
        token_id=file.integer("image_token_id", token_id, minimum=0),
        video_token_id=None if video_token_id is None else file.integer("video_token_id", video_token_id, minimum=0),
        frames=plan.frames,
        pixels=PIXELS,
        row_parts=row_parts,
    )


def block_names(plan: GridVisionPlan, mlp: dict[str, str]) -> dict[str, str | Source]:
    """Names of the embedding of patches and of the layers; `mlp` are those of the latter's last products."""
    layer = f"{VISUAL}.blocks.*"
    parts = fused(f"{layer}.attn.qkv", dict.fromkeys(("query", "key", "value"), plan.size))
    return {
        "tower.vision.patches": Source(f"{VISUAL}.patch_embed.proj", FramesAsMatrix(plan.frames, plan.channels)),
        "tower.vision.layers.*.attention_norm": f"{layer}.norm1",
        "tower.vision.layers.*.mlp_norm": f"{layer}.norm2",
        "tower.vision.layers.*.attention.output": f"{layer}.attn.proj",
        **{f"tower.vision.layers.*.attention.{part}": source for part, source in parts.items()},
        **{f"tower.vision.layers.*.{part}": f"{layer}.mlp.{name}" for part, name in mlp.items()},
    }
