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
from jaxllm.pallas_kernels.linear.cpu.form import WEIGHT_BYTES, Form
from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused
from jaxllm.pallas_kernels.linear.lookup import look_up
from jaxllm.pallas_kernels.linear.weight import Weight, WeightLayout


def can_pack(in_size: int, dtype: str) -> bool:
    """Whether a kernel can: rows of whole vectors, and weights of a type (NumPy's name) that it reads."""
    return in_size % BLOCK == 0 and dtype in WEIGHT_BYTES


def matmul_target(form: Form) -> Target:
    """The kernel of a form."""
    return Target(f"jaxllm_matmul_{form.name}", partial(_build, form), Path(__file__).parent)


def _build(form: Form) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.linear.cpu.matmul import make_kernel

    return build(make_kernel(form))


def packed_layout(shape: tuple[int, ...], dtype: str, *, multiplies_pairs: bool = False) -> "Packed":
    """How weights of a type (NumPy's name) that kernels read are packed.

    With `multiplies_pairs`, which the processor must be able to do, bfloat16 is multiplied as it is.
    """
    if dtype == "bfloat16" and multiplies_pairs:
        return PackedPairs(shape)
    return Packed(shape)


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
        form, residual = self.form(weight.array.dtype.name), fused.residual
        is_added = self.shape[0] % BLOCK == 0 and residual is not None
        # What is added is not rounded before, nor is what it is added to.
        can_round = residual is None or (is_added and residual.dtype == jnp.bfloat16)
        is_narrow = form.is_native and jnp.dtype(out_dtype) == jnp.bfloat16 and can_round
        layer = 0 if weight.layer is None else weight.layer
        fused = fused if is_added else replace(fused, residual=None)
        out = matmul(x, weight.array, num_rows, layer, fused, form, jnp.bfloat16 if is_narrow else jnp.float32)
        out = out[:, : self.shape[0]]
        return (out if is_added or residual is None else out + residual.astype(out.dtype)).astype(out_dtype)

    def form(self, dtype: str) -> Form:
        """The kernel for weights of a type (NumPy's name)."""
        return Form(dtype)


@dataclass(frozen=True)
class PackedPairs(Packed):
    """Blocks of 16 outputs of bfloat16, [B, in / 2, 32]: element (o, i) is at [o // 16, i // 2, o % 16 * 2 + i % 2].

    32 bits hold two neighbouring inputs of an output, as AVX512-BF16 wants them. Rows become bfloat16 before they are
    multiplied.
    """

    @property
    def array_shape(self) -> tuple[int, ...]:
        """(B, in / 2, 32)."""
        out_size, in_size = self.shape
        return -(-out_size // BLOCK), in_size // 2, 2 * BLOCK

    def pack(self, tensor: jax.Array) -> jax.Array:
        """On the device."""
        blocks, half, _ = self.array_shape
        padding = [(0, 0)] * (tensor.ndim - 2) + [(0, blocks * BLOCK - tensor.shape[-2]), (0, 0)]
        apart = jnp.pad(tensor, padding).reshape(*tensor.shape[:-2], blocks, BLOCK, half, 2)
        return apart.swapaxes(-2, -3).reshape(*tensor.shape[:-2], blocks, half, 2 * BLOCK)

    def pack_into(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Block by block, two numbers as one."""
        if tensor.strides[-1] != tensor.itemsize:
            tensor = np.ascontiguousarray(tensor)
        super().pack_into(array.view(np.uint32), tensor.view(np.uint32))

    def rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """Gather what lies 16 pairs apart."""
        index = jnp.clip(index, 0, self.shape[0] - 1)
        half = self.array_shape[1]

        def take(array: jax.Array) -> jax.Array:
            return array.reshape(-1, half, BLOCK, 2)[index // BLOCK, :, index % BLOCK]

        return look_up(weight.array, take).reshape(*index.shape, 2 * half)

    def form(self, dtype: str) -> Form:
        """The only one."""
        return Form("bfloat16", is_native=True)


def matmul(
    x: jax.Array,
    weights: jax.Array,
    num_rows: jax.Array | int | None = None,
    layer: jax.Array | int = 0,
    fused: Fused = NOTHING,
    form: Form | None = None,
    out_dtype: DTypeLike = jnp.float32,
) -> jax.Array:
    """`x` [T, in] times a packed matrix [B, ...], or number `layer` of several [L, B, ...].

    Returns [T, 16 B] of `out_dtype`: float32, or bfloat16 if the form is native. Rows from `num_rows` on are zero. A
    residual is [T, 16 B]. A form that is not native, the default, computes with `x` as float32.
    """
    form = Form(weights.dtype.name) if form is None else form
    target, kind = matmul_target(form), jnp.bfloat16 if form.is_native else jnp.float32
    provide(target)
    several = weights if weights.ndim == 4 else weights[None]
    _, count, steps, _ = several.shape
    tokens, norm, depth = x.shape[0], fused.norm, steps * form.inputs_per_step
    is_narrow = jnp.dtype(out_dtype) == jnp.bfloat16
    ints = jnp.stack([jnp.int32(tokens if num_rows is None else num_rows), jnp.int32(layer), jnp.int32(is_narrow)])
    none = jnp.zeros(0, jnp.float32)
    prepared = (tokens, depth) if norm is not None or fused.is_gated else (0, 0)
    results = [jax.ShapeDtypeStruct((tokens, count * BLOCK), out_dtype), jax.ShapeDtypeStruct(prepared, kind)]
    y, _ = jax.ffi.ffi_call(target.name, results)(
        x.astype(kind),
        several,
        ints,
        none if norm is None else norm.weight.astype(jnp.float32),
        jnp.full(1, 0.0 if norm is None else norm.epsilon, jnp.float32),
        (none.reshape(0, 0) if fused.residual is None else fused.residual).astype(out_dtype),
    )
    return y
