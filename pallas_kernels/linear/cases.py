"""Cases of products, which every implementation is held to, and how exact each must be."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.linear.api import LAYOUTS, linear
from jaxllm.pallas_kernels.linear.fused import Fused, Norm
from jaxllm.pallas_kernels.linear.reference import reference_linear
from jaxllm.pallas_kernels.linear.weight import Weight


@dataclass(frozen=True)
class Case:
    """One product: rows of activations, the matrix, and what is fused with it."""

    name: str
    rows: int
    in_size: int
    out_size: int
    dtype: str = "float32"
    """Data type of the weights."""
    row_dtype: str = "float32"
    """That of rows and of what is added."""
    padding: int = 0
    """Rows after those that count."""
    norm: bool = False
    gated: bool = False
    residual: bool = False
    layers: int | None = None
    """Matrices in a stack; the last one counts. None is one alone."""


_PLAIN = (
    Case("one_row", 1, 16, 1),
    Case("odd_sizes", 7, 48, 50, padding=2),
    Case("many_rows", 130, 64, 33),
    Case("deep", 5, 1040, 20),
    Case("bfloat16", 9, 64, 48, dtype="bfloat16"),
    Case("norm", 21, 48, 32, norm=True, padding=3),
    Case("gated", 19, 32, 16, gated=True),
    Case("residual", 10, 64, 64, residual=True, padding=1),
    Case("odd_residual", 3, 32, 20, residual=True),
    Case("layer", 4, 32, 32, norm=True, residual=True, layers=3),
)
CASES: tuple[Case, ...] = _PLAIN + tuple(
    replace(case, name=f"{case.name}_rows", dtype="bfloat16", row_dtype="bfloat16") for case in _PLAIN
)
"""Every feature, at sizes that are and are not whole blocks, in float32 and in bfloat16."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inputs:
    """The arrays of a case. A pytree, so that it passes through `jax.jit` as one argument."""

    case: Case = field(metadata={"static": True})
    x: jax.Array
    matrix: jax.Array
    """[out, in], or [L, out, in]."""
    fused: Fused

    def call(self, implementation: str) -> jax.Array:
        """`linear` with the weight as that implementation reads it: float32 [rows, out], without padding."""
        case = self.case
        if implementation == "reference":
            matrix = self.matrix if case.layers is None else self.matrix[-1]
            return reference_linear(self.x, matrix, self.fused)[: case.rows]
        layout = LAYOUTS[implementation]((case.out_size, case.in_size), case.dtype)
        weight = Weight(layout, layout.pack(self.matrix), None if case.layers is None else case.layers - 1)
        return linear(self.x, weight, jnp.int32(case.rows), self.fused)[: case.rows]


def make_inputs(case: Case) -> Inputs:
    """Random arrays."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    tokens = case.rows + case.padding
    stack = () if case.layers is None else (case.layers,)
    norm = Norm(normal(case.in_size), 1e-5) if case.norm else None
    fused = Fused(norm, case.gated, normal(tokens, case.out_size).astype(case.row_dtype) if case.residual else None)
    matrix = normal(*stack, case.out_size, case.in_size).astype(case.dtype)
    return Inputs(case, normal(tokens, case.in_size * (1 + case.gated)).astype(case.row_dtype), matrix, fused)


def tolerance(case: Case) -> float:
    """Largest absolute error of a result: rounding in sums of `in_size` products of about 1."""
    # Rows of bfloat16 are rounded once more when they are prepared, and a sum with bfloat16 may have its type.
    is_rounded = case.row_dtype == "bfloat16" and (case.norm or case.gated or case.residual)
    return (2e-2 if is_rounded else 2e-5) * case.in_size**0.5
