"""Llama 4 with its vision model: tiles of an image and the whole of it, four patches to a row."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import AsRow, ChannelsFirst, Source
from jaxllm.models.checkpoint.tower_tensors import LastRowFirst, PairsApart
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import llama4
from jaxllm.models.families.family import TEXT_PARTS, Family, Names
from jaxllm.models.families.llava import PROJECTOR, VISION, image_token_id
from jaxllm.models.families.vision import check_heads
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.plan import PixelPlan, TowerPlan
from jaxllm.models.towers.projectors import ChainPlan
from jaxllm.models.towers.vision_transformer import TransformerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The language model's configuration, and the tower's. A file without `vision_config` has no tower."""
    tower = _read_tower(file) if file.has("vision_config") else None
    return replace(llama4.read_config(file, architecture), tower=tower)


def _read_tower(file: ConfigFile) -> TowerPlan:
    vision = (file.section("vision_config") or file).reading(
        hidden_size=768, intermediate_size=5632, num_hidden_layers=34, num_attention_heads=16, image_size=448,
        patch_size=14, pixel_shuffle_ratio=0.5, projector_input_dim=4096, projector_output_dim=4096,
    )  # fmt: skip
    # The length of a vector between two products, which is that of what the first gives.
    vision.ignore("model_type", "*dropout", "initializer_range", "vision_output_dim")
    # What transformers computes whatever the file says.
    vision.expect(
        hidden_act="gelu", norm_eps=1e-5, vision_feature_layer=-1, vision_feature_select_strategy="default",
        multi_modal_projector_bias=False,
    )  # fmt: skip
    check_heads(vision)
    ratio, image_size, patch_size = (
        vision.number("pixel_shuffle_ratio"), vision.integer("image_size"), vision.integer("patch_size")
    )  # fmt: skip
    rope = vision.section("rope_parameters") or vision
    rope.expect(rope_type="default")
    side, merge = image_size // patch_size, round(1 / ratio) if 0 < ratio <= 1 else 0
    if not merge or merge * ratio != 1 or not side or side % merge:
        raise vision.wrong("pixel_shuffle_ratio", f"1 / n, for a divisor n of {side}, the patches on a side of a tile")
    plan = TransformerPlan(
        hidden_size=vision.integer("hidden_size"),
        intermediate_size=vision.integer("intermediate_size"),
        num_layers=vision.integer("num_hidden_layers"),
        num_heads=vision.integer("num_attention_heads"),
        activation="gelu",
        norm=NormPlan(kind="layer", eps=1e-5, bias=True),
        patch_size=patch_size,
        side=side,
        rotation="numbers",
        rope_theta=rope.positive("rope_theta", 10000.0),
        channels=vision.integer("num_channels", 3),
        patch_bias=False,
        class_token=True,
        has_first_norm=True,
    )
    if plan.head_size % 4:
        raise vision.wrong("hidden_size", "four times as many for each head, for height and width to rotate pairs")
    return TowerPlan(
        vision=plan,
        projector=ChainPlan("gelu", (vision.integer("projector_input_dim"), vision.integer("projector_output_dim"))),
        merge=merge,
        token_id=image_token_id(file, 200092),
        sizes=(side**2,),
        side=side,
        pixels=PixelPlan(rounds=True),
    )


def weight_names(config: ModelConfig) -> Names:
    """Names of the tensors of both models."""
    names, tower, layer = llama4.weight_names(config), config.tower, f"{VISION}.model.layers.*"
    if tower is None:
        return names
    assert isinstance(tower.vision, TransformerPlan)
    apart, itself = PairsApart(tower.vision.head_size), {"weight": ""}
    return {
        **names,
        "tower.vision.patches": Source(f"{VISION}.patch_embedding.linear", ChannelsFirst(tower.vision.patch_size**2)),
        "tower.vision.class_token": Source(f"{VISION}.class_embedding", AsRow(), itself),
        "tower.vision.positions": Source(f"{VISION}.positional_embedding_vlm", LastRowFirst(), itself),
        "tower.vision.first_norm": f"{VISION}.layernorm_pre",
        "tower.vision.norm": f"{VISION}.layernorm_post",
        "tower.vision.layers.*.attention_norm": f"{layer}.input_layernorm",
        "tower.vision.layers.*.attention.query": Source(f"{layer}.self_attn.q_proj", apart),
        "tower.vision.layers.*.attention.key": Source(f"{layer}.self_attn.k_proj", apart),
        "tower.vision.layers.*.attention.value": f"{layer}.self_attn.v_proj",
        "tower.vision.layers.*.attention.output": f"{layer}.self_attn.o_proj",
        "tower.vision.layers.*.mlp_norm": f"{layer}.post_attention_layernorm",
        "tower.vision.layers.*.mlp.up": f"{layer}.mlp.fc1",
        "tower.vision.layers.*.mlp.down": f"{layer}.mlp.fc2",
        "tower.projector.inner.*": Source(f"{VISION}.vision_adapter.mlp.*", layers=("fc1", "fc2")),
        "tower.projector.last": f"{PROJECTOR}.linear_1",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    renamed={**TEXT_PARTS, "vision_model.": f"{VISION}.", "multi_modal_projector.": f"{PROJECTOR}."},
    other_parts=(f"{VISION}.", f"{PROJECTOR}."),
)
