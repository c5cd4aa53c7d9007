"""Grouped products on CPUs: a kernel compiled by Numba, called by XLA, of packed weights."""
