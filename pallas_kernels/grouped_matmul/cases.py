"""Cases of grouped products, which every implementation is held to, and how exact each must be."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.grouped_matmul.api import IMPLEMENTATIONS
from jaxllm.pallas_kernels.grouped_matmul.reference import reference_grouped_matmul
from jaxllm.pallas_kernels.grouped_matmul.tpu.layout import Streamed
from jaxllm.pallas_kernels.linear import RowMajor, Weight, WeightLayout
from jaxllm.pallas_kernels.linear.cpu.packed import packed_layout


@dataclass(frozen=True)
class Case:
    """Rows of each group, the sizes of a matrix, and the types of weights and rows."""

    name: str
    sizes: tuple[int, ...]
    in_size: int
    out_size: int
    dtype: str = "float32"
    row_dtype: str = "float32"
    padding: int = 0
    """Rows after those that are in a group."""
    layers: int | None = None
    """Matrices for each group in a stack; the last one counts. None is no stack."""


CASES: tuple[Case, ...] = (
    Case("one_row", (0, 1, 0), 16, 16),
    Case("all_in_one", (0, 0, 40, 0), 32, 48),
    Case("no_rows", (0, 0), 16, 16, padding=3),
    Case("every_group", (3, 1, 9, 24, 8, 2), 48, 64, padding=5),
    Case("deep", (2, 5), 1040, 32),
    Case("many_rows", (200, 3, 150), 64, 80),
    Case("many_groups", tuple(i % 3 for i in range(64)), 32, 32),
    Case("bfloat16", (4, 0, 5), 64, 48, dtype="bfloat16"),
    Case("bfloat16_rows", (20, 0, 37, 3), 144, 256, dtype="bfloat16", row_dtype="bfloat16"),
    Case("deep_rows", (150, 0, 3, 1), 1056, 80, dtype="bfloat16", row_dtype="bfloat16", padding=2),
    Case("layer", (2, 3), 32, 32, padding=1, layers=3),
    Case("layer_rows", (2, 3), 32, 32, dtype="bfloat16", row_dtype="bfloat16", padding=1, layers=3),
)
"""Groups with and without rows, one row and many, at sizes that are and are not whole tiles."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inputs:
    """The arrays of a case. A pytree, so that it passes through `jax.jit` as one argument."""

    case: Case = field(metadata={"static": True})
    x: jax.Array
    matrices: jax.Array
    """[G, out, in], or [L, G, out, in]."""
    sizes: jax.Array

    def call(self, implementation: str) -> jax.Array:
        """The product by an implementation or the reference: float32 [rows, out], without padding."""
        case = self.case
        rows = sum(case.sizes)
        if implementation == "reference":
            matrices = self.matrices if case.layers is None else self.matrices[-1]
            return reference_grouped_matmul(self.x, matrices, self.sizes)[:rows]
        return IMPLEMENTATIONS[implementation](self.x, self.weight(implementation), self.sizes)[:rows]

    def weight(self, implementation: str) -> Weight:
        """The matrices as an implementation wants them."""
        case = self.case
        shape = (len(case.sizes) * case.out_size, case.in_size)
        layout: WeightLayout
        if implementation in ("cpu", "cpu_pairs"):
            layout = packed_layout(shape, case.dtype, multiplies_pairs=implementation == "cpu_pairs")
        else:
            layout = Streamed(shape) if implementation == "tpu" else RowMajor(shape)
        array = layout.pack(self.matrices.reshape(*self.matrices.shape[:-3], *shape))
        return Weight(layout, array, None if case.layers is None else case.layers - 1)


def make_inputs(case: Case) -> Inputs:
    """Random arrays."""
    rng = np.random.default_rng(0)
    stack = () if case.layers is None else (case.layers,)
    x = jnp.asarray(rng.standard_normal((sum(case.sizes) + case.padding, case.in_size), np.float32), case.row_dtype)
    shape = (*stack, len(case.sizes), case.out_size, case.in_size)
    matrices = jnp.asarray(rng.standard_normal(shape, np.float32)).astype(case.dtype)
    return Inputs(case, x, matrices, jnp.array(case.sizes, jnp.int32))


def tolerance(case: Case) -> float:
    """Largest absolute error of a result: rounding in sums of `in_size` products of about 1."""
    return 2e-5 * case.in_size**0.5
