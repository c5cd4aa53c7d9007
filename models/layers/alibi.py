"""Attention with linear biases (ALiBi, arXiv 2108.12409)."""

import numpy as np


def alibi_slopes(num_heads: int, largest: float = 8.0) -> np.ndarray:
    """Slope of each head, float32 [N]: powers of two whose exponents go down to -`largest`.

    Where the number of heads is no power of two, the slopes of the next smaller one come first, then every other one
    of the next larger, as in the paper's code.
    """
    whole = 1 << (num_heads.bit_length() - 1)
    first = 2.0 ** (-largest * np.arange(1, whole + 1) / whole)
    others = 2.0 ** (-largest * np.arange(1, 2 * whole + 1, 2) / (2 * whole))
    return np.concatenate([first, others])[:num_heads].astype(np.float32)
