"""Mamba-2: state spaces alone; and how the families that mix them with attention read them."""

import math
from typing import Any

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.family import Family, Names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import StateSpacePlan

LONGEST = 131_072
"""Tokens of a request, where nothing in a model limits them."""

MAMBA, ATTENTION = "linear_attention", "full_attention"
OLD_KINDS = {"mamba": MAMBA, "attention": ATTENTION}
"""Kinds of layers, as configurations had them before transformers 5."""


def read_limits(file: ConfigFile, key: str = "time_step_limit") -> tuple[float, float]:
    """Least and largest step size: two numbers; JSON has several names for infinity."""
    file.ignore(key)
    found = file.values.get(key) or (0.0, math.inf)
    try:
        low, high = (float(value["__float__"] if isinstance(value, dict) else value) for value in found)
    except (KeyError, TypeError, ValueError):
        raise file.wrong(key, "two numbers") from None
    if not low <= high:
        raise file.wrong(key, "two numbers in order")
    return low, high


def check_groups(file: ConfigFile, plan: StateSpacePlan, key: str) -> StateSpacePlan:
    """The same plan. Raises `ModelError` if groups have no equal numbers of heads."""
    if plan.heads % plan.groups:
        raise file.wrong(key, f"a divisor of the number of heads, {plan.heads}")
    return plan


def read_hybrid(file: ConfigFile) -> StateSpacePlan:
    """The state space of Granite 4 and of Bamba."""
    file.ignore("mamba_chunk_size")
    heads, inner = file.integer("mamba_n_heads", 128), file.integer("mamba_expand", 2) * file.integer("hidden_size")
    is_given = file.values.get("mamba_d_head", "auto") != "auto"
    size = file.integer("mamba_d_head") if is_given else inner // heads
    file.ignore("mamba_d_head")
    if heads * size != inner:
        raise file.wrong("mamba_n_heads", f"such that heads of {size} are {inner} together")
    plan = StateSpacePlan(
        heads=heads,
        head_size=size,
        state_size=file.integer("mamba_d_state", 256),
        groups=file.integer("mamba_n_groups", 1),
        width=file.integer("mamba_d_conv", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        bias=file.boolean("mamba_proj_bias", False),
        convolution_bias=file.boolean("mamba_conv_bias", True),
        limits=read_limits(file),
        norm=NormPlan(eps=file.number("rms_norm_eps", 1e-6)),
    )
    return check_groups(file, plan, "mamba_n_groups")


def block_kinds(file: ConfigFile, kinds: list[str], count: int) -> list[str]:
    """The kinds of `count` layers, `MAMBA` or `ATTENTION`. Raises `ModelError` for others."""
    kinds = [OLD_KINDS.get(kind, kind) for kind in kinds]
    if len(kinds) != count:
        raise ModelError(f"{file.source}: types of {len(kinds)} layers for {count} layers")
    unknown = sorted(set(kinds) - {MAMBA, ATTENTION})
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r}")
    return kinds


def state_space_names(block: str, plan: StateSpacePlan) -> dict[str, str | Source]:
    """Tensors of mixers in a `block`."""
    inner, shared = plan.inner, plan.shared
    inputs = {"gate": inner, "x": inner, "write": shared, "read": shared, "step": plan.heads}
    parts = fused(f"{block}.in_proj", inputs)
    parts |= fused(f"{block}.conv1d", {"x_taps": inner, "write_taps": shared, "read_taps": shared})
    return {
        "layers.*.recurrence": Source(block, endings={"a_log": ".A_log", "dt_bias": ".dt_bias", "skip": ".D"}),
        **{f"layers.*.recurrence.{name}": source for name, source in parts.items()},
        "layers.*.recurrence.norm": f"{block}.norm",
        "layers.*.recurrence.output": f"{block}.out_proj",
    }


def sizes_without_attention(file: ConfigFile, heads: int, head_size: int) -> dict[str, Any]:
    """`ModelConfig` arguments of a model whose layers have no attention; heads are those of its state spaces."""
    file.ignore("num_attention_heads", "num_key_value_heads", "intermediate_size")
    return {
        "vocab_size": file.integer("vocab_size"),
        "hidden_size": file.integer("hidden_size"),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_size": head_size,
        "intermediate_size": heads * head_size,
        "tie_word_embeddings": file.boolean("tie_word_embeddings", False),
        "max_position_embeddings": file.integer("max_position_embeddings", LONGEST),
        "bos_token_id": file.optional_integer("bos_token_id", minimum=0),
        "eos_token_ids": file.token_ids("eos_token_id"),
    }


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Mamba-2's configuration."""
    # The gate comes before the norm, whatever is said.
    file.ignore("chunk_size", "time_step_*", "rescale_prenorm_residual", "residual_in_fp32", "norm_before_gate")
    file.expect(rms_norm=True)
    norm = NormPlan(eps=file.number("layer_norm_epsilon", 1e-5))
    plan = StateSpacePlan(
        heads=file.integer("num_heads", 128),
        head_size=file.integer("head_dim", 64),
        state_size=file.integer("state_size", 128),
        groups=file.integer("n_groups", 8),
        width=file.integer("conv_kernel", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        bias=file.boolean("use_bias", False),
        convolution_bias=file.boolean("use_conv_bias", True),
        limits=read_limits(file),
        norm=norm,
    )
    if file.integer("expand", 2) * file.integer("hidden_size") != plan.inner:
        raise file.wrong("num_heads", f"such that heads of {plan.head_size} are 'expand' times 'hidden_size' together")
    check_groups(file, plan, "n_groups")
    layer = LayerPlan(recurrence=plan, attention_norm=norm, has_mlp=False, mlp_norm=None)
    return ModelConfig(
        architecture=architecture,
        **sizes_without_attention(file, plan.heads, plan.head_size),
        layers=(layer,) * file.integer("num_hidden_layers", 64),
        norm=norm,
    )


def weight_names(config: ModelConfig) -> Names:
    """All that a layer has is its mixer."""
    plan = config.recurrences[0]
    assert isinstance(plan, StateSpacePlan)
    return {
        "embedding": "backbone.embeddings",
        "norm": "backbone.norm_f",
        "head": "lm_head",
        "layers.*.attention_norm": "backbone.layers.*.norm",
        **state_space_names("backbone.layers.*.mixer", plan),
    }


FAMILY = Family(read_config, weight_names=weight_names, prefix="backbone.")
