"""Qwen2-VL (arXiv 2409.12191), Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (arXiv 2511.21631): Qwen that sees."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfExpert, Source, Transposed
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import qwen2, qwen3, qwen3_moe
from jaxllm.models.families.common import text_part
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.families.qwen_tower import (
    OTHER_PARTS,
    RENAMED,
    read_qwen2_5_tower,
    read_qwen2_tower,
    read_qwen3_tower,
    tower_names,
)
from jaxllm.models.families.rotary import read_grid_rope
from jaxllm.models.mlp_plan import ExpertsPlan
from jaxllm.models.towers.plan import TowerPlan


def read_qwen2(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen2-VL's configuration. Published files have that of the language model at the top, or a part of its own."""
    return _qwen2(file, architecture, read_qwen2_tower(file))


def read_qwen2_5(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen2.5-VL's configuration."""
    return _qwen2(file, architecture, read_qwen2_5_tower(file))


def read_qwen3(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen3-VL's configuration."""
    tower = read_qwen3_tower(file)
    text = text_part(file).reading(**QWEN3)
    config = qwen3.read_config(text, architecture, read_grid_rope(text, (24, 20, 20), mixed=True))
    return with_deep_rows(replace(config, tower=tower), file)


def read_qwen3_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of Qwen3-VL with experts."""
    tower = read_qwen3_tower(file)
    text = text_part(file).reading(**{**QWEN3, "num_key_value_heads": 16})
    rope = read_grid_rope(text, (24, 20, 20), mixed=True)
    defaults = {"num_local_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    text = text.reading(norm_topk_prob=True, **defaults)
    config = qwen3_moe.read_config(text, architecture, rope)
    return with_deep_rows(replace(config, tower=tower), file)


QWEN3 = {"max_position_embeddings": 128_000, "num_key_value_heads": 32, "head_dim": 128, "rope_theta": 500_000.0}


def _qwen2(file: ConfigFile, architecture: str, tower: TowerPlan) -> ModelConfig:
    defaults = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
    text = text_part(file).reading(**defaults)
    config = qwen2.read_config(text, architecture, read_grid_rope(text, (16, 24, 24), mixed=False))
    return replace(config, tower=tower)


def with_deep_rows(config: ModelConfig, file: ConfigFile) -> ModelConfig:
    """The same, with parts of images' rows added after the first layers, as many as the tower gives."""
    assert config.tower is not None
    count = config.tower.row_parts - 1
    if count > config.num_layers:
        raise file.wrong("vision_config", f"one with at most {config.num_layers} layers in 'deepstack_visual_indexes'")
    layers = [replace(layer, adds_images=number < count) for number, layer in enumerate(config.layers)]
    return replace(config, layers=tuple(layers))


def names_of(config: ModelConfig) -> Names:
    """Those of the language model, and of the tower."""
    return {**LLAMA_NAMES, **tower_names(config)}


def names_of_qwen3_moe(config: ModelConfig) -> Names:
    """The same, with all experts of a layer in one tensor, rows and columns exchanged."""
    names: dict[str, str | Source] = {**LLAMA_NAMES, **expert_names("mlp"), **tower_names(config)}
    plan = next((layer.mlp for layer in config.layers if isinstance(layer.mlp, ExpertsPlan)), None)
    if plan is None:
        return names
    block, endings = "model.layers.*.mlp.experts", {"weight": ""}
    for index, part in enumerate(("gate", "up")):
        take = OfExpert(plan.count, Transposed(Fused((plan.size, plan.size), index)))
        names[f"layers.*.mlp.expert_{part}"] = Source(f"{block}.gate_up_proj", take, endings)
    names["layers.*.mlp.expert_down"] = Source(f"{block}.down_proj", OfExpert(plan.count, Transposed()), endings)
    return names


QWEN2 = Family(read_qwen2, weight_names=names_of, renamed=RENAMED, other_parts=OTHER_PARTS)
QWEN2_5 = replace(QWEN2, read_config=read_qwen2_5)
QWEN3_DENSE = replace(QWEN2, read_config=read_qwen3)
QWEN3_MOE = replace(QWEN2, read_config=read_qwen3_moe, weight_names=names_of_qwen3_moe)
