"""PaddleOCR-VL (arXiv 2510.14528): a small ERNIE that reads images through SigLIP with rotated places."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import ConvolutionAsMatrix, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, text_part, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.grid_towers import VISUAL, grid_plan, tower_of, vision_section
from jaxllm.models.families.rotary import read_grid_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.merger import MergerPlan
from jaxllm.models.towers.plan import TowerPlan

DEFAULTS = {"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration; that of the language model may be at the top."""
    tower, text = _read_tower(file), text_part(file)
    # Of the authors' own code.
    text.ignore("compression_ratio", "ignored_index", "weight_share_add_bias", "use_flash_attention")
    text.expect(use_3d_rope=True, rope_is_neox_style=True)
    text = text.reading(**DEFAULTS, num_key_value_heads=2, head_dim=128, tie_word_embeddings=True)
    bias, options = text.boolean("use_bias", False), read_llama(text, rope=read_grid_rope(text, SECTIONS, mixed=False))
    options["layers"] = with_biases(options["layers"], qkv=bias, output=bias, mlp=bias)
    return ModelConfig(architecture=architecture, tower=tower, **options)


SECTIONS = (16, 24, 24)


def _read_tower(file: ConfigFile) -> TowerPlan:
    names = {"num_heads": "num_attention_heads", "depth": "num_hidden_layers", "in_channels": "num_channels"}
    vision = vision_section(file)
    vision.ignore("attention_dropout", "temporal_patch_size", "num_positions")
    vision = vision.but(temporal_patch_size=1).reading(names, num_heads=16, depth=27)
    norm = NormPlan(kind="layer", eps=vision.number("layer_norm_eps", 1e-6), bias=True)
    patch = vision.integer("patch_size", 14)
    plan = grid_plan(
        vision,
        vision.integer("hidden_size", 1152),
        norm=norm,
        intermediate_size=vision.integer("intermediate_size", 4304),
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        patch_bias=True,
        side=vision.integer("image_size", 384) // patch,
        interpolation="centres",
        last_norm=norm,
    )
    merger = MergerPlan(norm=NormPlan(kind="layer", eps=1e-5, bias=True))
    return tower_of(file, plan, merger, 100_295)


MODEL = f"{VISUAL}.vision_model"
LAYER = f"{MODEL}.encoder.layers.*"
NAMES: Names = {
    **LLAMA_NAMES,
    "tower.vision.patches": Source(f"{MODEL}.embeddings.patch_embedding", ConvolutionAsMatrix()),
    "tower.vision.positions": f"{MODEL}.embeddings.position_embedding",
    "tower.vision.last_norm": f"{MODEL}.post_layernorm",
    "tower.vision.layers.*.attention_norm": f"{LAYER}.layer_norm1",
    "tower.vision.layers.*.mlp_norm": f"{LAYER}.layer_norm2",
    "tower.vision.layers.*.up": f"{LAYER}.mlp.fc1",
    "tower.vision.layers.*.down": f"{LAYER}.mlp.fc2",
    **{
        f"tower.vision.layers.*.attention.{part}": f"{LAYER}.self_attn.{name}_proj"
        for part, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out"))
    },
    "tower.projector.last.norm": "model.projector.pre_norm",
    "tower.projector.last.up": "model.projector.linear_1",
    "tower.projector.last.down": "model.projector.linear_2",
}

FAMILY = Family(
    read_config,
    weight_names=NAMES,
    renamed={"model.language_model.": "model.", "visual.": f"{VISUAL}.", "mlp_AR.": "model.projector."},
    other_parts=(f"{VISUAL}.", "model.projector."),
)
