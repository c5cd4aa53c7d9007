"""Zamba: selective scans in heads, and one block of attention and MLP that several layers share."""

from dataclasses import replace

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import InHeads, Interleaved, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.mamba import read_rank
from jaxllm.models.families.zamba2 import (
    HYBRID,
    MAMBA,
    Zamba2Config,
    checkpoint_numbers,
    make_layer,
    make_shared,
    read_kinds,
    renumbered,
)
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import SelectiveScanPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Zamba's configuration."""
    file.ignore("time_step_*", "use_mamba_kernels", "use_associative_scan", "num_logits_to_keep")
    hidden, heads = file.integer("hidden_size"), file.integer("num_attention_heads", 16)
    file.expect(attention_hidden_size=2 * hidden)
    defaults = {"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096}
    # Without it, the two times hidden size of what a block gets is what its heads share.
    size = file.optional_integer("attention_head_dim") or 2 * hidden // heads
    file = file.but(attention_head_dim=size).reading({"head_dim": "attention_head_dim"}, **defaults)
    file = file.reading(tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    # Otherwise transformers shares no blocks either, and the checkpoint has one for each of their layers.
    gpt.refuse(file, tie_word_embeddings=True)
    sizes, kinds = read_sizes(file), _kinds(file)
    norm = NormPlan(eps=file.number("rms_norm_eps", 1e-5))
    shared = LayerPlan(
        attention=AttentionPlan(rope=None, scale=(size / 2) ** -0.5, input_size=2 * hidden),
        mlp=MLPPlan(activation=read_activation(file, "hidden_act", "gelu")),
        attention_norm=norm,
        mlp_norm=norm,
        shared_block=0,
    )
    mamba = LayerPlan(recurrence=_scan(file, hidden), attention_norm=norm, has_mlp=False, mlp_norm=None)
    pairs = {HYBRID: (shared, replace(mamba, adds_shared=True)), MAMBA: (mamba,)}
    hybrids = tuple(number for number, kind in enumerate(kinds) if kind == HYBRID)
    return Zamba2Config(
        architecture=architecture,
        **sizes,
        layers=tuple(layer for kind in kinds for layer in pairs[kind]),
        norm=norm,
        hybrids=hybrids,
        blocks=min(1, len(hybrids)),
        rank=0,
        adapts=False,
    )


def _kinds(file: ConfigFile) -> list[str]:
    """Kinds of all layers of the checkpoint; the third is the first that has the block, by default."""
    period, offset = file.integer("attn_layer_period", 6), file.integer("attn_layer_offset", 4, minimum=0)
    if file.has("layers_block_type"):
        return read_kinds(file, 76)
    later = range(file.integer("num_hidden_layers", 76) - 3)
    return [MAMBA, MAMBA, HYBRID, *(HYBRID if layer % period == offset else MAMBA for layer in later)]


def _scan(file: ConfigFile, hidden: int) -> SelectiveScanPlan:
    heads, channels = file.integer("n_mamba_heads", 2), file.integer("mamba_expand", 2) * hidden
    if channels % heads:
        raise file.wrong("n_mamba_heads", f"a divisor of 'mamba_expand' times 'hidden_size', {channels}")
    return SelectiveScanPlan(
        channels=channels,
        heads=heads,
        state_size=file.integer("mamba_d_state", 16),
        rank=read_rank(file, "mamba_dt_rank"),
        width=file.integer("mamba_d_conv", 4, minimum=2),
        activation=read_activation(file, "hidden_mamba_act", "silu"),
        bias=file.boolean("mamba_proj_bias", False),
        convolution_bias=file.boolean("mamba_conv_bias", True),
    )


def weight_names(config: ModelConfig) -> Names:
    """The block's tensors are in the first layer that uses it."""
    assert isinstance(config, Zamba2Config)
    plan, numbers = config.recurrences[0], checkpoint_numbers(config)
    assert isinstance(plan, SelectiveScanPlan)
    block, shared = "model.layers.*.mamba", "model.layers.*.shared_transf"
    of_heads = {"a_log": ".A_log", "skip": ".D", "step_bias": ".dt_proj_bias"}
    # With one head its tensors have the axis, too.
    heads = InHeads(plan.heads)
    mixers: dict[str, str | Source] = {
        "layers.*.attention_norm": "model.layers.*.input_layernorm",
        "layers.*.recurrence": Source(block, heads, of_heads),
        "layers.*.recurrence.x": Source(f"{block}.in_proj", Interleaved(2, 0)),
        "layers.*.recurrence.gate": Source(f"{block}.in_proj", Interleaved(2, 1)),
        "layers.*.recurrence.convolution": f"{block}.conv1d",
        "layers.*.recurrence.selection": Source(f"{block}.x_proj", heads, {"weight": "_weight"}),
        "layers.*.recurrence.step": Source(f"{block}.dt_proj", heads, {"weight": "_weight", "bias": "_bias"}),
        "layers.*.recurrence.output": f"{block}.out_proj",
    }
    uses = {"layers.*.output": "model.layers.*.linear"}
    blocks = {
        "shared.*.attention_norm": f"{shared}.input_layernorm",
        "shared.*.mlp_norm": f"{shared}.pre_ff_layernorm",
        **{f"shared.*.mlp.{name}": f"{shared}.feed_forward.{name}_proj" for name in ("gate", "up", "down")},
        **{
            f"shared.*.attention.{name}": f"{shared}.self_attn.{name[0]}_proj"
            for name in ("query", "key", "value", "output")
        },
    }
    whole = [f"{number}.mamba_decoder" if layer.adds_shared else number for number, layer in numbers]
    return {
        "embedding": "model.embed_tokens",
        "norm": "model.final_layernorm",
        "head": "lm_head",
        **renumbered(mixers, whole),
        **renumbered(uses, [number for number, _ in numbers]),
        **renumbered(blocks, config.hybrids[: config.blocks]),
    }


def other_parts(config: ModelConfig) -> tuple[str, ...]:
    """The block once more, in later layers that use it."""
    assert isinstance(config, Zamba2Config)
    return tuple(f"model.layers.{number}.shared_transf." for number in config.hybrids[config.blocks :])


FAMILY = Family(
    read_config, make_layer=make_layer, make_shared=make_shared, weight_names=weight_names, other_parts=other_parts
)
