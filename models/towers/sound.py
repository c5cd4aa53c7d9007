"""The towers of models that hear: from log-mel features of a window to keys and values for cross attention, or to rows.

Axis letters: B mel bins, F frames, P positions, which are half as many, V hidden size of the tower, R rows, D hidden
size of the language model.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.kv_shape import CacheLayout
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.rope import Rotation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import over_model, partition
from jaxllm.models.towers.crop import as_one_text
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.vision_layer import SeenCrop, VisionLayer, VisionLayerPlan
from jaxllm.pallas_kernels.paged_attention import NULL_PAGE, AttentionOptions, RaggedBatch, get_backend, paged_attention

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

    from jaxllm.models.config import ModelConfig

TAPS = 3
"""Frames that a convolution sees at a time."""


Windows = Literal["one", "apart", "together", "cut", "led"]
"""How sound becomes windows: it must fit into one; each has features of its own, and only what is sound has rows; all
have features together, and rows to their ends, silence included; or the features of all of it, without silence after
it, are cut, and a window that is not full ends where its sound does; or so, and a window also has the frames before it.
"""


@dataclass(frozen=True)
class RowsPlan:
    """How positions become rows that stand in place of a token: `positions_per_row` of them, their mean or in a row.

    Then come a product, or two with an `activation` between them, and as many elements as the language model has unless
    `inner_size` says otherwise. With `is_gated`, the activation is of the second half of them, times the first. With a
    `second_norm`, the positions in a row are normalised by their root mean square before the first product, and what
    is there before or after the second. A last row that has too few positions is left out, or with `fills_up` others
    are taken to be zero.
    """

    token_id: int
    windows: Windows = "one"
    positions_per_row: int = 2
    is_mean: bool = True
    activation: str | None = None
    bias: bool = True
    inner_size: int | None = None
    is_gated: bool = False
    second_norm: Literal["before", "after"] | None = None
    fills_up: bool = False

    def rows_of(self, num_positions: int) -> int:
        """Rows of so many positions."""
        return (num_positions + (self.positions_per_row - 1 if self.fills_up else 0)) // self.positions_per_row


@dataclass(frozen=True, kw_only=True)
class SoundPlan(VisionLayerPlan):
    """A transformer over the log-mel features of a window of sound, as Whisper has it (arXiv 2212.04356).

    `num_bins` features of each of twice as many frames as there are positions, `num_keys`. With `rows`, these stand in
    place of a token, as in Qwen2-Audio (arXiv 2407.10759); without, layers of the decoder have cross attention to all
    positions. Positions are learned, or the first `rotary_size` elements of heads are rotated by them. With `sees_all`,
    silence after the sound is seen as well.
    """

    num_layers: int
    num_bins: int
    num_keys: int
    rows: RowsPlan | None = None
    rotary_size: int | None = None
    rope_theta: float = 10000.0
    sees_all: bool = False

    @property
    def frames_per_key(self) -> int:
        """Frames that become a position."""
        return 2

    @property
    def context(self) -> int:
        """Frames of the sound before a window, which come first."""
        return 0

    @property
    def window_frames(self) -> int:
        """Frames of a window."""
        return self.frames_per_key * self.num_keys

    @property
    def num_frames(self) -> int:
        """Frames of a window, and those before it."""
        return self.context + self.window_frames

    @property
    def token_id(self) -> int | None:
        """The token in whose place rows stand."""
        return None if self.rows is None else self.rows.token_id

    @property
    def most_rows(self) -> int:
        """Rows of a window that is full of sound."""
        return 0 if self.rows is None else self.rows.rows_of(self.num_keys)

    @property
    def ends_with_sound(self) -> bool:
        """Whether there is nothing after the sound, not even silence."""
        return self.rows is not None and self.rows.windows == "cut"


def positions_of(num_frames: Any) -> Any:
    """Positions of so many frames, a number or an array."""
    return (num_frames + 1) // 2


class SoundEncoder(nnx.Module):
    """Two convolutions, positions, layers and a norm."""

    def __init__(self, plan: SoundPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.dtype, size = plan, dtype, plan.hidden_size

        def convolution(channels: int) -> Linear:
            return Linear(TAPS * channels, size, bias=True, dtype=dtype, axes=(None, None), options=options)

        self.first, self.second = convolution(plan.num_bins), convolution(size)
        self.positions = Table(plan.num_keys, size, dtype, options) if plan.rotary_size is None else None
        self.layers = RepeatedLayers(lambda: VisionLayer(plan, options, dtype), plan.num_layers, options)
        self.norm = make_norm(plan.norm, size, dtype=dtype, options=options)

    def __call__(self, features: jax.Array, num_frames: jax.Array | None = None) -> jax.Array:
        """Hidden states [P, V] of the log-mel features float32 [B, F] of a window, or means of several.

        Only positions of the first `num_frames` int32 [] see one another, and mean something; by default all.
        """
        plan = self.plan
        count = jnp.int32(plan.num_keys) if num_frames is None or plan.sees_all else positions_of(num_frames)
        activation = ACTIVATIONS[plan.activation]
        x = features.T.astype(self.dtype)
        x = activation(self.first(neighbours(self._ended(x, num_frames), 1), ALL_ROWS))
        x = activation(self.second(neighbours(self._ended(x, num_frames), 2), ALL_ROWS))
        if self.positions is not None:
            x = x + self.positions(jnp.arange(plan.num_keys, dtype=jnp.int32))
        seen = SeenCrop(as_one_text(count, plan.num_keys), rotation_of(plan))
        x = self.layers.run(lambda layer, number, x: layer(x, seen), x)
        if plan.rows is not None and plan.rows.is_mean:
            several = groups(x, plan.rows.positions_per_row)
            x = several.astype(jnp.float32).mean(axis=1).astype(x.dtype)
        return self.norm(x)

    def _ended(self, x: jax.Array, num_frames: jax.Array | None) -> jax.Array:
        """Rows of frames [F, C], with zeros after the sound where nothing is to be there."""
        if num_frames is None or not self.plan.ends_with_sound:
            return x
        return jnp.where(jnp.arange(len(x))[:, None] < num_frames, x, 0)


class SoundRows(nnx.Module):
    """The encoder, and the products that make rows in place of tokens of what it gives."""

    def __init__(self, config: "ModelConfig", options: ForwardOptions, dtype: jnp.dtype) -> None:
        plan, size = config.sound, config.hidden_size
        assert plan is not None
        assert plan.rows is not None
        self.plan, self.encoder, self.rows = plan, SoundEncoder(plan, options, dtype), plan.rows
        joined = plan.hidden_size * (1 if plan.rows.is_mean else plan.rows.positions_per_row)
        linear = partial(Linear, bias=plan.rows.bias, dtype=dtype, axes=(None, None), options=options)
        inner = size if plan.rows.inner_size is None else plan.rows.inner_size
        between = inner // 2 if plan.rows.is_gated else inner
        self.projector = linear(joined, inner)
        self.second = None if plan.rows.activation is None else linear(between, size)
        norm = partial(make_norm, NormPlan(), dtype=dtype, options=options)
        after = between if plan.rows.second_norm == "before" else size
        self.first_norm = None if plan.rows.second_norm is None else norm(joined)
        self.second_norm = None if plan.rows.second_norm is None else norm(after)

    def __call__(self, features: jax.Array, num_frames: jax.Array) -> jax.Array:
        """Rows [R, D] of the log-mel features float32 [B, F] of a window.

        The first `num_frames` int32 [] are sound.
        """
        x = self.encoder(features, num_frames)
        if not self.rows.is_mean:
            if self.rows.fills_up:
                x = jnp.where(jnp.arange(len(x))[:, None] < positions_of(num_frames), x, 0)
                x = jnp.pad(x, ((0, -len(x) % self.rows.positions_per_row), (0, 0)))
            x = groups(x, self.rows.positions_per_row)
            x = x.reshape(len(x), -1)
        x = x if self.first_norm is None else self.first_norm(x)
        x = self.projector(x, ALL_ROWS)
        return x if self.second is None else self._second(x, self.second)

    def _second(self, x: jax.Array, second: Linear) -> jax.Array:
        """What comes after the first product."""
        assert self.rows.activation is not None
        activation, norm = ACTIVATIONS[self.rows.activation], self.second_norm
        if self.rows.is_gated:
            up, gate = jnp.split(x, 2, axis=1)
            x = activation(gate) * up
        else:
            x = activation(x)
        if norm is None:
            return second(x, ALL_ROWS)
        return second(norm(x), ALL_ROWS) if self.rows.second_norm == "before" else norm(second(x, ALL_ROWS))


class SoundTower(nnx.Module):
    """The encoder, and for each layer of the decoder what makes keys and values of what it gives."""

    def __init__(self, config: "ModelConfig", options: ForwardOptions, dtype: jnp.dtype) -> None:
        plan = config.sound
        assert plan is not None
        self.plan, self.implementation = plan, options.attention
        self.stored_size = CacheLayout.of(config, options, dtype.name).stored_size(config.head_size)
        self.encoder = SoundEncoder(plan, options, dtype)
        self.cross = RepeatedLayers(lambda: CrossKeys(config, options, dtype), config.num_layers, options)

    def __call__(self, features: jax.Array, pages: jax.Array, first_page: jax.Array) -> jax.Array:
        """The cache's `pages` (see `cache_shape`) with the keys and values of a window from `first_page` int32 [] on.

        Its log-mel features are float32 [B, F].
        """
        page_size = get_backend(self.implementation).page_size(pages.shape, self.stored_size)
        window = window_batch(first_page, self.plan.num_keys, page_size)
        encoded = self.encoder(features)
        encoded = jnp.pad(encoded, ((0, len(window.positions) - len(encoded)), (0, 0)))
        return self.cross.run(lambda keys, layer, pages: keys(encoded, pages, layer, window), pages)


class CrossKeys(nnx.Module):
    """What a decoder's layer makes of the hidden states of a window: keys, which have no bias, and values."""

    def __init__(self, config: "ModelConfig", options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert config.sound is not None
        self.head_size, self.mesh, self.implementation = config.head_size, options.mesh, options.attention
        sizes = config.sound.hidden_size, config.num_kv_heads * config.head_size

        def product(*, bias: bool) -> Linear:
            return Linear(*sizes, bias=bias, dtype=dtype, axes=("heads", "hidden"), options=options)

        self.key, self.value = product(bias=False), product(bias=True)
        scale_bytes = CacheLayout.of(config, options, dtype.name).scale_bytes(config.head_size)
        # Only what is written counts: with the smallest window, hardly anything is computed.
        self.options = AttentionOptions(1.0, 1, scale_bytes=scale_bytes, checks=options.attention_checks)

    def __call__(self, encoded: jax.Array, pages: jax.Array, layer: jax.Array, window: RaggedBatch) -> jax.Array:
        """The cache with the keys and values of hidden states [P, V] in a layer int32 [] of it."""
        key, value = (
            made(encoded, ALL_ROWS).reshape(len(encoded), -1, self.head_size) for made in (self.key, self.value)
        )
        if self.mesh is None:
            return self._write(key, value, pages, layer, window)
        heads, cache, whole = partition(None, "kv_heads"), partition(None, None, None, "kv_heads"), partition()
        specs: tuple[PartitionSpec, ...] = (heads, heads, cache, whole, whole)
        written: jax.Array = over_model(self._write, self.mesh, specs, cache)(key, value, pages, layer, window)
        return written

    def _write(
        self, key: jax.Array, value: jax.Array, pages: jax.Array, layer: jax.Array, window: RaggedBatch
    ) -> jax.Array:
        query = jnp.zeros_like(key)
        _, pages = paged_attention(
            query, key, value, pages, layer, window, self.options, implementation=self.implementation
        )
        return pages


def rotation_of(plan: SoundPlan) -> Rotation | None:
    """The rotations [P, pairs] of all positions; None where these are learned."""
    if plan.rotary_size is None:
        return None
    frequencies = plan.rope_theta ** (-np.arange(0, plan.rotary_size, 2) / plan.rotary_size)
    angles = np.arange(plan.num_keys)[:, None] * frequencies
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def groups(x: jax.Array, size: int) -> jax.Array:
    """The rows of `x` [T, C], so many at a time: [T / size, size, C], without those of a group that is not full."""
    return x[: len(x) // size * size].reshape(-1, size, x.shape[1])


def neighbours(x: jax.Array, stride: int) -> jax.Array:
    """Every `stride`-th row of `x` [T, C] between the one before it and the one after it: [T / stride, 3 C]."""
    padded = jnp.pad(x, ((1, 1), (0, 0)))
    return jnp.concatenate([padded[tap : tap + len(x) : stride] for tap in range(TAPS)], axis=1)


def window_batch(first_page: jax.Array, num_keys: int, page_size: int) -> RaggedBatch:
    """The keys of a window as a row of tokens, in whole pages from `first_page` int32 [] on."""
    num_pages = -(-num_keys // page_size)
    place = jnp.arange(num_pages * page_size, dtype=jnp.int32)
    count, one = jnp.int32(num_keys), jnp.int32(1)
    pages = jnp.maximum(first_page, NULL_PAGE) + jnp.arange(num_pages, dtype=jnp.int32)
    return RaggedBatch(
        positions=jnp.where(place < num_keys, place, 0),
        token_rows=jnp.zeros_like(place),
        query_start=jnp.stack([jnp.int32(0), count]),
        kv_lens=count[None],
        page_table=pages[None],
        num_tokens=count,
        num_decodes=jnp.int32(0),
        num_requests=one,
    )
