"""Qwen3-Next and Qwen3.5: gated delta nets in three of four layers, attention with an output gate in the others."""

from dataclasses import replace
from typing import Any

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import FULL, read_llama, sparse_layers, text_part, with_biases, with_experts
from jaxllm.models.families.family import (
    LLAMA_NAMES,
    OTHER_PARTS,
    TEXT_PARTS,
    Family,
    MtpNames,
    Names,
    expert_names,
    read_mtp_layers,
)
from jaxllm.models.families.qwen2_moe import SHARED_NAMES
from jaxllm.models.families.qwen_tower import RENAMED, read_qwen3_tower, tower_names
from jaxllm.models.families.rotary import read_grid_rope
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import GatedDeltaPlan

LINEAR = "linear_attention"
DEFAULTS: dict[str, Any] = {"max_position_embeddings": 32768, "head_dim": 256, "partial_rotary_factor": 0.25}


def read_qwen3_next(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen3-Next's configuration."""
    file = file.reading({"num_experts": "num_local_experts"}, **DEFAULTS, num_key_value_heads=2)
    options = _options(file)
    layers = options["layers"]
    options["layers"] = _with_experts(
        file, layers, count=512, per_token=10, only=sparse_layers(file, len(layers)), normalised=True
    )
    return ModelConfig(architecture=architecture, **options)


def read_qwen3_5(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of Qwen3.5, or of the language model of a multimodal one."""
    text = text_part(file).reading(**DEFAULTS, num_key_value_heads=4)
    return _that_sees(ModelConfig(architecture=architecture, **_options(text, _grid_rope(text))), file)


def read_plain_qwen3_5(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen3.5 in `text_config` of a model whose images have no places in a grid."""
    text = text_part(file).reading(**DEFAULTS, num_key_value_heads=4)
    rope = replace(_grid_rope(text), sections=(), mixes_sections=False)
    return ModelConfig(architecture=architecture, **_options(text, rope))


def read_qwen3_5_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of Qwen3.5 with experts."""
    text = text_part(file)
    return _that_sees(_read_moe(text, architecture, _grid_rope(text.reading(**DEFAULTS))), file)


def read_plain_qwen3_5_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """Qwen3.5 with experts, without images, which would have places in a grid."""
    rope = _grid_rope(file.reading(**DEFAULTS))
    return _read_moe(file, architecture, replace(rope, sections=(), mixes_sections=False))


def _read_moe(text: ConfigFile, architecture: str, rope: RopeConfig) -> ModelConfig:
    """Qwen3.5 with experts, from the options of its language model."""
    names = {"num_experts": "num_local_experts"}
    # There is no other MLP whose size would be needed.
    text = text.reading(names, **DEFAULTS, num_key_value_heads=2, intermediate_size=512)
    options = _options(text, rope)
    options["layers"] = _with_experts(text, options["layers"], count=256, per_token=8, only=None, normalised=True)
    return ModelConfig(architecture=architecture, **options)


def _grid_rope(text: ConfigFile) -> RopeConfig:
    """Qwen3.5's rotary embedding."""
    # Some files repeat these next to the section.
    text.ignore("mrope_section", "mrope_interleaved")
    return read_grid_rope(text, (11, 11, 10), mixed=True)


def _that_sees(config: ModelConfig, file: ConfigFile) -> ModelConfig:
    """The model with its tower, if the file is of a whole one."""
    if not file.has("vision_config"):
        return config
    return replace(config, tower=read_qwen3_tower(file, taps=(), token_id=248_056))


def _options(file: ConfigFile, rope: RopeConfig | None = None) -> dict[str, Any]:
    """Arguments of `ModelConfig`, with MLPs in all layers. The rotary embedding may be given."""
    file.ignore("mtp_*", "mamba_ssm_dtype")
    options = read_llama(file, rope=rope)
    norm = NormPlan(eps=file.number("rms_norm_eps", 1e-6), offset=1.0)
    bias = file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    layers = tuple(replace(layer.attending(norm=norm, output_gate="elements"), **_norms(norm)) for layer in layers)
    recurrence = read_delta(file)
    kinds = _kinds(file, len(layers))
    return options | {
        "norm": norm,
        # Published files of Qwen3-Next do not say it.
        "mtp_layers": read_mtp_layers(file, default=1),
        "layers": tuple(
            replace(layer, recurrence=recurrence) if kind == LINEAR else layer
            for layer, kind in zip(layers, kinds, strict=True)
        ),
    }


def _norms(norm: NormPlan) -> dict[str, Any]:
    return {"attention_norm": norm, "mlp_norm": norm}


def read_delta(file: ConfigFile, key_heads: int = 16, value_heads: int = 32) -> GatedDeltaPlan:
    """The recurrence, with so many heads unless the file says otherwise."""
    plan = GatedDeltaPlan(
        key_heads=file.integer("linear_num_key_heads", key_heads),
        value_heads=file.integer("linear_num_value_heads", value_heads),
        key_size=file.integer("linear_key_head_dim", 128),
        value_size=file.integer("linear_value_head_dim", 128),
        width=file.integer("linear_conv_kernel_dim", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        norm=NormPlan(eps=file.number("rms_norm_eps", 1e-6)),
    )
    if plan.value_heads % plan.key_heads:
        raise file.wrong("linear_num_value_heads", f"a multiple of 'linear_num_key_heads', {plan.key_heads}")
    return plan


def _kinds(file: ConfigFile, count: int) -> list[str]:
    """For each layer, `FULL` or `LINEAR`. Raises `ModelError` for others."""
    period = file.integer("full_attention_interval", 4)
    if not file.has("layer_types"):
        return [LINEAR if (layer + 1) % period else FULL for layer in range(count)]
    kinds = file.texts("layer_types")
    if len(kinds) != count:
        raise ModelError(f"{file.source}: 'layer_types' has {len(kinds)} entries for {count} layers")
    unknown = sorted(set(kinds) - {FULL, LINEAR})
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layer_types'")
    return kinds


def _with_experts(
    file: ConfigFile, layers: tuple[LayerPlan, ...], *, count: int, per_token: int, only: Any, normalised: bool
) -> tuple[LayerPlan, ...]:
    """The same with experts: `count` of them, unless the file says otherwise."""
    return with_experts(
        file,
        layers,
        only=only,
        count=file.integer("num_experts", count),
        per_token=file.integer("num_experts_per_tok", per_token),
        size=file.integer("moe_intermediate_size", 512),
        router=RouterPlan(normalised=file.boolean("norm_topk_prob", normalised)),
        shared=MLPPlan(activation=layers[0].mlp.activation, size=file.integer("shared_expert_intermediate_size", 512)),
        shared_gate=True,
    )


BLOCK = "model.layers.*.linear_attn"


def _names(config: ModelConfig) -> dict[str, str | Source]:
    """Weight names of both, except the products before the recurrence."""
    plan = config.recurrences[0] if config.recurrences else None
    gated = {
        f"layers.*.attention.{name}": Source("model.layers.*.self_attn.q_proj", Fused(sizes, part, config.num_heads))
        for part, name in enumerate(("query", "gate"))
        for sizes in [(config.head_size, config.head_size)]
    }
    names: dict[str, str | Source] = {**LLAMA_NAMES, **gated, **expert_names("mlp"), **SHARED_NAMES}
    if not isinstance(plan, GatedDeltaPlan):
        return names
    taps = fused(f"{BLOCK}.conv1d", {"query_taps": plan.keys, "key_taps": plan.keys, "value_taps": plan.values})
    return {
        **names,
        "layers.*.recurrence": Source(BLOCK, endings={"a_log": ".A_log", "dt_bias": ".dt_bias"}),
        "layers.*.recurrence.norm": f"{BLOCK}.norm",
        "layers.*.recurrence.output": f"{BLOCK}.out_proj",
        **{f"layers.*.recurrence.{name}": source for name, source in taps.items()},
    }


def names_of_qwen3_next(config: ModelConfig) -> Names:
    """Each key head has its queries, its keys, and the values and gates of its value heads, side by side."""
    names = _names(config)
    for plan in config.recurrences[:1]:
        assert isinstance(plan, GatedDeltaPlan)
        heads, times = plan.key_heads, plan.value_heads // plan.key_heads
        wide = {
            "query": plan.key_size,
            "key": plan.key_size,
            "value": times * plan.value_size,
            "gate": times * plan.value_size,
        }
        parts = fused(f"{BLOCK}.in_proj_qkvz", wide, heads)
        parts |= fused(f"{BLOCK}.in_proj_ba", {"rate": times, "decay": times}, heads)
        names |= {f"layers.*.recurrence.{name}": source for name, source in parts.items()}
    return names


def names_of_qwen3_5(config: ModelConfig) -> Names:
    """Queries, keys and values lie side by side, gates apart."""
    names = _names(config)
    for plan in config.recurrences[:1]:
        assert isinstance(plan, GatedDeltaPlan)
        parts = fused(f"{BLOCK}.in_proj_qkv", {"query": plan.keys, "key": plan.keys, "value": plan.values})
        names |= {f"layers.*.recurrence.{name}": source for name, source in parts.items()}
        letters = {"gate": "z", "rate": "b", "decay": "a"}
        names |= {f"layers.*.recurrence.{name}": f"{BLOCK}.in_proj_{letter}" for name, letter in letters.items()}
    return names if config.tower is None else {**names, **tower_names(config)}


MTP = MtpNames(
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    joint="mtp.fc",
    layer="mtp.layers.{number}",
    norm="mtp.norm",
)

OTHERS = ("mtp.", "model.visual.", *OTHER_PARTS)
"""The predictor of further tokens, and what sees."""

FAMILY = Family(read_qwen3_next, weight_names=names_of_qwen3_next, other_parts=OTHERS, mtp=MTP)
QWEN3_5 = Family(
    read_qwen3_5, weight_names=names_of_qwen3_5, renamed={**TEXT_PARTS, **RENAMED}, other_parts=OTHERS, mtp=MTP
)
QWEN3_5_MOE = replace(QWEN3_5, read_config=read_qwen3_5_moe)
