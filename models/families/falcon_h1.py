"""Falcon-H1: attention and a state space side by side in every layer, with multipliers on most products (muP)."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.cache import States
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.mamba2 import check_groups, read_limits, state_space_names
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.mlp import make_mlp
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.recurrent import make_recurrent
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import EmbeddingPlan, LayerPlan, OutputPlan
from jaxllm.models.recurrent_plan import StateSpacePlan


@dataclass(frozen=True, kw_only=True)
class FalconH1Config(ModelConfig):
    """A layer of the checkpoint is two here, and each has its own cache: see `AttentionBeside`.

    Scales multiply what a block gets and what it gives, and what the MLP gives.
    """

    attention_scales: tuple[float, float]
    recurrence_scales: tuple[float, float]
    mlp_scale: float


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Falcon-H1's configuration."""
    file.ignore("num_logits_to_keep", "mamba_use_mlp", "mlp_expansion_factor", "time_step_*")
    if file.has("attn_layer_indices"):
        raise file.wrong("attn_layer_indices", "null: attention in all layers")
    file = file.reading(max_position_embeddings=8192, rms_norm_eps=1e-5, num_key_value_heads=8, intermediate_size=14336)
    options = read_llama(file)
    bias = file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias, mlp=file.boolean("mlp_bias", False))
    gate, down = _numbers(file, "mlp_multipliers", 2)
    scale = options["head_size"] ** -0.5 * file.number("key_multiplier", 1.0)
    recurrence = _state_space(file, layers[0].attention_norm)
    pairs = [_pair(layer, recurrence, scale=scale, gate=gate) for layer in layers]
    options["layers"] = tuple(half for pair in pairs for half in pair)
    return FalconH1Config(
        architecture=architecture,
        **options,
        embedding=EmbeddingPlan(scale=file.number("embedding_multiplier", 1.0)),
        output=OutputPlan(scale=file.number("lm_head_multiplier", 1.0)),
        attention_scales=_scales(file, "attention_%s_multiplier"),
        recurrence_scales=_scales(file, "ssm_%s_multiplier"),
        mlp_scale=down,
    )


def _pair(layer: LayerPlan, recurrence: StateSpacePlan, *, scale: float, gate: float) -> tuple[LayerPlan, LayerPlan]:
    """The two layers that are one of the checkpoint. A multiplier of keys is one of scores."""
    assert isinstance(layer.mlp, MLPPlan)
    attending = replace(layer.attending(scale=scale), has_mlp=False, mlp_norm=None)
    return attending, replace(layer, recurrence=recurrence, mlp=replace(layer.mlp, gate_scale=gate))


def _scales(file: ConfigFile, name: str) -> tuple[float, float]:
    return file.number(name % "in", 1.0), file.number(name % "out", 1.0)


def _numbers(file: ConfigFile, key: str, count: int) -> tuple[float, ...]:
    """So many numbers; ones where there are none."""
    found = tuple(file.numbers(key)) if file.has(key) else (1.0,) * count
    if len(found) != count:
        raise file.wrong(key, f"{count} numbers")
    return found


def _state_space(file: ConfigFile, norm: NormPlan | None) -> StateSpacePlan:
    file.ignore("mamba_chunk_size", "mamba_expand", "mamba_d_head", "mamba_norm_before_gate")
    inner = file.optional_integer("mamba_d_ssm", 1024) or file.integer("mamba_expand", 2) * file.integer("hidden_size")
    heads, bias = file.integer("mamba_n_heads", 128), file.boolean("mamba_proj_bias", False)
    is_given = file.values.get("mamba_d_head") not in (None, "auto")
    size = file.integer("mamba_d_head") if is_given else inner // heads
    if heads * size != inner:
        raise file.wrong("mamba_n_heads", f"such that heads of {size} are 'mamba_d_ssm', {inner}, together")
    if file.boolean("projectors_bias", False) != bias:
        raise file.wrong("projectors_bias", "the same as 'mamba_proj_bias'")
    gate, x, write, read, step = _numbers(file, "ssm_multipliers", 5)
    plan = StateSpacePlan(
        heads=heads,
        head_size=size,
        state_size=file.integer("mamba_d_state", 256),
        groups=file.integer("mamba_n_groups", 1),
        width=file.integer("mamba_d_conv", 4, minimum=2),
        activation=read_activation(file, "hidden_act", "silu"),
        bias=bias,
        convolution_bias=file.boolean("mamba_conv_bias", True),
        limits=read_limits(file),
        norm=norm if file.boolean("mamba_rms_norm", False) else None,
        norm_is_first=file.boolean("mamba_norm_before_gate", True),
        multipliers=(gate, x, write, read, step),
    )
    return check_groups(file, plan, "mamba_n_groups")


class AttentionBeside(nnx.Module):
    """The first half of a layer: it gives its input and, after it, what attention makes of that, [T, 2 D]."""

    def __init__(self, config: FalconH1Config, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert isinstance(plan.attention, AttentionPlan)
        self.attention_norm = make_norm(plan.attention_norm, config.hidden_size, dtype=dtype, options=options)
        self.attention = Attention(config, plan.attention, options, dtype=dtype)
        self.scales = config.attention_scales

    def __call__(self, x: jax.Array, pages: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, 2 D]."""
        before, behind = self.scales
        attended, pages = self.attention(self.attention_norm(x) * before, pages, context)
        return jnp.concatenate([x, attended * behind], axis=-1), pages


class StateSpaceBeside(nnx.Module):
    """The second half: the state space, whose input is that of attention, their sum, and the MLP."""

    def __init__(self, config: FalconH1Config, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert plan.recurrence is not None
        assert isinstance(plan.mlp, MLPPlan)
        self.attention_norm = make_norm(plan.attention_norm, config.hidden_size, dtype=dtype, options=options)
        self.recurrence = make_recurrent(config, plan.recurrence, options, dtype=dtype)
        self.mlp_norm = make_norm(plan.mlp_norm, config.hidden_size, dtype=dtype, options=options)
        self.mlp = make_mlp(config, plan.mlp, dtype=dtype, options=options)
        self.scales, self.mlp_scale = config.recurrence_scales, config.mlp_scale

    def __call__(self, both: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map [T, 2 D] to [T, D]."""
        x, attended = jnp.split(both, 2, axis=-1)
        before, behind = self.scales
        mixed, states = self.recurrence(self.attention_norm(x) * before, states, context)
        x = x + (mixed * behind + attended)
        return x + self.mlp(self.mlp_norm(x), context.forward) * self.mlp_scale, states


def make_layer(config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
    """One half of a layer of the checkpoint."""
    assert isinstance(config, FalconH1Config)
    kind: Any = AttentionBeside if plan.recurrence is None else StateSpaceBeside
    half: nnx.Module = kind(config, plan, options, dtype)
    return half


def weight_names(config: ModelConfig) -> Names:
    """Blocks have names of their own; two layers have one number."""
    (plan, *_) = config.recurrences
    assert isinstance(plan, StateSpacePlan)
    names = {
        **LLAMA_NAMES,
        "norm": "model.final_layernorm",
        "layers.*.mlp_norm": "model.layers.*.pre_ff_layernorm",
        **{f"layers.*.mlp.{name}": f"model.layers.*.feed_forward.{name}_proj" for name in ("gate", "up", "down")},
        **state_space_names("model.layers.*.mamba", plan),
    }
    numbers = tuple(layer // 2 for layer in range(config.num_layers))
    return {name: replace(source_of(source), layers=numbers) for name, source in names.items()}


FAMILY = Family(
    read_config, make_layer=make_layer, weight_names=weight_names, ignored_tensors=(".inv_freq", ".mup_vector")
)
