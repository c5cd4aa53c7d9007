"""Choosing tokens on a TPU: packs the arguments for the kernel, and calls it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.tpu.candidates import REGISTERS
from jaxllm.pallas_kernels.sampling.tpu.kernel import Control, Row, kernel
from jaxllm.pallas_kernels.sampling.tpu.lanes import TOGETHER, whole
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary
from jaxllm.pallas_kernels.tpu_common.constants import LANES, SUBLANES
from jaxllm.pallas_kernels.tpu_common.target import target

_MOST_ROWS = 32
"""Rows of a block. More hide the latency of what is computed once for each, but the first block arrives later."""

_ROOM = 6 << 20
"""Bytes of vector memory besides the scratch: parameters, results, and values in flight."""


def tpu_choose_tokens(
    logits: jax.Array,
    choice: Choice,
    vocabulary: Vocabulary = WHOLE,
    *,
    changed: tuple[jax.Array, jax.Array] | None = None,
    num_rows: jax.Array | None = None,
    interpret: pltpu.InterpretParams | bool = False,
) -> jax.Array:
    """See `choose_tokens`. Devices that split the vocabulary exchange parts for whole rows, and share these.

    Args:
        logits: float32 [R, V].
        choice: of the rows.
        vocabulary: how it is split.
        changed: other logits [R, V], and whether these count (bool []): a conditional that returned either would copy.
        num_rows: int32 []; rows from there on are not computed, and have an arbitrary token.
        interpret: for Pallas's interpreters.
    """
    count = logits.shape[0]
    padding = -count % vocabulary.devices
    both = [_padded(array, padding) for array in (logits, *(changed[:1] if changed else ()))]
    if changed is not None and vocabulary.devices > 1:
        # A copy of a part takes less than exchanging both.
        both = [jnp.where(changed[1], both[1], both[0])]
    both = [vocabulary.whole_rows(array) for array in both]
    own = jax.tree.map(lambda field: vocabulary.local_rows(_padded(field, padding)), choice)
    first = vocabulary.start(both[0].shape[0])
    control = Control(
        num_rows=both[0].shape[0] if num_rows is None else jnp.clip(num_rows - first, 0, both[0].shape[0]),
        has_other=changed[1] if changed is not None and len(both) > 1 else False,
        any_top_k=jnp.any(own.is_random & (own.top_k > 0)),
        any_top_p=jnp.any(own.is_random & (own.top_p < 1)),
    )
    tokens = _call(control, both[0], both[-1], _parameters(own), interpret)
    return vocabulary.gather_rows(tokens)[:count]


def _padded(array: jax.Array, rows: int, lanes: int = 0, fill: float = 0) -> jax.Array:
    """With so many more of both."""
    padding = ((0, rows), (0, lanes), *((0, 0),) * array.ndim)[: array.ndim]
    return jnp.pad(array, padding, constant_values=jnp.array(fill, array.dtype)) if rows or lanes else array


def _parameters(choice: Choice) -> jax.Array:
    """The fields of `Row` in the first lanes: float32 [R, 128]."""
    random = choice.is_random
    fields = Row(
        scale=1.0 / jnp.where(random, choice.temperature, 1.0),
        is_greedy=~random,
        top_k=jnp.where(random, choice.top_k, 0),
        top_p=jnp.where(random, choice.top_p, 1.0),
        min_p=jnp.where(random, jnp.minimum(choice.min_p, 1.0), 0.0),
        block_chance=jnp.where(random, choice.chance[:, 0], 0.0),
        place_chance=jnp.where(random, choice.chance[:, 1], 0.0),
    )
    columns = jnp.stack([field.astype(jnp.float32) for field in fields], axis=1)
    return _padded(columns, 0, LANES - len(fields))


def _call(
    control: Control, logits: jax.Array, other: jax.Array, rows: jax.Array, interpret: pltpu.InterpretParams | bool
) -> jax.Array:
    """The kernel for any size: int32 [R]."""
    count, size = logits.shape
    padding = -count % SUBLANES, -size % LANES
    logits, other = (_padded(array, *padding, fill=-np.inf) for array in (logits, other))
    scalars = jnp.stack([jnp.asarray(value, jnp.int32) for value in control])
    tokens = call_kernel(scalars, logits, other, _padded(rows, padding[0]), interpret=interpret)
    return jnp.minimum(tokens[:count, 0], size - 1)


def call_kernel(
    control: jax.Array,
    logits: jax.Array,
    other: jax.Array,
    rows: jax.Array,
    *,
    interpret: pltpu.InterpretParams | bool = False,
) -> jax.Array:
    """The kernel, int32 [R, 128], with the first references of `Memory`; R is a multiple of 8, V of 128."""
    count, size = logits.shape
    shapes = _scratch(rows_together(count, size), size)
    hbm, vmem = (pl.BlockSpec(memory_space=space) for space in (pltpu.HBM, pltpu.VMEM))
    tokens: jax.Array = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            in_specs=[hbm, hbm, vmem],
            out_specs=vmem,
            grid=(1,),
            scratch_shapes=[*(pltpu.VMEM(shape, jnp.float32) for shape in shapes), pltpu.SemaphoreType.DMA((2,))],
        ),
        out_shape=jax.ShapeDtypeStruct((count, LANES), jnp.int32),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=_bytes(shapes)),
        interpret=interpret,
        name="choose_tokens",
    )(control, logits, other, rows)
    return tokens


def rows_together(count: int, size: int) -> int:
    """Rows of a block, for so many rows of so many logits: as many as the vector memory holds.

    Raises `NotImplementedError` where it does not hold 8.
    """
    for rows in (_MOST_ROWS, _MOST_ROWS // 2, SUBLANES):
        if count % rows == 0 and _bytes(_scratch(rows, size)) <= target().vmem_bytes:
            return rows
    raise NotImplementedError(
        f"sampling with 'tpu' holds at least {SUBLANES} rows of {size} logits in vector memory, and this chip has "
        f"{target().vmem_bytes >> 20} MiB of it; choose 'xla'"
    )


def fits(device: jax.Device, size: int) -> bool:
    """Whether a device, which may be a description, can choose among so many tokens."""
    with jax.set_mesh(Mesh(np.array([device]), ("devices",))):
        return _bytes(_scratch(SUBLANES, size)) <= target().vmem_bytes


def _scratch(rows: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of `Memory.values`, `few` and `sums`."""
    registers = whole(size, TOGETHER * LANES) // LANES
    return (2, rows, registers * LANES), (rows, REGISTERS * LANES), (rows, registers // TOGETHER * LANES)


def _bytes(shapes: tuple[tuple[int, ...], ...]) -> int:
    return 4 * sum(math.prod(shape) for shape in shapes) + _ROOM
