"""Sizes of registers, and numbers and types that kernels for TPUs share."""

from typing import Any

LANES = 128
"""Numbers of 32 bits in a row of a register: the last axis of a tile."""

SUBLANES = 8
"""Rows of a register."""

MASKED = -1e30
"""Score of an invisible key. Finite, so that a block without any visible key leaves no NaN."""

LOG2_E = 1.4426950408889634
"""Softmax is computed with powers of two, which is what the hardware has."""

Ref = Any
"""A reference to memory inside a kernel; Pallas has no public type for it."""
