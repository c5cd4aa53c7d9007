"""Entries that stand for groups of tokens, see `CompressionPlan`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.attention_plan import CompressedAttentionPlan, CompressionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import Rows, parameter
from jaxllm.models.layers.rope import Rotation, pair_order, rotate
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.compressed_attention import EntryIndex


class Pooling(NamedTuple):
    """The parameters of one kind of entries, or of their index keys."""

    bias: jax.Array
    """float32 [rate, parts * size], what is added to the weights of a token by its place in the group."""
    norm: jax.Array
    """float32 [size], the weight of the norm of entries."""


class EntryParameters(NamedTuple):
    """Those of a layer's entries, and of their index keys, if there are some."""

    entries: Pooling
    keys: Pooling | None


@dataclass(frozen=True)
class RawParts:
    """What the cache has of a token for entries: values and weights of each of `sizes`, so many `parts` of each."""

    sizes: tuple[int, ...]
    parts: int

    @classmethod
    def of(cls, plan: CompressedAttentionPlan) -> "RawParts":
        """For entries, and for their index keys."""
        made = plan.compression
        if made is None:
            return cls((), 1)
        return cls((plan.size,) if made.index is None else (plan.size, made.index.size), made.parts)

    def products(self) -> Iterator[tuple[str, int, int]]:
        """Name, numbers and size of each part of the product that gives them, in their order."""
        for name, size in zip(("entry", "index"), self.sizes, strict=False):
            yield f"{name}_value", self.parts * size, size
            yield f"{name}_weight", self.parts * size, size

    def split(self, raw: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        """Values and weights [..., parts * size] of each size, from all side by side."""
        found, start = [], 0
        for size in self.sizes:
            count = self.parts * size
            found.append((raw[..., start : start + count], raw[..., start + count : start + 2 * count]))
            start += 2 * count
        return found


class Pool(nnx.Module):
    """The parameters of means of `size` elements, see `Pooling`."""

    def __init__(self, plan: CompressedAttentionPlan, size: int, options: ForwardOptions) -> None:
        made, exact, rows = plan.compression, jnp.dtype(jnp.float32), rotated_last(plan, size)
        assert made is not None
        columns = tuple(part * size + place for part in range(made.parts) for place in rows.order or ())
        shape, whole = (made.rate, made.parts * size), sharding(options.mesh, None)
        self.bias = parameter(shape, exact, sharding(options.mesh, None, None), Rows(columns=columns))
        self.norm = parameter((size,), exact, whole, rows)

    def parameters(self) -> Pooling:
        """The arrays, for a function that devices run."""
        return Pooling(self.bias[...], self.norm[...])


class Compressor(nnx.Module):
    """The parameters by which entries are made and chosen."""

    def __init__(
        self, config: ModelConfig, plan: CompressedAttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        made = plan.compression
        assert made is not None
        self.plan, self.rope_size, index = made, plan.rope_size, made.index
        self.entries = Pool(plan, plan.size, options)
        self.keys = None if index is None else Pool(plan, index.size, options)
        linear = partial(Linear, bias=False, dtype=dtype, options=options, axes=(None, "hidden"))
        size, heads = (0, 0) if index is None else (index.size, index.heads)
        query = partial(linear, plan.query_rank, heads * size)
        self.index_query = query(rows=rotated_last(plan, size)) if index is not None else None
        self.index_weights = linear(config.hidden_size, heads) if index is not None else None
        if self.index_weights is not None:
            # They are used in float32, as a product gives them before adapters.
            self.index_weights.takes_adapters = False

    def parameters(self) -> EntryParameters:
        """The arrays, for a function that devices run."""
        return EntryParameters(self.entries.parameters(), None if self.keys is None else self.keys.parameters())

    def index(self, x: jax.Array, query_latent: jax.Array, context: LayerContext) -> EntryIndex | None:
        """The index of tokens `x` [T, D], with the latents of their queries."""
        plan, forward = self.plan.index, context.forward
        if plan is None or self.index_query is None or self.index_weights is None:
            return None
        query = self.index_query(query_latent, forward).reshape(len(x), plan.heads, plan.size)
        weights = self.index_weights.product(x, forward, out_dtype=jnp.float32) * plan.heads**-0.5
        return EntryIndex(rotate_last(query, self.rope_size, context.rotation), weights)


def pooled(
    values: jax.Array, weights: jax.Array, parameters: Pooling, plan: CompressionPlan, is_first: jax.Array, eps: float
) -> jax.Array:
    """Entries [G, size] before their rotation, from `values` and `weights` [G, n, parts * size] of groups.

    n is the rate, or twice as much where groups overlap: the group before, whose first part counts, and the group,
    whose second part does. Where `is_first` [G] there is none before.
    """
    rate, dtype = plan.rate, values.dtype
    scores = weights.astype(jnp.float32)
    if plan.overlaps:
        scores = scores + jnp.tile(parameters.bias, (2, 1))
        scores, values = (
            jnp.concatenate([before[:, :rate], own[:, rate:]], axis=1)
            for before, own in (jnp.split(each, 2, axis=-1) for each in (scores, values))
        )
        is_missing = is_first[:, None] & (jnp.arange(2 * rate, dtype=jnp.int32) < rate)
        scores = jnp.where(is_missing[:, :, None], -jnp.inf, scores)
    else:
        scores = scores + parameters.bias
    means = (values.astype(jnp.float32) * jax.nn.softmax(scores, axis=1)).sum(axis=1)
    normed = means * lax.rsqrt(jnp.square(means).mean(axis=-1, keepdims=True) + eps)
    return (parameters.norm * normed).astype(dtype)


def rotate_last(x: jax.Array, size: int, by: Rotation | None) -> jax.Array:
    """`x` [T, heads, H], the last `size` elements of each head rotated."""
    if by is None:
        return x
    return jnp.concatenate([x[..., :-size], rotate(x[..., -size:], by)], axis=-1)


def rotated_last(plan: CompressedAttentionPlan, size: int) -> Rows:
    """Rows of heads of `size` elements; the last elements of each head are rotated."""
    order = pair_order(plan.rope, plan.rope_size) or range(plan.rope_size)
    plain = size - plan.rope_size
    return Rows(group=size, order=(*range(plain), *(plain + place for place in order)))
