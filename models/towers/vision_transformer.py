"""Vision transformers: patches of an image in, one hidden state for each out.

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer.
"""

from dataclasses import dataclass
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.rope import Rotation
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop, as_one_text
from jaxllm.models.towers.grid_vision import place_rotation
from jaxllm.models.towers.plan import PixelPlan
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.vision_layer import SeenCrop, VisionLayer, VisionLayerPlan

Carry = tuple[jax.Array, jax.Array]


@dataclass(frozen=True, kw_only=True)
class TransformerPlan(VisionLayerPlan):
    """A vision transformer (arXiv 2010.11929) as SigLIP has it, unless options say otherwise.

    Positions are learned, those of a square of `side` patches each way, if it `has_positions`. With
    `spreads_positions`, crops of other sizes have their patches spread over the square; with `resizes_positions`, the
    square is resized to the crop, see `resized`. Heads may be rotated by the row
    and the column of a patch, see `axial_rotation` for "axes" and `numbered_rotation` for "numbers".

    With a `class_token` there is one more token before the patches, which has a position of its own and is not rotated.
    With `keeps_class`, its hidden state is given, too, before those of the patches.

    What is given is the output of the last layer, through a norm if `has_last_norm`; or those of `taken_layers`, side
    by side, where 0 is what the first layer gets. `num_layers` are no more than needed.
    """

    num_layers: int
    patch_size: int
    side: int
    spreads_positions: bool = False
    resizes_positions: bool = False
    has_positions: bool = True
    rotation: Literal["axes", "numbers"] | None = None
    rope_theta: float = 10000.0
    channels: int = 3
    patch_bias: bool = True
    class_token: bool = False
    keeps_class: bool = False
    has_first_norm: bool = False
    has_last_norm: bool = True
    taken_layers: tuple[int, ...] = ()

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> "VisionTransformer":
        """The module."""
        return VisionTransformer(self, pixels, options, dtype)


class VisionTransformer(nnx.Module):
    """The embedding of patches, then layers and a norm."""

    def __init__(self, plan: TransformerPlan, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.pixels, self.dtype = plan, pixels, dtype
        bytes_of_patch, size = plan.patch_size**2 * plan.channels, plan.hidden_size
        self.patches = Linear(
            bytes_of_patch, size, bias=plan.patch_bias, dtype=dtype, axes=(None, None), options=options
        )
        self.class_token = Table(1, size, dtype, options) if plan.class_token else None
        num_positions = plan.side**2 + int(plan.class_token)
        self.positions = Table(num_positions, size, dtype, options) if plan.has_positions else None
        first, last = (plan.norm if has else None for has in (plan.has_first_norm, plan.has_last_norm))
        self.first_norm = make_norm(first, size, dtype=dtype, options=options)
        self.layers = RepeatedLayers(lambda: VisionLayer(plan, options, dtype), plan.num_layers, options)
        self.norm = make_norm(last, size, dtype=dtype, options=options)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P, V] of `patches` uint8 [P, B], whose bytes come by height, width and channel.

        One more, at first, if the class token's is kept; as many times V as layers are taken.
        """
        plan = self.plan
        x = self.first_norm(self._embedded(patches, crop))
        segments = as_one_text(crop.num_patches + int(plan.class_token), len(x))
        x, taken = self._run(x, SeenCrop(segments, self._rotation(crop), crop.is_seen))
        if not plan.taken_layers:
            found = self.norm(x)
        else:
            # There are no layers after the last one that is taken.
            found = x if len(plan.taken_layers) == 1 else jnp.concatenate([*taken], axis=1)
        return found[1:] if plan.class_token and not plan.keeps_class else found

    def _run(self, x: jax.Array, seen: SeenCrop) -> tuple[jax.Array, jax.Array]:
        """What the last layer gives, [P, V], and those that are taken where there are several, [n, P, V]."""
        several = self.plan.taken_layers if len(self.plan.taken_layers) > 1 else ()
        numbers = np.array(several, np.int32)[:, None, None]

        def step(layer: VisionLayer, number: jax.Array, carry: Carry) -> Carry:
            x = layer(carry[0], seen)
            return x, jnp.where(numbers == number + 1, x, carry[1])

        first = jnp.where(numbers == 0, x, jnp.zeros((len(several), *x.shape), x.dtype))
        return cast(Carry, self.layers.run(step, (x, first)))

    def _rotation(self, crop: Crop) -> Rotation | None:
        """That of the class token, if there is one, and of the patches."""
        plan = self.plan
        if plan.rotation is None:
            return None
        rotation = axial_rotation if plan.rotation == "axes" else numbered_rotation
        cos, sin = rotation(crop, plan.head_size, plan.rope_theta)
        first = (int(plan.class_token), 0), (0, 0)
        return jnp.pad(cos, first, constant_values=1.0), jnp.pad(sin, first)

    def _embedded(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Embeddings of the class token, if there is one, and of the patches."""
        plan = self.plan
        x = self.patches(self.pixels.numbers(patches).astype(self.dtype), crop.context)
        if self.class_token is not None:
            x = jnp.concatenate([self.class_token.weight[...], x])
        if self.positions is None:
            return x
        if plan.resizes_positions:
            return x + resized(self.positions, plan.side, crop).astype(x.dtype)
        ids = crop.spread_ids(plan.side) if plan.spreads_positions else crop.position_ids(plan.side)
        if self.class_token is not None:
            ids = jnp.concatenate([jnp.zeros(1, jnp.int32), ids + 1])
        return x + self.positions(ids)


def resized(table: Table, side: int, crop: Crop) -> jax.Array:
    """Learned positions of a square of `side` each way, resized to the crop as images are: float32 [P, V].

    Linearly, where a crop has fewer patches with a filter as wide as a patch is then.
    """
    scale = side / crop.size.astype(jnp.float32)
    centres = (crop.places.astype(jnp.float32) + 0.5) * scale - 0.5
    distances = jnp.abs(jnp.arange(side, dtype=jnp.float32) - centres[:, :, None])
    weights = jnp.maximum(1 - distances / jnp.maximum(scale, 1)[:, None], 0)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    both = (weights[:, 0, :, None] * weights[:, 1, None]).reshape(len(weights), -1)
    return jnp.matmul(both, table.weight[...].astype(jnp.float32), precision=lax.Precision.HIGHEST)


def axial_rotation(crop: Crop, head_size: int, theta: float) -> Rotation:
    """The rotation of Pixtral's heads: every other pair by the height of a patch, the others by its width.

    Those by height come first.
    """
    # In float64: see `jaxllm.models.layers.rope`.
    frequencies = 1.0 / theta ** (np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    by_axis = [frequencies[axis::2].astype(np.float32) for axis in range(2)]
    places = crop.places.astype(jnp.float32)
    angles = jnp.concatenate([places[:, axis, None] * by_axis[axis] for axis in range(2)], axis=1)
    return jnp.cos(angles), jnp.sin(angles)


def numbered_rotation(crop: Crop, head_size: int, theta: float) -> Rotation:
    """The rotation of Llama 4's heads: the first pairs by the column of a patch, the others by its row, from 1 on.

    Each column turns as much as the row of its number.
    """
    return place_rotation(crop.places[:, ::-1] + 1, head_size, theta)


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
        "tower.vision.layers.*.mlp.up": f"{layer}.mlp.fc1",
        "tower.vision.layers.*.mlp.down": f"{layer}.mlp.fc2",
    }
