"""ERNIE 4.5: Llama with neighbours rotated in pairs, and one switch for all biases; dense, or with experts."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, VectorAsRow
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, with_experts
from jaxllm.models.families.family import (
    LLAMA_NAMES,
    Family,
    MtpNames,
    Names,
    expert_names,
    further_layers,
    read_mtp_layers,
)
from jaxllm.models.mlp_plan import ExpertsPlan, MLPPlan, RouterPlan
from jaxllm.models.plan import OutputPlan

_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_DEFAULTS = {"max_position_embeddings": 131072, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, **_IDS}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """ERNIE's configuration."""
    file = file.reading(**_DEFAULTS, num_key_value_heads=2, head_dim=128, tie_word_embeddings=True)
    bias, options = file.boolean("use_bias", False), read_llama(file, interleaved=True)
    options["layers"] = with_biases(options["layers"], qkv=bias, output=bias, mlp=bias)
    return ModelConfig(architecture=architecture, **options)


def read_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """That with experts: a bias decides who is chosen, and some experts see all tokens."""
    # Published files tell how it was trained.
    file.ignore("moe_capacity")
    file.expect(moe_gate="topk", moe_use_aux_free=True)
    file = file.reading(**_DEFAULTS, num_key_value_heads=4, tie_word_embeddings=True)
    bias, options = file.boolean("use_bias", False), read_llama(file, interleaved=True)
    layers = with_biases(options["layers"], qkv=bias, output=bias, mlp=False)
    dense = with_biases(layers, qkv=bias, output=bias, mlp=bias)
    last, step = len(layers) - 1, file.integer("moe_layer_interval", 1)
    first, end = (
        file.integer("moe_layer_start_index", 1, minimum=0),
        file.integer("moe_layer_end_index", -1, minimum=-1),
    )
    size, shared = file.integer("moe_intermediate_size", 1536), file.integer("moe_num_shared_experts", 2, minimum=0)
    if file.number("moe_norm_min", 1e-12) > 1e-9:
        raise file.wrong("moe_norm_min", "at most 1e-9")
    # Experts have no biases.
    layers = with_experts(
        file,
        layers,
        only=[layer for layer in range(first, (last if end == -1 else end) + 1) if (layer + 1) % step == 0],
        count=file.integer("moe_num_experts", 64),
        per_token=file.integer("moe_k", 6),
        size=size,
        router=RouterPlan(correction=True, normalised=True),
        shared=MLPPlan(activation=layers[0].mlp.activation, bias=bias, size=size * shared) if shared else None,
    )
    options["output"] = OutputPlan(bias=bias)
    pairs = zip(layers, dense, strict=True)
    options["layers"] = tuple(layer if isinstance(layer.mlp, ExpertsPlan) else other for layer, other in pairs)
    return ModelConfig(architecture=architecture, mtp_layers=read_mtp_layers(file), **options)


_BLOCK = "model.layers.*.mlp"
NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    "layers.*.mlp.router": Source(
        _BLOCK, VectorAsRow(), {"weight": ".gate.weight", "correction": ".moe_statics.e_score_correction_bias"}
    ),
    **{f"layers.*.mlp.shared.{name}": f"{_BLOCK}.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}

FAMILY = Family(read_config)
MTP = MtpNames(
    embedding_norm="model.mtp_emb_norm.{number}",
    hidden_norm="model.mtp_hidden_norm.{number}",
    joint="model.mtp_linear_proj.{number}",
    layer="model.mtp_block.{number}",
    norm=None,
    like_first=True,
)


def _mtp_parts(config: ModelConfig) -> tuple[str, ...]:
    """Where published files have what predicts further tokens."""
    return ("model.mtp_", *further_layers(config))


MOE = Family(read_moe, weight_names=NAMES, other_parts=_mtp_parts, mtp=MTP)
