"""What a token of a request costs attention for each token that it sees."""

from typing import NamedTuple

from jaxllm.models.attention_plan import AnyAttentionPlan, AttentionPlan, CompressedAttentionPlan, GroupIndexPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_shape import latent_sizes
from jaxllm.models.sharding import split_kv_heads


class Look(NamedTuple):
    """One reading of the cache by a layer."""

    window: int
    """Tokens that are seen at most; 0: all."""
    flops: float
    """Operations of a device for a token and one that it sees."""
    part: float
    """How much is read of what the cache has of a token and layer."""


def looks_of(model: ModelConfig, attention: AnyAttentionPlan, devices: int) -> tuple[Look, ...]:
    """The readings of a layer whose heads `devices` share: one, or with an index that of its keys, too.

    Chosen keys are as many as a window's. Each device compares the keys of the index for itself.
    """
    if isinstance(attention, CompressedAttentionPlan):
        return _compressed_looks(model, attention, devices)
    heads = model.heads_of(attention)
    if isinstance(attention, AttentionPlan):
        return _paged_looks(model, attention, devices, 4 * heads * model.head_size_of(attention) / devices)
    # Products with keys, and with values: latents are both, and rotated parts are of keys alone.
    flops = 2 * heads * (2 * attention.rank + attention.rope_size) / devices
    index, latent = attention.index, latent_sizes(model)
    assert latent is not None
    key = (attention.rank + attention.rope_size) / latent.token
    if index is None:
        return (Look(attention.window, flops, key),)
    chosen = Look(index.most, flops, key)
    if attention.shares_choice:
        return (chosen,)
    return (
        chosen,
        Look(0, 2.0 * index.heads * index.size / index.pool, index.cached_size / latent.token),
    )


def _compressed_looks(model: ModelConfig, plan: CompressedAttentionPlan, devices: int) -> tuple[Look, ...]:
    """Those of keys in the window, of entries, and of the index of these; an entry stands for as many tokens."""
    flops, made = 4.0 * model.num_heads * plan.size / devices, plan.compression
    window = Look(plan.window, flops, 1 / plan.row_units)
    if made is None:
        return (window,)
    part = 1 / (made.rate * plan.row_units)
    if made.index is None:
        return window, Look(0, flops / made.rate, part)
    chosen = Look(made.index.top * made.rate, flops / made.rate, part)
    compared = 2.0 * made.index.heads * made.index.size / made.rate
    return window, chosen, Look(0, compared, part * (plan.entry_units - 1))


def _paged_looks(model: ModelConfig, attention: AttentionPlan, devices: int, flops: float) -> tuple[Look, ...]:
    """Those of keys and values of heads. The cache has the index as one more head of each device."""
    heads = split_kv_heads(model.kv_heads_of(attention), devices) // devices
    part = heads / (heads + model.index_heads)
    index = attention.index
    if index is None:
        return (Look(attention.window, flops, part),)
    # What is scored are keys, the half of that head; of groups their means.
    each = index.heads / index.block if isinstance(index, GroupIndexPlan) else heads
    return (Look(index.most, flops, part), Look(0, 2.0 * each * index.size, (1 - part) / 2))
