"""Jamba: selective scans in most layers, attention without positions in some, experts in every second."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.families.mamba import read_rank, scan_names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.recurrent_plan import SelectiveScanPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Jamba's configuration."""
    file.ignore("use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep", "calc_logits_for_*")
    file.expect(mamba_inner_layernorms=True)
    file = file.reading({"num_experts": "num_local_experts"}, num_key_value_heads=8, max_position_embeddings=262144)
    options = read_llama(file)
    plan = SelectiveScanPlan(
        channels=file.integer("mamba_expand", 2) * file.integer("hidden_size"),
        state_size=file.integer("mamba_d_state", 16),
        rank=read_rank(file, "mamba_dt_rank"),
        width=file.integer("mamba_d_conv", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        bias=file.boolean("mamba_proj_bias", False),
        convolution_bias=file.boolean("mamba_conv_bias", True),
        norm=NormPlan(eps=file.number("rms_norm_eps", 1e-6)),
    )
    attending = _every(file, "attn_layer", len(options["layers"]), 8, 4)
    layers = tuple(
        layer.attending(rope=None) if number in attending else replace(layer, recurrence=plan)
        for number, layer in enumerate(options["layers"])
    )
    count, per_token = file.integer("num_experts", 16), file.integer("num_experts_per_tok", 2)
    sparse = _every(file, "expert_layer", len(layers), 2, 1)
    if count > 1:
        size = options["intermediate_size"]
        layers = with_experts(
            file, layers, only=sparse, count=count, per_token=per_token, size=size, router=RouterPlan()
        )
    return ModelConfig(architecture=architecture, **(options | {"layers": layers}))


def _every(file: ConfigFile, what: str, count: int, period: int, offset: int) -> range:
    """Numbers of the layers that are one of `what`, by the period and offset in the file or these."""
    period = file.integer(f"{what}_period", period)
    offset = file.integer(f"{what}_offset", offset, minimum=0)
    if offset >= period:
        raise file.wrong(f"{what}_offset", f"less than '{what}_period', {period}")
    return range(offset, count, period)


def weight_names(config: ModelConfig) -> Names:
    """Blocks have names of their own."""
    feed_forward = {name: f"model.layers.*.feed_forward.{name}_proj" for name in ("gate", "up", "down")}
    names = {
        **LLAMA_NAMES,
        "norm": "model.final_layernorm",
        "layers.*.mlp_norm": "model.layers.*.pre_ff_layernorm",
        **{f"layers.*.mlp.{name}": tensor for name, tensor in feed_forward.items()},
        **expert_names("feed_forward"),
        "layers.*.mlp.router": "model.layers.*.feed_forward.router",
    }
    plans = [plan for plan in config.recurrences if isinstance(plan, SelectiveScanPlan)]
    return {**names, **(scan_names("model.layers.*.mamba", plans[0]) if plans else {})}


FAMILY = Family(read_config, weight_names=weight_names)
