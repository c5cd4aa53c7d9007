"""Vision models that several families see through: CLIP, SigLIP and Pixtral."""

from collections.abc import Sequence
from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import AsRow, ConvolutionAsMatrix, Source
from jaxllm.models.families.family import Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import PixelPlan
from jaxllm.models.towers.vision_transformer import TransformerPlan, vision_names

CLIP, SIGLIP, PIXTRAL = "clip_vision_model", "siglip_vision_model", "pixtral"

CLIP_PIXELS = PixelPlan(
    mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), rescale=1 / 255
)
"""What CLIP's image processor, and many after it, do unless their files say otherwise."""

_UNUSED = (
    "attention_dropout", "dropout", "initializer_*", "model_type", "projection_dim", "vocab_size",
    "vision_use_head", "tie_word_embeddings",
)  # fmt: skip
"""Options of what only training and other uses of a vision model have."""


def taken_layers(file: ConfigFile, key: str, num_layers: int, default: int) -> tuple[int, ...]:
    """The layers whose outputs a projector gets: one, or a list; 0 is what the first layer gets. Raises `ModelError`.

    Negative numbers count from the end.
    """
    given = file.values.get(key, default)
    numbers = file.integers(key) if isinstance(given, list) else [file.integer(key, default, minimum=-num_layers - 1)]
    found = tuple(number if number >= 0 else num_layers + 1 + number for number in numbers)
    if not found or not all(0 <= number <= num_layers for number in found) or max(found) == 0:
        lowest = -num_layers - 1
        raise file.wrong(
            key, f"numbers from {lowest} to {num_layers}, not only 0 or {lowest}, which is the first layer's input"
        )
    return found


def read_clip(vision: ConfigFile, layers: Sequence[int] | None, *, keeps_class: bool) -> TransformerPlan:
    """CLIP (arXiv 2103.00020), with the outputs of these layers, or all and the last norm."""
    vision = vision.reading(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, image_size=224,
        patch_size=32, hidden_act="quick_gelu", layer_norm_eps=1e-5,
    )  # fmt: skip
    plan = _read(vision, layers)
    return replace(plan, patch_bias=False, class_token=True, keeps_class=keeps_class, has_first_norm=True)


def read_siglip(vision: ConfigFile, layers: Sequence[int] | None) -> TransformerPlan:
    """SigLIP (arXiv 2303.15343), likewise."""
    vision = vision.reading(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, image_size=224,
        patch_size=16, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6,
    )  # fmt: skip
    return _read(vision, layers)


def check_heads(vision: ConfigFile) -> None:
    """Raise `ModelError` unless heads share the hidden size evenly."""
    heads = vision.integer("num_attention_heads")
    if vision.integer("hidden_size") % heads:
        raise vision.wrong("hidden_size", f"a multiple of num_attention_heads={heads}")


def _read(vision: ConfigFile, layers: Sequence[int] | None) -> TransformerPlan:
    vision.ignore(*_UNUSED)
    check_heads(vision)
    patch_size, image_size = vision.integer("patch_size"), vision.integer("image_size")
    if image_size < patch_size:
        raise vision.wrong("image_size", f"at least patch_size={patch_size}")
    return TransformerPlan(
        hidden_size=vision.integer("hidden_size"),
        intermediate_size=vision.integer("intermediate_size"),
        num_layers=vision.integer("num_hidden_layers") if layers is None else max(layers),
        num_heads=vision.integer("num_attention_heads"),
        patch_size=patch_size,
        side=image_size // patch_size,
        activation=read_activation(vision, "hidden_act", "gelu"),
        norm=NormPlan(kind="layer", eps=vision.number("layer_norm_eps"), bias=True),
        channels=vision.integer("num_channels", 3),
        has_last_norm=layers is None,
        taken_layers=tuple(layers or ()),
    )


def clip_names(prefix: str) -> Names:
    """Names of the tensors of CLIP, and of SigLIP, in a checkpoint that calls them `prefix`."""
    return {
        **vision_names(prefix),
        "tower.vision.patches": Source(f"{prefix}.embeddings.patch_embedding", ConvolutionAsMatrix()),
        "tower.vision.class_token": Source(f"{prefix}.embeddings.class_embedding", AsRow(), {"weight": ""}),
        # The name in checkpoints.
        "tower.vision.first_norm": f"{prefix}.pre_layrnorm",
    }


def read_pixtral(vision: ConfigFile, layers: Sequence[int] | None) -> TransformerPlan:
    """Pixtral's vision model (arXiv 2410.07073), with the outputs of these layers, or the last one's."""
    vision = vision.reading(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=1024,
        patch_size=16, hidden_act="gelu", layer_norm_eps=1e-5,
    )  # fmt: skip
    rope = vision.section("rope_parameters") or vision
    if rope.text("rope_type", "axial") not in ("axial", "default"):
        # The latter in files of the first transformers 5.
        raise rope.wrong("rope_type", "'axial'")
    vision.ignore("head_dim")
    plan = replace(
        _read(vision, layers),
        norm=NormPlan(eps=1e-5),
        qkv_bias=False,
        bias=False,
        patch_bias=False,
        is_gated=True,
        has_positions=False,
        rotation="axes",
        rope_theta=rope.positive("rope_theta", 10000.0),
        has_first_norm=True,
        has_last_norm=False,
    )
    if plan.head_size % 4:
        raise vision.wrong("hidden_size", "four times as many for each head, for height and width to rotate pairs")
    return plan


def pixtral_names(prefix: str) -> Names:
    """Names of Pixtral's tensors in a checkpoint that calls them `prefix`."""
    layer = f"{prefix}.transformer.layers.*"
    return {
        "tower.vision.patches": Source(f"{prefix}.patch_conv", ConvolutionAsMatrix()),
        "tower.vision.first_norm": f"{prefix}.ln_pre",
        "tower.vision.layers.*.attention_norm": f"{layer}.attention_norm",
        "tower.vision.layers.*.attention.query": f"{layer}.attention.q_proj",
        "tower.vision.layers.*.attention.key": f"{layer}.attention.k_proj",
        "tower.vision.layers.*.attention.value": f"{layer}.attention.v_proj",
        "tower.vision.layers.*.attention.output": f"{layer}.attention.o_proj",
        "tower.vision.layers.*.mlp_norm": f"{layer}.ffn_norm",
        "tower.vision.layers.*.mlp.gate": f"{layer}.feed_forward.gate_proj",
        "tower.vision.layers.*.mlp.up": f"{layer}.feed_forward.up_proj",
        "tower.vision.layers.*.mlp.down": f"{layer}.feed_forward.down_proj",
    }
