"""How matrices lie in memory for products on CPUs: panels of 16 outputs, [P, in, 16].

Element (o, i) of a matrix [out, in] is at [o // 16, i, o % 16], and rows are added up to a whole panel. What a product
reads of a few outputs lies side by side then, and nothing has to be added across the lanes of a register.
"""

import numpy as np

PANEL = 16
"""Outputs of a panel: a register of the longest vectors."""
_LINE = 64


def panels_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of matrices [..., out, in] in panels: [..., P, in, 16]."""
    *layers, rows, columns = shape
    return *layers, -(-rows // PANEL), columns, PANEL


def to_panels(matrix: np.ndarray, into: np.ndarray) -> None:
    """Write `matrix` [out, in] into `into` [P, in, 16]; outputs that are not there are left alone."""
    whole = len(matrix) // PANEL
    np.copyto(into[:whole], matrix[: whole * PANEL].reshape(whole, PANEL, matrix.shape[1]).transpose(0, 2, 1))
    rest = len(matrix) % PANEL
    if rest:
        into[whole, :, :rest] = matrix[whole * PANEL :].T


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of zeros that begins with a cache line, so that JAX takes it as it is and copies nothing."""
    memory = np.zeros(int(np.prod(shape)) * dtype.itemsize + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + memory.size - _LINE].view(dtype).reshape(shape)
