"""Cohere 2 with experts: parallel blocks, and the mean or the sum of experts and the one that all tokens have."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.cohere import read_parallel
from jaxllm.models.families.common import every_nth_full, layer_types, mlp_types, with_experts, with_types
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Its configuration. The first layers may be dense, and then see positions even without a window."""
    file = file.reading({"num_experts": "num_local_experts"}, sliding_window=4096, rope_theta=10000.0)
    file.ignore("layer_norm_eps")
    eps = file.optional_number("rms_norm_eps")
    options, _ = read_parallel(file, None if eps is None else NormPlan(eps=eps))
    layers: tuple[LayerPlan, ...] = options["layers"]
    count, dense = len(layers), file.integer("first_k_dense_replace", 0, minimum=0)
    own, others = (file.integer(key, default) for key, default in _PATTERNS)
    types = layer_types(file, count, [*every_nth_full(dense, own), *every_nth_full(count - dense, others)])
    kinds, window = mlp_types(file, count, dense=dense), file.optional_integer("sliding_window") or 0
    rotated = with_types(layers, types, full={}, sliding={"window": window})
    plain = with_types(layers, types, full={"rope": None}, sliding={"window": window} if window else {"rope": None})
    is_forced = own == 1
    layers = tuple(
        with_rope if kind == "dense" and is_forced else without
        for with_rope, without, kind in zip(rotated, plain, kinds, strict=True)
    )
    if "dense" in kinds:
        size = file.integer("prefix_dense_intermediate_size")
        layers = tuple(replace(layer, mlp=replace(layer.mlp, size=size)) for layer in layers)
    sparse = [layer for layer, kind in enumerate(kinds) if kind == "sparse"]
    options["layers"] = _with_experts(file, layers, sparse, options["intermediate_size"])
    return ModelConfig(architecture=architecture, **options)


_PATTERNS = (("prefix_dense_sliding_window_pattern", 1), ("sliding_window_pattern", 4))


def _with_experts(
    file: ConfigFile, layers: tuple[LayerPlan, ...], sparse: list[int], size: int
) -> tuple[LayerPlan, ...]:
    """The same layers, those in `sparse` with experts of a size."""
    score = file.text("expert_selection_fn", "softmax")
    join = file.text("shared_expert_combination_strategy", "average")
    if score not in ("softmax", "sigmoid"):
        raise file.wrong("expert_selection_fn", "'softmax' or 'sigmoid'")
    if join not in ("average", "sum"):
        raise file.wrong("shared_expert_combination_strategy", "'average' or 'sum'")
    shared, is_normalised = file.integer("num_shared_experts", 0, minimum=0), file.boolean("norm_topk_prob", True)
    router = (
        RouterPlan(kind="chosen_softmax")
        if score == "softmax"
        else RouterPlan(kind="chosen_sigmoid", normalised=is_normalised)
    )
    return with_experts(
        file,
        layers,
        only=sparse,
        count=file.integer("num_experts", 8),
        per_token=file.integer("num_experts_per_tok", 2),
        size=size,
        router=router,
        shared=MLPPlan(activation=layers[0].mlp.activation, size=size * shared) if shared else None,
        scale=0.5 if shared and join == "average" else 1.0,
    )


BLOCK = "model.layers.*.mlp.shared_experts"
NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("mlp"),
    "layers.*.mlp.shared.gate": f"{BLOCK}.gate_proj",
    "layers.*.mlp.shared.up": f"{BLOCK}.up_proj",
    "layers.*.mlp.shared.down": f"{BLOCK}.down_proj",
}

FAMILY = Family(read_config, weight_names=NAMES)
