"""Zamba 2 (arXiv 2411.15242): Mamba-2 layers, and few blocks of attention that many of them share, with adapters.

A layer of the checkpoint that has such a block is two here, and each has its own cache: the block, and the state space
after it, which gets what the block gives as well as its own input.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.cache import States
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, fused, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.mamba2 import OLD_KINDS, check_groups, state_space_names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.forward_context import ForwardContext, LayerContext
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.mlp import GatedMLP
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.recurrent import make_recurrent
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import StateSpacePlan

MAMBA, HYBRID = OLD_KINDS["mamba"], "hybrid"


@dataclass(frozen=True, kw_only=True)
class Zamba2Config(ModelConfig):
    """`hybrids` has the numbers of the checkpoint's layers that have a shared block; there are `blocks` of these.

    Every use of a block adds products of `rank` to its MLP, and to its attention if that `adapts`. With a rank of 0 it
    adds none.
    """

    hybrids: tuple[int, ...]
    blocks: int
    rank: int
    adapts: bool


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Zamba 2's configuration."""
    file.ignore("chunk_size", "time_step_max", "time_step_floor", "use_mamba_kernels", "use_mem_eff_path")
    # What transformers computes from others, or does not look at.
    file.ignore("use_conv_bias", "num_logits_to_keep", "kv_channels", "num_query_groups", "hybrid_layer_ids")
    if file.boolean("use_long_context", False):
        raise file.wrong("use_long_context", "false")
    if file.has("intermediate_size"):
        file.expect(ffn_hidden_size=file.integer("intermediate_size"))
    file.expect(gated_linear_unit=True)
    double = 2 * file.integer("hidden_size")
    size = double // file.integer("num_attention_heads", 32)
    names = {"intermediate_size": "intermediate_size", "head_dim": "attention_head_dim"}
    defaults = {"num_attention_heads": 32, "max_position_embeddings": 4096, "tie_word_embeddings": True}
    file = gpt.reading(file, names, **defaults, head_dim=size)
    for key, only in (("head_dim", size), ("attention_hidden_size", double)):
        if file.integer(key, only) != only:
            raise file.wrong(key, f"{only}, as 'hidden_size' and 'num_attention_heads' make it")
    sizes = read_sizes(file)
    if sizes["num_kv_heads"] != sizes["num_heads"]:
        raise file.wrong("num_key_value_heads", "that of 'num_attention_heads'")
    # Otherwise transformers shares no blocks either, and the checkpoint has one for each of their layers.
    gpt.refuse(file, tie_word_embeddings=True)
    kinds, blocks = read_kinds(file, 54), file.integer("num_mem_blocks", 1)
    norm, bias = NormPlan(eps=file.number("rms_norm_eps", 1e-5)), file.boolean("add_bias_linear", False)
    has_rope = file.boolean("use_mem_rope", False)
    rope = read_rope(file) if has_rope else None
    shared = LayerPlan(
        attention=AttentionPlan(rope=rope, scale=(size / 2) ** -0.5, input_size=double),
        mlp=MLPPlan(activation=read_activation(file, "hidden_act", "gelu"), bias=bias),
        attention_norm=norm,
        mlp_norm=norm,
    )
    file.ignore("rope_parameters", "rope_theta")
    mamba = LayerPlan(recurrence=_state_space(file, bias=bias), attention_norm=norm, has_mlp=False, mlp_norm=None)
    layers: list[LayerPlan] = []
    hybrids = [number for number, kind in enumerate(kinds) if kind == HYBRID]
    for number, kind in enumerate(kinds):
        if kind == HYBRID:
            layers.append(replace(shared, shared_block=hybrids.index(number) % blocks))
        layers.append(replace(mamba, adds_shared=kind == HYBRID))
    return Zamba2Config(
        architecture=architecture,
        **sizes,
        layers=tuple(layers),
        norm=norm,
        hybrids=tuple(hybrids),
        blocks=min(blocks, len(hybrids)),
        rank=file.integer("adapter_rank", 128),
        adapts=file.boolean("use_shared_attention_adapter", False),
    )


def read_kinds(file: ConfigFile, default: int) -> list[str]:
    """Kinds of all layers of the checkpoint, `default` by default."""
    count = file.integer("num_hidden_layers", default)
    kinds = [OLD_KINDS.get(kind, kind) for kind in file.texts("layers_block_type")]
    if len(kinds) != count:
        raise ModelError(f"{file.source}: 'layers_block_type' has {len(kinds)} entries for {count} layers")
    unknown = sorted(set(kinds) - {MAMBA, HYBRID})
    if unknown:
        raise ModelError(f"{file.source}: unsupported layer type {unknown[0]!r} in 'layers_block_type'")
    return kinds


def _state_space(file: ConfigFile, *, bias: bool) -> StateSpacePlan:
    heads, inner = file.integer("n_mamba_heads", 8), file.integer("mamba_expand", 2) * file.integer("hidden_size")
    if inner % heads:
        raise file.wrong("n_mamba_heads", f"a divisor of 'mamba_expand' times 'hidden_size', {inner}")
    if file.integer("mamba_headdim", inner // heads) != inner // heads:
        raise file.wrong("mamba_headdim", f"{inner // heads}, such that heads are {inner} together")
    plan = StateSpacePlan(
        heads=heads,
        head_size=inner // heads,
        state_size=file.integer("mamba_d_state", 64),
        groups=file.integer("mamba_ngroups", 1),
        width=file.integer("mamba_d_conv", 4, minimum=2),
        bias=bias,
        limits=(file.number("time_step_min", 0.001), float("inf")),
        norm=NormPlan(eps=1e-5),
    )
    return check_groups(file, plan, "mamba_ngroups")


class SharedBlock(nnx.Module):
    """Shared by the uses of a block: norms, attention and MLP."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert isinstance(plan.attention, AttentionPlan)
        assert isinstance(plan.mlp, MLPPlan)
        norm = partial(make_norm, dtype=dtype, options=options)
        self.attention_norm = norm(plan.attention_norm, 2 * config.hidden_size)
        self.attention = Attention(config, plan.attention, options, dtype=dtype)
        self.mlp_norm = norm(plan.mlp_norm, config.hidden_size)
        self.mlp = GatedMLP(config, plan.mlp, dtype=dtype, options=options)


def make_shared(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> nnx.List[nnx.Module]:
    """The blocks, by their numbers."""
    assert isinstance(config, Zamba2Config)
    plans = {plan.shared_block: plan for plan in config.layers if plan.shared_block is not None}
    return nnx.List([SharedBlock(config, plans[number], options, dtype) for number in range(config.blocks)])


class Adapter(nnx.Module):
    """`up(down(x))`, with a narrow middle."""

    def __init__(self, down: Linear, up: Linear) -> None:
        self.down, self.up = down, up

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [T, in] to [T, out]."""
        return self.up(self.down(x, context), context)


class BlockUse(nnx.Module):
    """One use of a shared block: adapters, and the product after it. It gives its input and, after it, that."""

    def __init__(self, config: Zamba2Config, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, heads = config.hidden_size, config.num_heads * config.head_size
        linear = partial(Linear, bias=False, dtype=dtype, options=options)

        def adapter(narrow: int, wide: int, axis: str, **rows: Any) -> Adapter:
            down = linear(narrow, config.rank, axes=(None, "hidden"))
            return Adapter(down, linear(config.rank, wide, axes=(axis, None), **rows))

        # The same for all uses, but not their own.
        parts = SharedBlock(config, plan, options, dtype).mlp.activation.parts
        self.gate_up = adapter(size, parts.size, "mlp", rows=parts) if config.rank else None
        by_head = partial(adapter, 2 * size, heads, "heads")
        self.query, self.key, self.value = (by_head() if config.adapts else None for _ in range(3))
        self.output = linear(size, size, axes=(None, "hidden"))
        self.plan = plan

    def __call__(self, x: jax.Array, pages: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, 2 D]."""
        assert context.shared is not None
        assert self.plan.shared_block is not None
        block: SharedBlock = context.shared.block(self.plan.shared_block)
        forward, attention, mlp = context.forward, block.attention, block.mlp
        both = block.attention_norm(jnp.concatenate([x, context.shared.embedded], axis=-1))
        projected = attention.query_key_value(both, forward)
        if self.query is not None and self.key is not None and self.value is not None:
            adapted = [adapter(both, forward) for adapter in (self.query, self.key, self.value)]
            projected = projected + attention.parts.join(adapted)
        attended, pages = attention.attend(projected, pages, context)
        normed = block.mlp_norm(attention.output(attended, forward))
        wide = mlp.gate_up(normed, forward)
        if self.gate_up is not None:
            wide = wide + self.gate_up(normed, forward)
        given = self.output(mlp.down(mlp.activation(wide), forward), forward)
        return jnp.concatenate([x, given], axis=-1), pages


class Mamba(nnx.Module):
    """`x + mixer(norm(x))`; after a shared block, what that gives is added to what is normalised."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert plan.recurrence is not None
        self.attention_norm = make_norm(plan.attention_norm, config.hidden_size, dtype=dtype, options=options)
        self.recurrence = make_recurrent(config, plan.recurrence, options, dtype=dtype)
        self.adds_shared = plan.adds_shared

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map [T, D], or [T, 2 D], to [T, D]."""
        x, given = jnp.split(x, 2, axis=-1) if self.adds_shared else (x, None)
        mixed, states = self.recurrence(self.attention_norm(x if given is None else x + given), states, context)
        return x + mixed, states


def make_layer(config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
    """The use of a block, or a state space."""
    assert isinstance(config, Zamba2Config)
    if plan.shared_block is None:
        return Mamba(config, plan, options, dtype)
    return BlockUse(config, plan, options, dtype)


def weight_names(config: ModelConfig) -> Names:
    """A block's tensors are in the first layer that uses it, and so are the adapters of all uses."""
    assert isinstance(config, Zamba2Config)
    plan = config.recurrences[0]
    assert isinstance(plan, StateSpacePlan)
    homes = config.hybrids[: config.blocks]
    numbers = checkpoint_numbers(config)
    names: dict[str, str | Source] = {
        "embedding": "model.embed_tokens",
        "norm": "model.final_layernorm",
        "head": "lm_head",
    }
    norm = {"layers.*.attention_norm": "model.layers.*.input_layernorm"}
    mixers = {**norm, **state_space_names("model.layers.*.mamba", plan)}
    whole = [f"{number}.mamba_decoder" if layer.adds_shared else number for number, layer in numbers]
    names |= renumbered(mixers, whole)
    block = "model.layers.*.shared_transformer"
    shared: dict[str, str | Source] = {
        "shared.*.attention_norm": f"{block}.input_layernorm",
        "shared.*.mlp_norm": f"{block}.pre_ff_layernorm",
        "shared.*.mlp.down": f"{block}.feed_forward.down_proj",
        **{
            f"shared.*.attention.{name}": f"{block}.self_attn.{name[0]}_proj"
            for name in ("query", "key", "value", "output")
        },
    }
    both = {"gate": config.intermediate_size, "up": config.intermediate_size}
    gate_up = fused(f"{block}.feed_forward.gate_up_proj", both)
    shared |= {f"shared.*.mlp.{name}": source for name, source in gate_up.items()}
    names |= renumbered(shared, homes)
    names |= _adapter_names(config, numbers, both)
    names |= renumbered({"layers.*.output": "model.layers.*.linear"}, [number for number, _ in numbers])
    return names


def _adapter_names(
    config: Zamba2Config, numbers: Sequence[tuple[int, LayerPlan]], both: dict[str, int]
) -> dict[str, Source]:
    """Sources of every use of a block, in a list with an entry for each use."""
    found: dict[str, Source] = {}
    kinds = {"gate_up": "feed_forward.gate_up_proj_adapter_list"}
    kinds |= {name: f"self_attn.linear_{name[0]}_adapter_list" for name in ("query", "key", "value")}
    for name, where in kinds.items():
        places: list[int | str] = []
        for number, _ in numbers:
            use = config.hybrids.index(number) if number in config.hybrids else 0
            home = config.hybrids[use % config.blocks] if config.hybrids else 0
            places.append(f"{home}.shared_transformer.{where}.{use}")
        found |= renumbered({f"layers.*.{name}.down": "model.layers.*.0"}, places)
        up = fused("model.layers.*.1", both) if name == "gate_up" else {"up": source_of("model.layers.*.1")}
        found |= renumbered({f"layers.*.{name}.{part}": source for part, source in up.items()}, places)
    return found


def checkpoint_numbers(config: Zamba2Config) -> list[tuple[int, LayerPlan]]:
    """For each layer, its number in the checkpoint, and its plan."""
    found, number = [], 0
    for plan in config.layers:
        found.append((number, plan))
        number += plan.shared_block is None
    return found


def renumbered(names: Names, numbers: Sequence[int | str]) -> dict[str, Source]:
    """The same names, where layers have these numbers in the checkpoint."""
    return {name: replace(source_of(source), layers=tuple(numbers)) for name, source in names.items()}


def other_parts(config: ModelConfig) -> tuple[str, ...]:
    """Blocks once more, in later layers that use them."""
    assert isinstance(config, Zamba2Config)
    return tuple(f"model.layers.{number}.shared_transformer." for number in config.hybrids[config.blocks :])


FAMILY = Family(
    read_config, make_layer=make_layer, make_shared=make_shared, weight_names=weight_names, other_parts=other_parts
)
