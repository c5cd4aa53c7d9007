"""Reading the configurations of Qwen's towers, and the names of their tensors."""

from collections.abc import Mapping
from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Names
from jaxllm.models.families.grid_towers import (
    LAYER,
    VISUAL,
    block_names,
    check_output,
    grid_plan,
    tower_of,
    vision_section,
)
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.grid_vision import GridVisionPlan
from jaxllm.models.towers.merger import MergerPlan
from jaxllm.models.towers.plan import TowerPlan

RMS = NormPlan(eps=1e-6)


def read_qwen2_tower(file: ConfigFile) -> TowerPlan:
    """Qwen2-VL's, in `vision_config`."""
    vision = vision_section(file)
    size = vision.integer("embed_dim", 1280)
    plan = grid_plan(
        vision,
        size,
        norm=LAYER,
        intermediate_size=int(size * vision.number("mlp_ratio", 4)),
        activation=read_activation(vision, "hidden_act", "quick_gelu"),
    )
    check_output(file, vision, "hidden_size", 3584)
    return tower_of(file, plan, MergerPlan(norm=LAYER), 151_655, video_token_id=151_656)


def read_qwen2_5_tower(file: ConfigFile) -> TowerPlan:
    """Qwen2.5-VL's: windows in most layers, gated feed-forward blocks."""
    vision = vision_section(file)
    merge, patch = vision.integer("spatial_merge_size", 2), vision.integer("patch_size", 14)
    window = vision.integer("window_size", 112) // merge // patch
    if not window:
        raise vision.wrong("window_size", f"at least {merge * patch}, the pixels of {merge} patches")
    full = vision.integers("fullatt_block_indexes") if vision.has("fullatt_block_indexes") else [7, 15, 23, 31]
    plan = grid_plan(
        vision,
        vision.integer("hidden_size", 3584),
        norm=RMS,
        intermediate_size=vision.integer("intermediate_size", 3420),
        activation=read_activation(vision, "hidden_act", "silu"),
        is_gated=True,
        window=window,
        full_layers=tuple(full),
    )
    check_output(file, vision, "out_hidden_size", 3584)
    tower = tower_of(file, plan, MergerPlan(norm=RMS), 151_655, video_token_id=151_656)
    return replace(tower, tokens_per_second=vision.integer("tokens_per_second", 4))


def read_qwen3_tower(file: ConfigFile, taps: tuple[int, ...] = (8, 16, 24), token_id: int = 151_655) -> TowerPlan:
    """Qwen3-VL's and Qwen3.5's: learned positions, and hidden states of layers `taps` unless the file has others."""
    vision = vision_section(file)
    if vision.has("deepstack_visual_indexes"):
        taps = tuple(vision.integers("deepstack_visual_indexes"))
    positions = vision.integer("num_position_embeddings", 2304)
    plan = grid_plan(
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
    check_output(file, vision, "out_hidden_size", 3584)
    merger = MergerPlan(norm=LAYER, taps=len(taps))
    # All of these have the token of videos next.
    return tower_of(file, plan, merger, token_id, row_parts=1 + len(taps), video_token_id=token_id + 1)


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
    assert isinstance(plan, GridVisionPlan)
    merger = MERGERS["deep" if plan.side else "former"]
    return {
        **block_names(plan, BLOCKS["gated" if plan.is_gated else "deep" if plan.side else "plain"]),
        "tower.vision.positions": f"{VISUAL}.pos_embed",
        **{f"tower.projector.last.{part}": f"{VISUAL}.merger.{name}" for part, name in merger.items()},
        **{
            f"tower.projector.taps.*.{part}": f"{VISUAL}.deepstack_merger_list.*.{name}"
            for part, name in MERGERS["deep"].items()
        },
    }
