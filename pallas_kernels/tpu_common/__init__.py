"""What kernels for TPUs share: the chip, registers, scalar arithmetic and how they are compiled."""
