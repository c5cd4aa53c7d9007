"""Shared by kernels for TPUs: the chip, registers, scalar arithmetic and how they are compiled."""
