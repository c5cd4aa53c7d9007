"""EXAONE 4 and K-EXAONE: norms on heads; layers without a window do not see positions."""

from collections.abc import Sequence
from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    FULL,
    every_nth_full,
    layer_types,
    mlp_types,
    read_llama,
    with_experts,
    with_norms,
    with_types,
)
from jaxllm.models.families.expert_groups import check_expert_groups, sigmoid_router
from jaxllm.models.families.family import LLAMA_NAMES, SANDWICH_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import LayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """EXAONE 4's configuration, with norms after the blocks."""
    config = _read(file.reading(bos_token_id=0, eos_token_id=2), architecture)
    behind = {"attention_output_norm": config.norm, "mlp_output_norm": config.norm}
    return replace(config, layers=with_norms(config.layers, **behind, attention_norm=None, mlp_norm=None))


def read_moe(file: ConfigFile, architecture: str) -> ModelConfig:
    """K-EXAONE's, with norms before the blocks, and experts after the first layers."""
    file = file.reading({"num_experts": "num_local_experts"}, bos_token_id=1, eos_token_id=53)
    # What predicts a further token is not used.
    file.ignore("num_nextn_predict_layers", "mtp_*")
    # Files of the authors' own code name what is the only way here.
    file.expect(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    config, router = _read(file, architecture), sigmoid_router(file, scale=2.5)
    count, dense = file.integer("num_experts", 64), file.integer("first_k_dense_replace", 1, minimum=0)
    check_expert_groups(file, router, count)
    size, shared = file.integer("moe_intermediate_size", 1024), file.integer("num_shared_experts", 1)
    types = mlp_types(file, config.num_layers, dense=dense)
    # The authors' own code says the same in two other ways.
    file.expect(is_moe_layer=[kind == "sparse" for kind in types], first_last_k_dense_replace=dense)
    layers = with_experts(
        file,
        config.layers,
        only=[layer for layer, kind in enumerate(types) if kind == "sparse"],
        count=count,
        per_token=file.integer("num_experts_per_tok", 8),
        size=size,
        router=router,
        shared=MLPPlan(activation=config.layers[0].mlp.activation, size=size * shared),
    )
    return replace(config, layers=layers)


def _read(file: ConfigFile, architecture: str) -> ModelConfig:
    """What both have, with norms before the blocks. Where no layer has a window, all see positions."""
    file = file.reading(num_key_value_heads=32, max_position_embeddings=2048, rms_norm_eps=1e-5, sliding_window=4096)
    options = read_llama(file)
    layers = [layer.attending(norm=options["norm"]) for layer in options["layers"]]
    return ModelConfig(architecture=architecture, **(options | {"layers": _with_windows(file, layers)}))


def _with_windows(file: ConfigFile, layers: Sequence[LayerPlan]) -> tuple[LayerPlan, ...]:
    """The same layers, with windows on those that `layer_types` or the pattern says."""
    count, window = len(layers), file.optional_integer("sliding_window")
    # "LLLG" says the same as 4.
    pattern, key = file.values.get("sliding_window_pattern", 4) or 0, "sliding_window_pattern"
    period = len(file.text(key)) if isinstance(pattern, str) else file.integer(key, 4, minimum=0) if pattern else 0
    types = layer_types(file, count, every_nth_full(count, period) if window else [FULL] * count)
    if window is None:
        return tuple(layers)
    return with_types(layers, types, full={"rope": None}, sliding={"window": window})


_MOE_NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    "layers.*.mlp.router": Source(
        "model.layers.*.mlp", endings={"weight": ".gate.weight", "correction": ".e_score_correction_bias"}
    ),
    "layers.*.mlp.shared.gate": "model.layers.*.mlp.shared_experts.gate_proj",
    "layers.*.mlp.shared.up": "model.layers.*.mlp.shared_experts.up_proj",
    "layers.*.mlp.shared.down": "model.layers.*.mlp.shared_experts.down_proj",
}

FAMILY = Family(read_config, weight_names=SANDWICH_NAMES)
MOE = Family(read_moe, weight_names=_MOE_NAMES, other_parts=("mtp.",))
