"""Vision transformers: patches of an image in, one hidden state for each out.

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer, N heads, H head size.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import PixelPlan
from jaxllm.pallas_kernels.segment_attention.api import segment_attention


@dataclass(frozen=True, kw_only=True)
class TransformerPlan:
    """A vision transformer (arXiv 2010.11929) as CLIP and SigLIP have it: learned positions, norms before each block.

    The positions are those of a square of `side` patches each way.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    side: int
    activation: str = "gelu_pytorch_tanh"
    norm: NormPlan = NormPlan(kind="layer", eps=1e-6, bias=True)
    channels: int = 3

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> "VisionTransformer":
        """The module."""
        return VisionTransformer(self, pixels, options, dtype)


class VisionTransformer(nnx.Module):
    """The embedding of patches, then layers and a norm."""

    def __init__(self, plan: TransformerPlan, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.pixels, self.dtype = plan, pixels, dtype
        size = plan.patch_size**2 * plan.channels
        self.patches = Linear(size, plan.hidden_size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.positions = Table(plan.side**2, plan.hidden_size, dtype, options)
        self.layers = nnx.List([VisionLayer(plan, options, dtype) for _ in range(plan.num_layers)])
        self.norm = make_norm(plan.norm, plan.hidden_size, dtype=dtype, options=options)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P, V] of `patches` uint8 [P, B], whose bytes come by height, width and channel."""
        x = self.patches(self.pixels.numbers(patches).astype(self.dtype), crop.context)
        x = x + self.positions(crop.position_ids(self.plan.side))
        for layer in self.layers:
            x = layer(x, crop)
        return self.norm(x)


class VisionLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, plan: TransformerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = plan.hidden_size
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.attention_norm = make_norm(plan.norm, size, dtype=dtype, options=options)
        self.attention = VisionAttention(plan, options, dtype)
        self.mlp_norm = make_norm(plan.norm, size, dtype=dtype, options=options)
        self.up = linear(size, plan.intermediate_size)
        self.down = linear(plan.intermediate_size, size)
        self.activation = plan.activation

    def __call__(self, x: jax.Array, crop: Crop) -> jax.Array:
        """Map [P, V] to [P, V]."""
        x = x + self.attention(self.attention_norm(x), crop)
        inner = ACTIVATIONS[self.activation](self.up(self.mlp_norm(x), crop.context))
        return x + self.down(inner, crop.context)


class VisionAttention(nnx.Module):
    """Attention of every patch to its whole crop."""

    def __init__(self, plan: TransformerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = plan.hidden_size
        linear = partial(Linear, size, size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value, self.output = linear(), linear(), linear(), linear()
        self.head_size = size // plan.num_heads

    def __call__(self, x: jax.Array, crop: Crop) -> jax.Array:
        """Map [P, V] to [P, V]."""
        context: ForwardContext = crop.context
        query, key, value = (
            project(x, context).reshape(len(x), -1, self.head_size) for project in (self.query, self.key, self.value)
        )
        attended = segment_attention(query, key, value, crop.segments, scale=self.head_size**-0.5)
        return self.output(attended.reshape(x.shape), context)


def vision_names(prefix: str) -> dict[str, str]:
    """Names in checkpoints of a `VisionTransformer` called `tower.vision` here and `prefix` there.

    Those of CLIP, SigLIP and their copies but for the embedding of patches, which is a convolution.
    """
    layer = f"{prefix}.encoder.layers.*"
    return {
        "tower.vision.positions": f"{prefix}.embeddings.position_embedding",
        "tower.vision.norm": f"{prefix}.post_layernorm",
        "tower.vision.layers.*.attention_norm": f"{layer}.layer_norm1",
        "tower.vision.layers.*.attention.query": f"{layer}.self_attn.q_proj",
        "tower.vision.layers.*.attention.key": f"{layer}.self_attn.k_proj",
        "tower.vision.layers.*.attention.value": f"{layer}.self_attn.v_proj",
        "tower.vision.layers.*.attention.output": f"{layer}.self_attn.out_proj",
        "tower.vision.layers.*.mlp_norm": f"{layer}.layer_norm2",
        "tower.vision.layers.*.up": f"{layer}.mlp.fc1",
        "tower.vision.layers.*.down": f"{layer}.mlp.fc2",
    }
