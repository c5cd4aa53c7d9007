"""Speed of TPU kernels without a TPU: compile for the chip, then run the scalar side of the compiled program."""
