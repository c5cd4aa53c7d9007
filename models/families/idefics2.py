"""Idefics 2 (arXiv 2405.02246): Mistral that sees through SigLIP, 64 rows to a crop of any shape."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.text_models import TEXT_NAMES, read_text_model
from jaxllm.models.families.vision import clip_names, read_siglip
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.towers.perceiver import PerceiverPlan
from jaxllm.models.towers.plan import TowerPlan, program_sizes


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of the language model in `text_config`, and the tower's."""
    config = read_text_model(file, architecture, "mistral")
    text = file.section("text_config") or ConfigFile({}, file.source)
    return replace(config, tower=_read_tower(file, config, read_activation(text, "hidden_act", "silu")))


def _read_tower(file: ConfigFile, config: ModelConfig, activation: str) -> TowerPlan:
    vision = file.section("vision_config") or ConfigFile({}, file.source)
    plan = replace(read_siglip(vision.reading(patch_size=32), None), spreads_positions=True)
    perceiver = file.section("perceiver_config") or ConfigFile({}, file.source)
    perceiver.ignore("model_type", "attention_dropout", "initializer_range")
    heads, kv_heads = perceiver.integer("resampler_n_heads", 16), perceiver.integer("num_key_value_heads", 4)
    if heads % kv_heads:
        raise perceiver.wrong("num_key_value_heads", f"a divisor of resampler_n_heads={heads}")
    eps = perceiver.number("rms_norm_eps", 1e-6)
    if perceiver.integer("hidden_size", 4096) != config.hidden_size and config.norm is not None:
        # Files leave both out: transformers then takes the language model's.
        eps = config.norm.eps
    projector = PerceiverPlan(
        inner_size=config.intermediate_size,
        activation=activation,
        num_queries=perceiver.integer("resampler_n_latents", 64),
        num_layers=perceiver.integer("resampler_depth", 3),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=perceiver.integer("resampler_head_dim", 96),
        layer_activation=read_activation(perceiver, "hidden_act", "silu"),
        norm=NormPlan(eps=eps),
    )
    return TowerPlan(
        vision=plan,
        projector=projector,
        merge=1,
        crop_rows=projector.num_queries,
        token_id=file.integer("image_token_id", 32001, minimum=0),
        sizes=program_sizes(plan.side**2, 1),
    )


_CONNECTOR = "model.connector"
_LAYER = f"{_CONNECTOR}.perceiver_resampler.layers.*"
NAMES: Names = {
    **TEXT_NAMES,
    **clip_names("model.vision_model"),
    "tower.projector.project.gate": f"{_CONNECTOR}.modality_projection.gate_proj",
    "tower.projector.project.up": f"{_CONNECTOR}.modality_projection.up_proj",
    "tower.projector.project.down": f"{_CONNECTOR}.modality_projection.down_proj",
    "tower.projector.queries": Source(f"{_CONNECTOR}.perceiver_resampler.latents", endings={"weight": ""}),
    "tower.projector.norm": f"{_CONNECTOR}.perceiver_resampler.norm",
    "tower.projector.layers.*.query_norm": f"{_LAYER}.input_latents_norm",
    "tower.projector.layers.*.patch_norm": f"{_LAYER}.input_context_norm",
    "tower.projector.layers.*.mlp_norm": f"{_LAYER}.post_attention_layernorm",
    "tower.projector.layers.*.query": f"{_LAYER}.self_attn.q_proj",
    "tower.projector.layers.*.key": f"{_LAYER}.self_attn.k_proj",
    "tower.projector.layers.*.value": f"{_LAYER}.self_attn.v_proj",
    "tower.projector.layers.*.output": f"{_LAYER}.self_attn.o_proj",
    "tower.projector.layers.*.mlp.gate": f"{_LAYER}.mlp.gate_proj",
    "tower.projector.layers.*.mlp.up": f"{_LAYER}.mlp.up_proj",
    "tower.projector.layers.*.mlp.down": f"{_LAYER}.mlp.down_proj",
}

FAMILY = Family(
    read_config,
    weight_names=NAMES,
    renamed={"model.text_model.": "model."},
    other_parts=("model.vision_model.", "model.connector."),
)
