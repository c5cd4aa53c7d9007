"""The programs that turn a crop of an image into rows of the pool, and a window of sound into those, or into pages.

Also how a step takes rows of the pool.

Axis letters: E rows of the pool, P patches, B bytes of a patch, R rows, D hidden size times the parts of a row.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState
from jaxllm.models.batch import GivenEmbeddings
from jaxllm.models.towers.crop import Crop
from jaxllm.requests.media import MOST_SOURCES

if TYPE_CHECKING:
    from jaxllm.models.towers.conformer import ConformerRows
    from jaxllm.models.towers.image_tower import ImageTower
    from jaxllm.models.towers.plan import TowerPlan
    from jaxllm.models.towers.sound import SoundRows, SoundTower


def encode_body(context: ProgramContext[DeviceState], size: int) -> ProgramBody:
    """Encodes a crop of at most `size` patches."""
    plan, graph = context.tower, context.graph
    assert plan is not None
    return encoding(plan, size, lambda parameters: cast("ImageTower", nnx.merge(graph, parameters).tower), context.host)


def encoding(
    plan: "TowerPlan", size: int, tower_of: "Callable[[Any], ImageTower]", host: Callable[..., jax.ShapeDtypeStruct]
) -> ProgramBody:
    """What encodes a crop of at most `size` patches with the tower of a model, made of its parameters.

    `host` makes the shapes of arrays of the host, see `ProgramContext.host`.
    """

    def encode(
        parameters: Any,
        pool: jax.Array,
        patches: jax.Array,
        places: jax.Array,
        extent: jax.Array,
        rows: jax.Array,
        *blend: jax.Array,
    ) -> jax.Array:
        """The pool [E, D] with the rows of a crop at `rows` int32 [R], see `ImageTower`; those at -1 are not kept.

        `patches` uint8 [size, B] of `extent` int32 [2] each way are at `places` int32 [size, 2]. Where the model has
        sums of rows, `rows` and the `blend` are those of `Blend`.
        """
        encoded = tower_of(parameters)(patches, Crop(places, extent, filled))
        outside = jnp.where(rows < 0, pool.shape[0], rows)
        if blend:
            is_begun, sources, weights = blend
            parts = (encoded[sources].astype(jnp.float32) * weights[..., None]).sum(axis=1)
            encoded = parts + jnp.where(is_begun[:, None], pool[rows].astype(jnp.float32), 0.0)
        return pool.at[outside].set(encoded.astype(pool.dtype), mode="drop")

    filled = 1 if plan.fill is None else plan.merge
    targets = plan.targets_of(size)
    inputs = (host((size, plan.patch_bytes), np.uint8), host((size, 2)), host((2,)), host((targets,)))
    sums = (host((targets,), np.bool_), host((targets, MOST_SOURCES)), host((targets, MOST_SOURCES), np.float32))
    return ProgramBody(encode, (*inputs, *sums) if plan.has_sums else inputs)


def encode_sizes(context: ProgramContext[Any]) -> tuple[int, ...]:
    """The sizes of crops, in patches, that have a program each, the smallest first."""
    return () if context.tower is None else context.tower.sizes


def hear_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """Writes the keys and values of a window of sound."""
    plan = context.sound
    assert plan is not None

    def hear(
        parameters: Any, pages: tuple[jax.Array], features: jax.Array, first_page: jax.Array
    ) -> tuple[jax.Array, ...]:
        """The pools of pages with the window of `features` float32 [B, F] from `first_page` int32 [] on."""
        tower = cast("SoundTower", nnx.merge(context.graph, parameters).sound)
        return (tower(features, pages[0], first_page),)

    return ProgramBody(hear, (context.host((plan.num_bins, plan.num_frames), np.float32), context.host()))


def hear_rows_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """Writes the rows of a window of sound that stand in place of tokens."""
    plan = context.sound
    assert plan is not None

    def hear_rows(
        parameters: Any, pool: jax.Array, features: jax.Array, num_frames: jax.Array, rows: jax.Array
    ) -> jax.Array:
        """The pool [E, D] with the rows of a window at `rows` int32 [R], but for those at -1; see `SoundPlan`."""
        tower = cast("SoundRows | ConformerRows", nnx.merge(context.graph, parameters).sound)
        outside = jnp.where(rows < 0, pool.shape[0], rows)
        return pool.at[outside].set(tower(features, num_frames).astype(pool.dtype), mode="drop")

    window = context.host((plan.num_bins, plan.num_frames), np.float32)
    return ProgramBody(hear_rows, (window, context.host(), context.host((plan.most_rows,))))


def with_media(
    given: GivenEmbeddings | None, pool: jax.Array, media_rows: jax.Array, hidden_size: int
) -> tuple[GivenEmbeddings, jax.Array | None]:
    """Rows of the pool [E, n * D] in place of tokens, by `media_rows` int32 [T] (1 + row, or 0), besides those `given`.

    Also what is added after the first layers, [n - 1, T, D], or None where rows have one part.
    """
    is_given = media_rows > 0
    shape = (len(media_rows), pool.shape[1])
    # Most steps have no images: their tokens are not looked up twice.
    rows = lax.cond(is_given.any(), lambda: pool[jnp.maximum(media_rows - 1, 0)], lambda: jnp.zeros(shape, pool.dtype))
    added = None
    if pool.shape[1] > hidden_size:
        parts = rows.reshape(len(rows), -1, hidden_size).swapaxes(0, 1)
        rows, added = parts[0], jnp.where(is_given[:, None], parts[1:], 0)
    if given is None:
        return GivenEmbeddings(rows, is_given), added
    rows = jnp.where(is_given[:, None], rows, given.rows)
    return GivenEmbeddings(rows, is_given | given.is_given), added
