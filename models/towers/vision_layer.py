"""The layers of vision transformers.

Axis letters: P patches, and the class token if there is one, V hidden size of the transformer.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import register_dataclass

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.layers.rope import Rotation, rotate
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.models.towers.attention import attend_segments
from jaxllm.pallas_kernels.segment_attention.segments import Segments

_UNSEEN = -1e6
"""Added to the scores, before their scale, of what is not seen. bfloat16 has it, too."""


@dataclass(frozen=True, kw_only=True)
class VisionLayerPlan:
    """Layers with a norm before each block: SigLIP's, unless options say otherwise.

    `qkv_bias` is of queries, keys and values, `bias` of all other products. Queries and keys may be normalised over
    all heads together. With `is_gated`, the MLP multiplies its activation with a second product. With
    `has_layer_scale`, each element of what a block adds has a factor (arXiv 2103.17239).
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    activation: str = "gelu_pytorch_tanh"
    norm: NormPlan = NormPlan(kind="layer", eps=1e-6, bias=True)
    qkv_bias: bool = True
    bias: bool = True
    query_key_norm: NormPlan | None = None
    is_gated: bool = False
    has_layer_scale: bool = False

    @property
    def head_size(self) -> int:
        """The size of a head."""
        return self.hidden_size // self.num_heads


@register_dataclass
@dataclass(frozen=True)
class SeenCrop:
    """What every layer is told of a crop: where its tokens lie, and how heads are rotated, if they are.

    Also which of the tokens are seen, bool [P], if not all.
    """

    segments: Segments
    rotation: Rotation | None = None
    is_seen: jax.Array | None = None

    @property
    def context(self) -> ForwardContext:
        """The context of products."""
        return ForwardContext(self.segments.num_tokens)


class VisionLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, plan: VisionLayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = plan.hidden_size
        norm = partial(make_norm, plan.norm, size, dtype=dtype, options=options)
        scale = partial(LayerScale, size, options, dtype)
        self.attention_norm = norm()
        self.attention = VisionAttention(plan, options, dtype)
        self.attention_scale = scale() if plan.has_layer_scale else None
        self.mlp_norm = norm()
        self.mlp = VisionMLP(plan, options, dtype)
        self.mlp_scale = scale() if plan.has_layer_scale else None

    def __call__(self, x: jax.Array, crop: SeenCrop) -> jax.Array:
        """Map [P, V] to [P, V]."""
        attended = self.attention(self.attention_norm(x), crop)
        x = x + (attended if self.attention_scale is None else self.attention_scale(attended))
        inner = self.mlp(self.mlp_norm(x), crop.context)
        return x + (inner if self.mlp_scale is None else self.mlp_scale(inner))


class LayerScale(nnx.Module):
    """A factor for each element."""

    def __init__(self, size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.weight = parameter((size,), dtype, sharding(options.mesh, None))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [P, V] to [P, V]."""
        return x * self.weight[...]


class VisionMLP(nnx.Module):
    """An activation between two products, or, gated, times a third."""

    def __init__(self, plan: VisionLayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, inner = plan.hidden_size, plan.intermediate_size
        linear = partial(Linear, bias=plan.bias, dtype=dtype, axes=(None, None), options=options)
        self.gate = linear(size, inner) if plan.is_gated else None
        self.up, self.down = linear(size, inner), linear(inner, size)
        self.activation = plan.activation

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [P, V] to [P, V]."""
        activation = ACTIVATIONS[self.activation]
        up = self.up(x, context)
        inner = activation(up) if self.gate is None else activation(self.gate(x, context)) * up
        return self.down(inner, context)


class VisionAttention(nnx.Module):
    """Attention of every token to its whole crop."""

    def __init__(self, plan: VisionLayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = plan.hidden_size
        linear = partial(Linear, size, size, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value = (linear(bias=plan.qkv_bias) for _ in range(3))
        self.output = linear(bias=plan.bias)
        norm = partial(make_norm, plan.query_key_norm, size, dtype=dtype, options=options)
        self.query_norm, self.key_norm = norm(), norm()
        self.head_size, self.options = plan.head_size, options

    def __call__(self, x: jax.Array, crop: SeenCrop) -> jax.Array:
        """Map [P, V] to [P, V]."""
        query = self._heads(self.query_norm(self.query(x, crop.context)))
        key = self._heads(self.key_norm(self.key(x, crop.context)))
        value = self._heads(self.value(x, crop.context))
        if crop.rotation is not None:
            query, key = rotate_first(query, crop.rotation), rotate_first(key, crop.rotation)
        if crop.is_seen is not None:
            query, key, value = without_unseen(query, key, value, crop.is_seen)
        attended = attend_segments(query, key, value, crop.segments, self.options, scale=self.head_size**-0.5)
        return self.output(attended[..., : self.head_size].reshape(x.shape), crop.context)

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(len(x), -1, self.head_size)


def without_unseen(
    query: jax.Array, key: jax.Array, value: jax.Array, is_seen: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Heads [P, N, H] with a few more elements, such that none attends to tokens that are not seen, bool [P].

    What is attended has them at the end, too. So every kernel does it.
    """
    more = 8 - query.shape[-1] % 8
    first = (jnp.arange(more) == 0).astype(query.dtype)
    unseen = jnp.where(is_seen, 0, _UNSEEN).astype(key.dtype)[:, None, None]

    def longer(x: jax.Array, tail: jax.Array) -> jax.Array:
        return jnp.concatenate([x, jnp.broadcast_to(tail, (*x.shape[:-1], more))], axis=-1)

    return longer(query, first), longer(key, unseen * first), longer(value, jnp.zeros_like(first))


def rotate_first(x: jax.Array, by: Rotation) -> jax.Array:
    """Rotate heads [P, N, H], or the first elements of each where there are fewer rotations than pairs of elements."""
    size = 2 * by[0].shape[-1]
    if size == x.shape[-1]:
        return rotate(x, by)
    return jnp.concatenate([rotate(x[..., :size], by), x[..., size:]], axis=-1)
