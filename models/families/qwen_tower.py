"""Reading the configurations of Qwen's towers, and the names of their tensors."""

from collections.abc import Mapping

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import FramesAsMatrix, Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.merger import MergerPlan
from jaxllm.models.towers.plan import PixelPlan, TowerPlan
from jaxllm.models.towers.qwen_vision import QwenVisionPlan

PIXELS = PixelPlan((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Those of CLIP, which the image processor has by default."""
LAYER = NormPlan(kind="layer", eps=1e-6, bias=True)
RMS = NormPlan(eps=1e-6)
WITHOUT_EFFECT = ("model_type", "initializer_range", "in_chans", "spatial_patch_size", "tokens_per_second")
"""Names of code before transformers' for what is there under another name, and the times of videos."""


def read_qwen2_tower(file: ConfigFile) -> TowerPlan:
    """Qwen2-VL's, in `vision_config`."""
    vision = _section(file)
    size = vision.integer("embed_dim", 1280)
    plan = _plan(
        vision,
        size,
        norm=LAYER,
        intermediate_size=int(size * vision.number("mlp_ratio", 4)),
        activation=read_activation(vision, "hidden_act", "quick_gelu"),
    )
    _check_output(file, vision, "hidden_size", 3584)
    return _tower(file, plan, MergerPlan(norm=LAYER), 151_655)


def read_qwen2_5_tower(file: ConfigFile) -> TowerPlan:
    """Qwen2.5-VL's: windows in most layers, gated feed-forward blocks."""
    vision = _section(file)
    merge, patch = vision.integer("spatial_merge_size", 2), vision.integer("patch_size", 14)
    window = vision.integer("window_size", 112) // merge // patch
    if not window:
        raise vision.wrong("window_size", f"at least {merge * patch}, the pixels of {merge} patches")
    full = vision.integers("fullatt_block_indexes") if vision.has("fullatt_block_indexes") else [7, 15, 23, 31]
    plan = _plan(
        vision,
        vision.integer("hidden_size", 3584),
        norm=RMS,
        intermediate_size=vision.integer("intermediate_size", 3420),
        activation=read_activation(vision, "hidden_act", "silu"),
        is_gated=True,
        window=window,
        full_layers=tuple(full),
    )
    _check_output(file, vision, "out_hidden_size", 3584)
    return _tower(file, plan, MergerPlan(norm=RMS), 151_655)


def read_qwen3_tower(file: ConfigFile, taps: tuple[int, ...] = (8, 16, 24), token_id: int = 151_655) -> TowerPlan:
    """Qwen3-VL's and Qwen3.5's: learned positions, and hidden states of layers `taps` unless the file has others."""
    vision = _section(file)
    if vision.has("deepstack_visual_indexes"):
        taps = tuple(vision.integers("deepstack_visual_indexes"))
    positions = vision.integer("num_position_embeddings", 2304)
    plan = _plan(
        vision,
        vision.integer("hidden_size", 1152),
        norm=LAYER,
        intermediate_size=vision.integer("intermediate_size", 4304),
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        depth=27,
        patch_size=16,
        patch_bias=True,
        side=int(positions**0.5),
        taps=taps,
    )
    if plan.side**2 != positions:
        raise vision.wrong("num_position_embeddings", "a square number")
    if sorted(set(taps)) != list(taps) or any(not 0 <= tap < plan.num_layers for tap in taps):
        raise vision.wrong("deepstack_visual_indexes", f"ascending numbers below depth={plan.num_layers}")
    _check_output(file, vision, "out_hidden_size", 3584)
    return _tower(file, plan, MergerPlan(norm=LAYER, taps=len(taps)), token_id, row_parts=1 + len(taps))


def _section(file: ConfigFile) -> ConfigFile:
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    vision.ignore(*WITHOUT_EFFECT)
    return vision


def _plan(vision: ConfigFile, size: int, *, depth: int = 32, patch_size: int = 14, **options: object) -> QwenVisionPlan:
    """The plan, with what all of them have."""
    heads = vision.integer("num_heads", 16)
    if size % heads or size // heads % 4:
        raise vision.wrong("num_heads", f"so many that the size of heads, {size} / num_heads, is a multiple of 4")
    rope = vision.section("rope_parameters") or ConfigFile({}, vision.source)
    rope.expect(rope_type="axial")
    return QwenVisionPlan(
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


def _check_output(file: ConfigFile, vision: ConfigFile, key: str, default: int) -> None:
    """Raise `ModelError` where rows of images are not as wide as the language model."""
    text = file.section("text_config") or file
    wanted = text.integer("hidden_size", default)
    if vision.integer(key, default) != wanted:
        raise vision.wrong(key, f"{wanted}, the language model's hidden_size")


def _tower(file: ConfigFile, plan: QwenVisionPlan, merger: MergerPlan, token_id: int, row_parts: int = 1) -> TowerPlan:
    return TowerPlan(
        vision=plan,
        projector=merger,
        merge=plan.merge,
        token_id=file.integer("image_token_id", token_id, minimum=0),
        pixels=PIXELS,
        row_parts=row_parts,
    )


VISUAL = "model.visual"
RENAMED: Mapping[str, str] = {"model.language_model.": "model.", "visual.": f"{VISUAL}."}
"""Published checkpoints before transformers 5 have the parts at the top."""
OTHER_PARTS = (f"{VISUAL}.",)
MERGERS = {
    "former": {"norm": "ln_q", "up": "mlp.0", "down": "mlp.2"},
    "deep": {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"},
}
BLOCKS = {
    "plain": {"up": "fc1", "down": "fc2"},
    "gated": {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
    "deep": {"up": "linear_fc1", "down": "linear_fc2"},
}


def tower_names(config: ModelConfig) -> Names:
    """Names of the tower's tensors."""
    assert config.tower is not None
    plan = config.tower.vision
    assert isinstance(plan, QwenVisionPlan)
    layer = f"{VISUAL}.blocks.*"
    parts = fused(f"{layer}.attn.qkv", dict.fromkeys(("query", "key", "value"), plan.size))
    mlp = BLOCKS["gated" if plan.is_gated else "deep" if plan.side else "plain"]
    merger = MERGERS["deep" if plan.side else "former"]
    return {
        "tower.vision.patches": Source(f"{VISUAL}.patch_embed.proj", FramesAsMatrix(plan.frames, plan.channels)),
        "tower.vision.positions": f"{VISUAL}.pos_embed",
        "tower.vision.layers.*.attention_norm": f"{layer}.norm1",
        "tower.vision.layers.*.mlp_norm": f"{layer}.norm2",
        "tower.vision.layers.*.attention.output": f"{layer}.attn.proj",
        **{f"tower.vision.layers.*.attention.{part}": source for part, source in parts.items()},
        **{f"tower.vision.layers.*.{part}": f"{layer}.mlp.{name}" for part, name in mlp.items()},
        **{f"tower.projector.last.{part}": f"{VISUAL}.merger.{name}" for part, name in merger.items()},
        **{
            f"tower.projector.taps.*.{part}": f"{VISUAL}.deepstack_merger_list.*.{name}"
            for part, name in MERGERS["deep"].items()
        },
    }
