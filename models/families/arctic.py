"""Arctic: experts that take a layer's input, alongside an MLP after the attention."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import ExpertsPlan, RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Arctic's configuration. How many tokens an expert may have counts in training alone: here none is dropped."""
    file = file.reading(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        bos_token_id=1,
        eos_token_id=2,
    )
    file.ignore("moe_*_capacity*", "moe_token_dropout", "enable_expert_tensor_parallelism")
    has_residual = file.boolean("use_residual", True)
    if file.boolean("parallel_attn_mlp_res", has_residual) != has_residual:
        raise file.wrong("parallel_attn_mlp_res", "the same as 'use_residual'")
    options, step = read_llama(file), file.integer("moe_layer_frequency", 2)
    per_token = file.integer("num_experts_per_tok", 1)
    layers = with_experts(
        file,
        options["layers"],
        only=range(step - 1, len(options["layers"]), step),
        count=file.integer("num_local_experts", 8),
        per_token=per_token,
        size=options["intermediate_size"],
        router=RouterPlan(normalised=per_token > 1),
    )
    if has_residual:
        dense = replace(options["layers"][0].mlp, size=options["hidden_size"])
        layers = tuple(
            replace(layer, is_parallel=True, residual_mlp=dense, residual_norm=layer.mlp_norm)
            if isinstance(layer.mlp, ExpertsPlan)
            else layer
            for layer in layers
        )
    config = ModelConfig(architecture=architecture, **(options | {"layers": layers}))
    return config.with_windows((file.optional_integer("sliding_window") or 0,) * config.num_layers)


NAMES: Names = {
    **LLAMA_NAMES,
    **expert_names("block_sparse_moe", "w1", "w3", "w2"),
    **{
        f"layers.*.{ours}.{part}": f"model.layers.*.{theirs}.{name}"
        for ours, theirs in {"mlp": "block_sparse_moe.mlp", "residual_mlp": "residual_mlp"}.items()
        for part, name in {"gate": "w1", "up": "w3", "down": "w2"}.items()
    },
    "layers.*.residual_norm": "model.layers.*.residual_layernorm",
}

FAMILY = Family(read_config, weight_names=NAMES, like="Mixtral")
