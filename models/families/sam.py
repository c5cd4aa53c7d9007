"""SAM's vision model (arXiv 2304.02643), which several families see through."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, OfSquare, Source
from jaxllm.models.families.family import Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.sam import SamPlan

STRIDE = 4
"""Patches each way that become one after two convolutions."""


def read_sam(vision: ConfigFile) -> SamPlan:
    """The plan of a section of a configuration. Raises `ModelError`."""
    vision.ignore("model_type", "attention_dropout", "initializer_range")
    size, heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 12)
    if size % heads:
        raise vision.wrong("hidden_size", f"a multiple of num_attention_heads={heads}")
    image_size, patch_size = vision.integer("image_size", 1024), vision.integer("patch_size", 16)
    if image_size % (patch_size * STRIDE):
        raise vision.wrong("image_size", f"a multiple of {STRIDE} * patch_size={patch_size}")
    return SamPlan(
        hidden_size=vision.integer("output_channels", 256),
        inner_size=size,
        intermediate_size=vision.integer("mlp_dim", int(size * vision.positive("mlp_ratio", 4.0))),
        num_layers=vision.integer("num_hidden_layers", 12),
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


def sam_names(prefix: str) -> Names:
    """Names of its tensors in a checkpoint of transformers that calls it `prefix`."""
    return _names(
        prefix, f"{prefix}.layers.*", ("layer_norm1", "layer_norm2"), "patch_embed.projection",
        ("neck.conv1", "neck.layer_norm1", "neck.conv2", "neck.layer_norm2"),
    )  # fmt: skip


def published_sam_names(prefix: str) -> Names:
    """The same where they are called as in SAM's own code."""
    return _names(
        prefix, f"{prefix}.blocks.*", ("norm1", "norm2"), "patch_embed.proj", ("neck.0", "neck.1", "neck.2", "neck.3")
    )


def _names(prefix: str, layer: str, norms: tuple[str, str], patches: str, neck: tuple[str, str, str, str]) -> Names:
    itself = {"weight": ""}
    first, first_norm, second, second_norm = (f"{prefix}.{name}" for name in neck)
    return {
        "tower.vision.patches": Source(f"{prefix}.{patches}", ConvolutionAsMatrix()),
        "tower.vision.positions": Source(f"{prefix}.pos_embed", OfSquare(), itself),
        "tower.vision.layers.*.attention_norm": f"{layer}.{norms[0]}",
        "tower.vision.layers.*.attention.qkv": f"{layer}.attn.qkv",
        "tower.vision.layers.*.attention.output": f"{layer}.attn.proj",
        "tower.vision.layers.*.attention.by_height": Source(f"{layer}.attn.rel_pos_h", endings=itself),
        "tower.vision.layers.*.attention.by_width": Source(f"{layer}.attn.rel_pos_w", endings=itself),
        "tower.vision.layers.*.mlp_norm": f"{layer}.{norms[1]}",
        "tower.vision.layers.*.up": f"{layer}.mlp.lin1",
        "tower.vision.layers.*.down": f"{layer}.mlp.lin2",
        # A convolution of single patches.
        "tower.vision.neck": Source(first, ConvolutionAsMatrix(None)),
        "tower.vision.neck_norm": first_norm,
        "tower.vision.mix": second,
        "tower.vision.mix_norm": second_norm,
    }
