"""The vision model of SAM (arXiv 2304.02643), and GOT-OCR 2's projector (arXiv 2409.01704).

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer, C channels that it gives, S patches on
each side of a crop, M windows, W patches on each side of a window, N heads, H head size, D hidden size of the language
model.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from math import isqrt

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import PixelPlan, VisionPlan


@dataclass(frozen=True, kw_only=True)
class SamPlan:
    """A transformer of crops of `side` patches each way; most of its layers attend in windows.

    Windows have `window` patches each way; layers with the numbers in `whole` have none. Scores depend on distances in
    height and width, unless `is_relative` is false. A neck makes `hidden_size` channels of `inner_size`. What was
    learned for positions and distances is resized to square crops of other sizes.
    """

    hidden_size: int
    inner_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    side: int
    window: int
    whole: Collection[int]
    activation: str = "gelu"
    norm: NormPlan = NormPlan(kind="layer", eps=1e-6, bias=True)
    qkv_bias: bool = True
    has_positions: bool = True
    is_relative: bool = True
    channels: int = 3

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> "SamVision":
        """The module."""
        return SamVision(self, pixels, options, dtype)


class SamVision(nnx.Module):
    """The embedding of patches, layers and the neck, which mixes neighbours. Crops fill their program."""

    def __init__(self, plan: SamPlan, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.pixels, self.dtype = plan, pixels, dtype
        size, channels = plan.inner_size, plan.hidden_size
        linear = partial(Linear, dtype=dtype, axes=(None, None), options=options)
        norm = partial(make_norm, NormPlan(kind="layer", eps=1e-6, bias=True), channels, dtype=dtype, options=options)
        self.patches = linear(plan.patch_size**2 * plan.channels, size, bias=True)
        self.positions = Table(plan.side**2, size, dtype, options) if plan.has_positions else None
        windows = [0 if layer in plan.whole else plan.window for layer in range(plan.num_layers)]
        self.layers = nnx.List([SamLayer(plan, window, options, dtype) for window in windows])
        self.neck, self.neck_norm = linear(size, channels, bias=False), norm()
        self.mix, self.mix_norm = Convolution(channels, channels, options, dtype), norm()

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P, C] of `patches` uint8 [P, B], line by line, whatever the order of patches."""
        side = isqrt(len(patches))
        x = self.patches(self.pixels.numbers(patches).astype(self.dtype), crop.context)
        ids = crop.position_ids(side)
        x = jnp.zeros_like(x).at[ids].set(x)
        if self.positions is not None:
            x = x + resized_square(self.positions.weight[...], side)
        x = x.reshape(side, side, -1)
        for layer in self.layers:
            x = layer(x)
        channels = self.neck_norm(self.neck(x.reshape(side**2, -1), ALL_ROWS)).reshape(side, side, -1)
        return self.mix_norm(self.mix(channels)).reshape(side**2, -1)


class Convolution(nnx.Module):
    """A product of each 3 by 3 neighbours, `weight` [out, in, 3, 3]; with a stride, of every so many each way."""

    def __init__(
        self, in_size: int, out_size: int, options: ForwardOptions, dtype: jnp.dtype, *, stride: int = 1
    ) -> None:
        self.weight = parameter((out_size, in_size, 3, 3), dtype, sharding(options.mesh, None, None, None, None))
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [S, S, in] to [S / stride, S / stride, out]; beyond the edge is zero."""
        strides, edges = (self.stride, self.stride), ((1, 1), (1, 1))
        layouts = ("NHWC", "OIHW", "NHWC")
        return lax.conv_general_dilated(x[None], self.weight[...], strides, edges, dimension_numbers=layouts)[0]


class SamLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; attention in windows, if there are any."""

    def __init__(self, plan: SamPlan, window: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, self.window = plan.inner_size, window
        norm = partial(make_norm, plan.norm, size, dtype=dtype, options=options)
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.attention = SamAttention(plan, window or plan.side, options, dtype)
        self.up, self.down = linear(size, plan.intermediate_size), linear(plan.intermediate_size, size)
        self.activation = plan.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [S, S, V] to [S, S, V]."""
        side, size = x.shape[0], x.shape[2]
        normed = self.attention_norm(x)
        window = self.window or side
        # Windows reach beyond the edge, where zeros are keys like others.
        across = -(-side // window)
        missing = across * window - side
        padded = jnp.pad(normed, ((0, missing), (0, missing), (0, 0)))
        squares = padded.reshape(across, window, across, window, size).transpose(0, 2, 1, 3, 4)
        attended = self.attention(squares.reshape(across**2, window, window, size))
        joined = attended.reshape(across, across, window, window, size).transpose(0, 2, 1, 3, 4)
        x = x + joined.reshape(across * window, across * window, size)[:side, :side]
        rows = self.mlp_norm(x).reshape(side**2, size)
        return x + self.down(ACTIVATIONS[self.activation](self.up(rows, ALL_ROWS)), ALL_ROWS).reshape(x.shape)


class SamAttention(nnx.Module):
    """Attention of every patch to its window, line by line, so that scores take little memory."""

    def __init__(self, plan: SamPlan, window: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, self.heads = plan.inner_size, plan.num_heads
        self.head_size = size // plan.num_heads
        linear = partial(Linear, dtype=dtype, axes=(None, None), options=options)
        self.qkv, self.output = linear(size, 3 * size, bias=plan.qkv_bias), linear(size, size, bias=True)
        # Of distances, from the most negative on.
        table = partial(Table, 2 * window - 1, self.head_size, dtype, options)
        self.by_height = table() if plan.is_relative else None
        self.by_width = table() if plan.is_relative else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [M, W, W, V] to [M, W, W, V]."""
        count, window, _, size = x.shape
        rows = self.qkv(x.reshape(-1, size), ALL_ROWS)
        # Lines first, for the loop over them.
        heads = rows.reshape(count, window, window, 3, self.heads, self.head_size).transpose(3, 1, 0, 2, 4, 5)
        queries, keys, values = heads
        distances = jnp.arange(window, dtype=jnp.int32)[:, None] - jnp.arange(window, dtype=jnp.int32) + window - 1
        by_height, by_width = (
            None if table is None else _resized_line(table.weight[...], 2 * window - 1)
            for table in (self.by_height, self.by_width)
        )

        def line(number: jax.Array) -> jax.Array:
            """Queries of a line of every window, [M, W, N, H], against all keys of it."""
            query = queries[number]
            scores = jnp.einsum("mqnh,kmlnh->mnqkl", query, keys, preferred_element_type=jnp.float32)
            scores = scores * self.head_size**-0.5
            if by_height is not None and by_width is not None:
                down, across = by_height[distances[number]], by_width[distances]
                scores += jnp.einsum("mqnh,kh->mnqk", query, down, preferred_element_type=jnp.float32)[..., None]
                sideways = jnp.einsum("mqnh,qlh->mnql", query, across, preferred_element_type=jnp.float32)
                scores += sideways[:, :, :, None]
            weights = jax.nn.softmax(scores, axis=(-2, -1)).astype(values.dtype)
            return jnp.einsum("mnqkl,kmlnh->mqnh", weights, values)

        attended = lax.map(line, jnp.arange(window, dtype=jnp.int32)).transpose(1, 0, 2, 3, 4)
        return self.output(attended.reshape(-1, size), ALL_ROWS).reshape(x.shape)


def resized_square(rows: jax.Array, side: int) -> jax.Array:
    """Rows [S * S, V] of a square as those of one of `side` each way: as images are resized, with cubic filters."""
    trained, size = isqrt(len(rows)), rows.shape[1]
    if trained == side:
        return rows
    square = rows.astype(jnp.float32).reshape(trained, trained, size)
    return jax.image.resize(square, (side, side, size), "cubic").reshape(side**2, size).astype(rows.dtype)


def _resized_line(rows: jax.Array, count: int) -> jax.Array:
    """Rows [n, H] as `count` ones, each between two of them."""
    if len(rows) == count:
        return rows
    line = jax.image.resize(rows.astype(jnp.float32), (count, rows.shape[1]), "linear", antialias=False)
    return line.astype(rows.dtype)


class Strides(nnx.Module):
    """Two convolutions that leave every fourth patch each way, between channels `sizes`."""

    def __init__(self, sizes: tuple[int, int, int], options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.first = Convolution(sizes[0], sizes[1], options, dtype, stride=2)
        self.second = Convolution(sizes[1], sizes[2], options, dtype, stride=2)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Rows [P / 16, out] of [P, C], which come line by line."""
        side = isqrt(len(hidden))
        return self.second(self.first(hidden.reshape(side, side, -1))).reshape(len(hidden) // 16, -1)


@dataclass(frozen=True)
class StridedPlan:
    """Two convolutions that leave every fourth patch each way, and a product."""

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "StridedProjector":
        """The module."""
        return StridedProjector(vision.hidden_size, hidden_size, options, dtype)


class StridedProjector(nnx.Module):
    """See `StridedPlan`."""

    def __init__(self, channels: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.strides = Strides((channels, 2 * channels, hidden_size), options, dtype)
        self.linear = Linear(hidden_size, hidden_size, bias=True, dtype=dtype, axes=(None, None), options=options)

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / 16, D] of [P, C], which come line by line. All of them count."""
        return self.linear(self.strides(hidden), ALL_ROWS)
