"""AFMoE (Arcee's Trinity): gated attention, norms around the blocks, experts alongside one that all tokens have."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, WithoutBias
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import (
    every_nth_full,
    layer_types,
    read_llama,
    with_biases,
    with_experts,
    with_norms,
    with_types,
)
from jaxllm.models.families.family import SANDWICH_NAMES, Family, Names, expert_names
from jaxllm.models.mlp_plan import MLPPlan, RouterPlan
from jaxllm.models.plan import EmbeddingPlan

_DEFAULTS = {"head_dim": 128, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "sliding_window": 1024}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """AFMoE's configuration. Layers without a window do not see positions."""
    file = file.reading({"num_experts": "num_local_experts"}, **_DEFAULTS)
    # Options of the authors' own code, with what is the only way here.
    file.ignore("use_grouped_mm", "load_balance_coeff")
    file.expect(score_func="sigmoid", route_norm=True)
    file.expect(n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1)
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    norm, count, window = options["norm"], len(options["layers"]), file.integer("sliding_window")
    behind = {"attention_output_norm": norm, "mlp_output_norm": norm}
    layers = with_norms(with_biases(options["layers"], qkv=bias, output=bias), **behind)
    types = layer_types(file, count, every_nth_full(count, file.integer("global_attn_every_n_layers", 4)))
    layers = with_types(layers, types, full={"rope": None}, sliding={"window": window})
    size, shared = file.integer("moe_intermediate_size", 1408), file.integer("num_shared_experts", 2)
    router = RouterPlan(
        kind="sigmoid", correction=True, normalised=True, epsilon=1e-20, scale=file.number("route_scale", 1.0)
    )
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(norm=norm, output_gate="elements") for layer in layers),
        only=range(file.integer("num_dense_layers", 1, minimum=0), count),
        count=file.integer("num_experts", 64),
        per_token=file.integer("num_experts_per_tok", 6),
        size=size,
        router=router,
        shared=MLPPlan(activation=layers[0].mlp.activation, size=size * shared),
    )
    scale = options["hidden_size"] ** 0.5 if file.boolean("mup_enabled", False) else 1.0
    return ModelConfig(architecture=architecture, **options, embedding=EmbeddingPlan(scale=scale))


def weight_names(config: ModelConfig) -> Names:
    """Names in the checkpoint; where the other products have biases, that of gates has none."""
    layer = "model.layers.*"
    return {
        **SANDWICH_NAMES,
        **expert_names("mlp"),
        "layers.*.attention.gate": Source(
            f"{layer}.self_attn.gate_proj", WithoutBias(config.hidden_size), endings={"bias": ".weight"}
        ),
        "layers.*.mlp_norm": f"{layer}.pre_mlp_layernorm",
        "layers.*.mlp_output_norm": f"{layer}.post_mlp_layernorm",
        "layers.*.mlp.router": Source(
            f"{layer}.mlp", endings={"weight": ".router.gate.weight", "correction": ".expert_bias"}
        ),
        "layers.*.mlp.shared.gate": f"{layer}.mlp.shared_experts.gate_proj",
        "layers.*.mlp.shared.up": f"{layer}.mlp.shared_experts.up_proj",
        "layers.*.mlp.shared.down": f"{layer}.mlp.shared_experts.down_proj",
    }


FAMILY = Family(read_config, weight_names=weight_names)
