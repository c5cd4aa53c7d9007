"""Attention to the last keys of a request, and to entries that stand for groups of earlier tokens."""

from jaxllm.pallas_kernels.compressed_attention.attend import KERNELS, attend_to_units
from jaxllm.pallas_kernels.compressed_attention.choose import EntryIndex, choose_entries
from jaxllm.pallas_kernels.compressed_attention.units import Units, flat, read_units, write_units

__all__ = ["KERNELS", "EntryIndex", "Units", "attend_to_units", "choose_entries", "flat", "read_units", "write_units"]
