"""Packed weights: how a matrix lies in memory for the kernel in `matmul`, and the kernel's call."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.cpu_common.targets import Target, provide
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused
from jaxllm.pallas_kernels.linear.lookup import look_up
from jaxllm.pallas_kernels.linear.weight import Weight, WeightLayout

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}
"""Types of weights that the kernel reads, and their bytes."""


def can_pack(in_size: int, dtype: str) -> bool:
    """Whether the kernel can: rows of whole vectors, and weights of a type (NumPy's name) that it reads."""
    return in_size % BLOCK == 0 and dtype in WEIGHT_BYTES


def matmul_target(dtype: str) -> Target:
    """The kernel for weights of a type (NumPy's name)."""
    return Target(f"jaxllm_matmul_{dtype}", partial(_build, dtype), Path(__file__).parent)


def _build(dtype: str) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.linear.cpu.matmul import make_kernel

    return build(make_kernel(dtype, WEIGHT_BYTES[dtype]))


@dataclass(frozen=True)
class Packed(WeightLayout):
    """Blocks of 16 outputs, [B, in, 16]: element (o, i) of a matrix [out, in] is at [o // 16, i, o % 16].

    Rows of zeros make the last block whole. What a product reads of a few outputs lies side by side, and nothing has
    to be added across the lanes of a register.
    """

    is_packed: ClassVar[bool] = True
    in_stack: ClassVar[bool] = True

    @property
    def rows_per_entry(self) -> int:
        """16."""
        return BLOCK

    @property
    def array_shape(self) -> tuple[int, ...]:
        """(B, in, 16)."""
        out_size, in_size = self.shape
        return -(-out_size // BLOCK), in_size, BLOCK

    def pack(self, tensor: jax.Array) -> jax.Array:
        """On the device."""
        blocks, in_size, _ = self.array_shape
        padding = [(0, 0)] * (tensor.ndim - 2) + [(0, blocks * BLOCK - tensor.shape[-2]), (0, 0)]
        return jnp.pad(tensor, padding).reshape(*tensor.shape[:-2], blocks, BLOCK, in_size).swapaxes(-1, -2)

    def pack_into(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Block by block."""
        whole, rest = divmod(len(tensor), BLOCK)
        np.copyto(array[:whole], tensor[: whole * BLOCK].reshape(whole, BLOCK, tensor.shape[1]).transpose(0, 2, 1))
        if rest:
            array[whole, :, :rest] = tensor[whole * BLOCK :].T
            array[whole, :, rest:] = 0

    def rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """Gather what lies 16 elements apart."""
        index = jnp.clip(index, 0, self.shape[0] - 1)
        return look_up(weight.array, lambda array: array[index // BLOCK, :, index % BLOCK])

    def multiply(
        self,
        x: jax.Array,
        weight: Weight,
        num_rows: jax.Array | int | None = None,
        fused: Fused = NOTHING,
        *,
        out_dtype: DTypeLike = jnp.float32,
        platform: str = "cpu",
    ) -> jax.Array:
        """See `linear`. Padding is not computed, and a row's result depends on nothing but the row and the weights."""
        out_size, residual = self.shape[0], fused.residual
        is_whole = out_size % BLOCK == 0
        added = residual.astype(jnp.float32) if is_whole and residual is not None else None
        layer = 0 if weight.layer is None else weight.layer
        out = matmul(x.astype(jnp.float32), weight.array, num_rows, layer, replace(fused, residual=added))
        if not is_whole:
            out = out[:, :out_size] if residual is None else out[:, :out_size] + residual
        return out.astype(out_dtype)


def matmul(
    x: jax.Array,
    weights: jax.Array,
    num_rows: jax.Array | int | None = None,
    layer: jax.Array | int = 0,
    fused: Fused = NOTHING,
) -> jax.Array:
    """`x` float32 [T, in] times a packed matrix [B, in, 16], or number `layer` of several [L, B, in, 16].

    Returns float32 [T, 16 B]. Rows from `num_rows` on are zero. A residual is float32 [T, 16 B].
    """
    target = matmul_target(weights.dtype.name)
    provide(target)
    several = weights if weights.ndim == 4 else weights[None]
    _, count, depth, _ = several.shape
    tokens, norm = x.shape[0], fused.norm
    ints = jnp.stack([jnp.int32(tokens if num_rows is None else num_rows), jnp.int32(layer)])
    none = jnp.zeros(0, jnp.float32)
    prepared = (tokens, depth) if norm is not None or fused.is_gated else (0, 0)
    shapes = (tokens, count * BLOCK), prepared
    y, _ = jax.ffi.ffi_call(target.name, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])(
        x,
        several,
        ints,
        none if norm is None else norm.weight.astype(jnp.float32),
        jnp.full(1, 0.0 if norm is None else norm.epsilon, jnp.float32),
        none.reshape(0, 0) if fused.residual is None else fused.residual,
    )
    return y
