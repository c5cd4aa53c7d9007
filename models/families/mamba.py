"""Mamba and FalconMamba: selective scans alone; and how Jamba's are read."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.mamba2 import sizes_without_attention
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import SelectiveScanPlan


def read_rank(file: ConfigFile, key: str) -> int:
    """Columns of the product that step sizes come from."""
    is_given = file.values.get(key, "auto") != "auto"
    rank = file.integer(key) if is_given else -(-file.integer("hidden_size") // 16)
    file.ignore(key)
    return rank


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Mamba's configuration."""
    file.ignore("time_step_*", "rescale_prenorm_residual", "residual_in_fp32", "use_mambapy", "use_associative_scan")
    file.ignore("use_falcon_mambapy", "mixer_rms_eps")
    # Names of the authors' own code alongside those of transformers.
    file.ignore("d_inner", "d_model", "n_layer", "fused_add_norm", "pad_vocab_size_multiple")
    file.expect(rms_norm=True, ssm_cfg={})
    norm = NormPlan(eps=file.number("layer_norm_epsilon", 1e-5))
    channels = file.integer("intermediate_size", file.integer("expand", 2) * file.integer("hidden_size"))
    plan = SelectiveScanPlan(
        channels=channels,
        state_size=file.integer("state_size", 16),
        rank=read_rank(file, "time_step_rank"),
        width=file.integer("conv_kernel", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        bias=file.boolean("use_bias", False),
        convolution_bias=file.boolean("use_conv_bias", True),
    )
    layer = LayerPlan(recurrence=plan, attention_norm=norm, has_mlp=False, mlp_norm=None)
    file = file.reading(tie_word_embeddings=True)
    return ModelConfig(
        architecture=architecture,
        **sizes_without_attention(file, channels, 2),
        layers=(layer,) * file.integer("num_hidden_layers", 32),
        norm=norm,
    )


def read_falcon_mamba(file: ConfigFile, architecture: str) -> ModelConfig:
    """FalconMamba's: step sizes, B and C are normalised, without weights."""
    norm = NormPlan(eps=file.number("mixer_rms_eps", 1e-6), weight=False)
    config = read_config(file, architecture)
    (plan,) = dict.fromkeys(config.recurrences)
    assert isinstance(plan, SelectiveScanPlan)
    layers = tuple(replace(layer, recurrence=replace(plan, norm=norm)) for layer in config.layers)
    return replace(config, layers=layers)


def scan_names(block: str, plan: SelectiveScanPlan) -> dict[str, str | Source]:
    """Tensors of mixers in a `block`."""
    inputs = fused(f"{block}.in_proj", {"x": plan.channels, "gate": plan.channels})
    return {
        "layers.*.recurrence": Source(block, endings={"a_log": ".A_log", "skip": ".D"}),
        **{f"layers.*.recurrence.{name}": source for name, source in inputs.items()},
        "layers.*.recurrence.convolution": f"{block}.conv1d",
        "layers.*.recurrence.selection": f"{block}.x_proj",
        "layers.*.recurrence.step": f"{block}.dt_proj",
        "layers.*.recurrence.step_norm": f"{block}.dt_layernorm",
        "layers.*.recurrence.write_norm": f"{block}.b_layernorm",
        "layers.*.recurrence.read_norm": f"{block}.c_layernorm",
        "layers.*.recurrence.output": f"{block}.out_proj",
    }


def weight_names(config: ModelConfig) -> Names:
    """All that a layer has is its mixer."""
    plan = config.recurrences[0]
    assert isinstance(plan, SelectiveScanPlan)
    return {
        "embedding": "backbone.embeddings",
        "norm": "backbone.norm_f",
        "head": "lm_head",
        "layers.*.attention_norm": "backbone.layers.*.norm",
        **scan_names("backbone.layers.*.mixer", plan),
    }


FAMILY = Family(read_config, weight_names=weight_names, prefix="backbone.")
FALCON_MAMBA = replace(FAMILY, read_config=read_falcon_mamba)
