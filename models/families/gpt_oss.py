"""gpt-oss: attention with sinks, a window on every second layer, and experts with biases and a clamped gate."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Interleaved, OfExpert, Source, Transposed
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import FULL, SLIDING, layer_types, read_llama, with_biases, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.mlp_plan import ClampedPlan, ExpertsPlan, RouterPlan

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""How positions are stretched where the configuration does not say."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """gpt-oss's configuration. Weights may be in MXFP4."""
    sizes = {"head_dim": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072}
    file = file.reading(**sizes, rms_norm_eps=1e-5, rope_theta=150_000.0, rope_parameters=YARN)
    file.ignore("experts_per_token", "initial_context_length")
    options, bias = read_llama(file), file.boolean("attention_bias", True)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    window = file.optional_integer("sliding_window", 128) or 0
    kinds = layer_types(file, len(layers), [FULL if layer % 2 else SLIDING for layer in range(len(layers))])
    layers = tuple(
        layer.attending(sinks=True, window=window if kind == SLIDING else 0)
        for layer, kind in zip(layers, kinds, strict=True)
    )
    options["layers"] = with_experts(
        file,
        tuple(replace(layer, mlp=replace(layer.mlp, bias=True)) for layer in layers),
        count=file.integer("num_local_experts", 128),
        per_token=file.integer("num_experts_per_tok", 4),
        size=options["intermediate_size"],
        router=RouterPlan(kind="chosen_softmax", bias=True),
        clamped=ClampedPlan(alpha=file.number("swiglu_alpha", 1.702), limit=file.number("swiglu_limit", 7.0)),
    )
    return ModelConfig(architecture=architecture, **options)


def weight_names(config: ModelConfig) -> Names:
    """Experts are one tensor, transposed, whose rows are a gate and what it gates by turns."""
    plan = config.layers[0].mlp
    assert isinstance(plan, ExpertsPlan)
    block, endings = "model.layers.*.mlp.experts", {"weight": "", "bias": "_bias"}

    def wide(index: int) -> Source:
        return Source(f"{block}.gate_up_proj", OfExpert(plan.count, Transposed(Interleaved(2, index))), endings)

    return {
        **LLAMA_NAMES,
        "layers.*.attention": "model.layers.*.self_attn",
        "layers.*.mlp.router": "model.layers.*.mlp.router",
        "layers.*.mlp.expert_gate": wide(0),
        "layers.*.mlp.expert_up": wide(1),
        "layers.*.mlp.expert_down": Source(f"{block}.down_proj", OfExpert(plan.count, Transposed()), endings),
    }


FAMILY = Family(read_config, weight_names=weight_names)
