"""MiniCPM-V 4.6: Qwen3.5 that sees through SigLIP, slices of an image and the whole of it, 16 patches to a row."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.llava import VISION
from jaxllm.models.families.qwen3_next import names_of_qwen3_5, read_plain_qwen3_5
from jaxllm.models.families.vision import check_heads
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.merging_vision import AfterMergingPlan, MergingPlan
from jaxllm.models.towers.plan import TowerPlan, program_sizes
from jaxllm.models.towers.projectors import TwoLayerPlan

MERGE = 4
SLICE = 448
"""Pixels each way of a square crop; others have as many pixels, nearly."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    tower = _read_tower(file)
    return replace(read_plain_qwen3_5(file, architecture), tower=tower, mtp_layers=0)


def _read_tower(file: ConfigFile) -> TowerPlan:
    file.expect(downsample_mode="16x", merge_kernel_size=[2, 2], merger_times=1, drop_vision_last_layer=False)
    vision = (file.section("vision_config") or ConfigFile({}, file.source)).reading(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, image_size=224,
        patch_size=16,
    )  # fmt: skip
    vision.ignore("model_type", "attention_dropout", "initializer_range")
    vision.expect(window_kernel_size=[2, 2])
    check_heads(vision)
    patch_size, layers = vision.integer("patch_size"), vision.integer("num_hidden_layers")
    early = 1 + file.integer("insert_layer_id", vision.integer("insert_layer_id", 6, minimum=0), minimum=0)
    if early >= layers:
        raise file.wrong("insert_layer_id", f"less than {layers - 1}, the last layer")
    plan = MergingPlan(
        hidden_size=vision.integer("hidden_size"),
        intermediate_size=vision.integer("intermediate_size"),
        num_heads=vision.integer("num_attention_heads"),
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm=NormPlan(kind="layer", eps=vision.number("layer_norm_eps", 1e-6), bias=True),
        num_layers=layers,
        num_early=early,
        patch_size=patch_size,
        side=vision.integer("image_size") // patch_size,
        channels=vision.integer("num_channels", 3),
    )
    norm = NormPlan(kind="layer", eps=1e-6, bias=True)
    projector = TwoLayerPlan("gelu", norm=norm, inner_size=4 * plan.hidden_size)
    return TowerPlan(
        vision=plan,
        projector=AfterMergingPlan(projector),
        merge=MERGE,
        token_id=file.integer("image_token_id", minimum=0),
        sizes=program_sizes(most_patches(SLICE // patch_size), MERGE**2),
    )


def most_patches(side: int) -> int:
    """Patches of a crop at most: twice those of a square one of so many each way, in whole rows."""
    return 2 * side**2 // MERGE**2 * MERGE**2


def weight_names(config: ModelConfig) -> Names:
    """Names of the tensors of both models."""
    assert config.tower is not None
    plan, layer, merger = config.tower.vision, f"{VISION}.encoder.layers.*", f"{VISION}.vit_merger"
    assert isinstance(plan, MergingPlan)
    ours = {
        "attention_norm": "layer_norm1",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.out_proj",
        "mlp_norm": "layer_norm2",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    }
    parts = {"early": range(plan.num_early), "late": range(plan.num_early, plan.num_layers)}
    return {
        **names_of_qwen3_5(replace(config, tower=None)),
        "tower.vision.patches": Source(f"{VISION}.embeddings.patch_embedding", ConvolutionAsMatrix()),
        "tower.vision.positions": f"{VISION}.embeddings.position_embedding",
        "tower.vision.norm": f"{VISION}.post_layernorm",
        **{
            f"tower.vision.{part}.*.{name}": Source(f"{layer}.{theirs}", layers=numbers)
            for part, numbers in parts.items()
            for name, theirs in ours.items()
        },
        "tower.vision.merger.attention_norm": f"{merger}.layer_norm1",
        "tower.vision.merger.query": f"{merger}.self_attn.q_proj",
        "tower.vision.merger.key": f"{merger}.self_attn.k_proj",
        "tower.vision.merger.value": f"{merger}.self_attn.v_proj",
        "tower.vision.merger.output": f"{merger}.self_attn.out_proj",
        "tower.vision.merger.mlp_norm": f"{merger}.pre_norm",
        "tower.vision.merger.up": f"{merger}.linear_1",
        "tower.vision.merger.down": f"{merger}.linear_2",
        "tower.projector.norm": "merger.mlp.0.pre_norm",
        "tower.projector.first": "merger.mlp.0.linear_1",
        "tower.projector.second": "merger.mlp.0.linear_2",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed={**TEXT_PARTS, "model.vision_tower.": f"{VISION}.", "model.merger.": "merger."},
    other_parts=(f"{VISION}.", "merger.", "mtp."),
)
