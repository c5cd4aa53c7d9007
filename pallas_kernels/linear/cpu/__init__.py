"""Products on CPUs: a kernel compiled by Numba, called by XLA, of packed weights."""

BLOCK = 16
"""Outputs of a block of packed weights, see `packed.Packed`: a register of the longest vectors."""
