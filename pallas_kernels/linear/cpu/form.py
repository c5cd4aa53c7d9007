"""Which kernel multiplies with packed weights of a type."""

from dataclasses import dataclass

from jaxllm.pallas_kernels.linear.cpu import BLOCK

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}
"""Types of weights that the kernels read, and their bytes."""


@dataclass(frozen=True)
class Form:
    """The static facts that a kernel is compiled for."""

    dtype: str
    """Type of the weights, NumPy's name."""
    is_native: bool = False
    """Whether pairs of bfloat16 are multiplied as they are, with activations of that type; otherwise weights become
    float32 in registers, and activations are float32."""

    @property
    def name(self) -> str:
        """A part of the kernel's name."""
        return f"{self.dtype}{'_pairs' if self.is_native else ''}"

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight."""
        return WEIGHT_BYTES[self.dtype]

    @property
    def inputs_per_step(self) -> int:
        """Inputs whose weights lie next to each other for each output."""
        return 2 if self.is_native else 1

    @property
    def step_bytes(self) -> int:
        """Bytes of such weights of a block of outputs."""
        return BLOCK * self.inputs_per_step * self.weight_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a number of a row of activations."""
        return 2 if self.is_native else 4
