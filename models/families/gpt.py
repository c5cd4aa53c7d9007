"""Shared by decoders in the manner of GPT: the spelling of their sizes, layer norms, fused attention weights."""

from collections.abc import Mapping
from typing import Any

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source, Transposed, fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import read_sizes
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan, OutputPlan

KEYS: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""How GPT-2 spells its sizes, and those that followed it."""

BUFFERS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
"""Masks and constants that old checkpoints hold besides the weights."""


UNUSED = ("n_ctx", "summary_*", "task_specific_params")
"""Options of GPT-2's time for other uses of a model."""


def reading(file: ConfigFile, names: Mapping[str, str], **defaults: Any) -> ConfigFile:
    """As `ConfigFile.reading`, where a missing or null `intermediate_size` is four times the hidden size."""
    view = file.reading(names, **defaults)
    if view.has("intermediate_size"):
        return view
    others = {ours: theirs for ours, theirs in names.items() if ours != "intermediate_size"}
    return file.but(intermediate_size=4 * view.integer("hidden_size")).reading(others, **defaults)


def read_layer_norm(file: ConfigFile, *, bias: bool = True) -> NormPlan:
    """A layer norm with the eps of `file`."""
    return NormPlan(kind="layer", eps=file.number("layer_norm_epsilon", 1e-5), bias=bias)


def parallel_model(file: ConfigFile, architecture: str, attention: AttentionPlan, activation: str) -> ModelConfig:
    """A model whose blocks stand side by side after one norm, with biases of feed-forward blocks and of the output."""
    norm = read_layer_norm(file)
    mlp = MLPPlan(activation=activation, is_gated=False, bias=True)
    layer = LayerPlan(attention=attention, mlp=mlp, attention_norm=norm, mlp_norm=None, is_parallel=True)
    return ModelConfig(
        architecture=architecture,
        **read_sizes(file),
        layers=(layer,) * file.integer("num_hidden_layers"),
        norm=norm,
        output=OutputPlan(bias=True),
    )


def refuse(file: ConfigFile, **expected: bool) -> None:
    """Raise `ModelError` for an option that is not as `expected`, which is also its default."""
    for key, value in expected.items():
        if file.boolean(key, value) is not value:
            raise ModelError(f"{file.source}: option {key!r} = {str(not value).lower()} is not supported")


def fused_attention(name: str, config: ModelConfig, blocks: int = 1) -> dict[str, Source]:
    """Queries, keys and values from the rows of tensors called `name`: each of `blocks` has its share of all three."""
    queries, keys = (heads * config.head_size // blocks for heads in (config.num_heads, config.num_kv_heads))
    attention = "layers.*.attention."
    sizes = {f"{attention}query": queries, f"{attention}key": keys, f"{attention}value": keys}
    return fused(name, sizes, blocks)


def transposed(sources: Mapping[str, str | Source]) -> dict[str, Source]:
    """The same, where matrices are stored as (in, out)."""
    named = {module: Source(source) if isinstance(source, str) else source for module, source in sources.items()}
    return {module: Source(source.name, Transposed(source.take)) for module, source in named.items()}


def with_prefix(prefix: str, *beginnings: str) -> dict[str, str]:
    """`Family.renamed` for checkpoints of the bare model, whose names lack the prefix."""
    return {f"{beginning}.": f"{prefix}{beginning}." for beginning in beginnings}
