"""Which kernel multiplies with a quantized matrix."""

import logging
from dataclasses import dataclass, replace
from functools import cache

from jaxllm.pallas_kernels.cpu_common.processor import Processor
from jaxllm.pallas_kernels.linear.weight_type import Activations, Values, WeightType

logger = logging.getLogger(__name__)

SCALE_KINDS = ("float32", "bfloat16", "float16")
"""Types of scales that the kernels read, NumPy's names."""
EXACT_DIGITS = 3
"""Digits of activations that stay as they are: 24 bits, as many as float32 has."""
NARROW_DIGITS = 2
"""Digits of activations of bfloat16: steps of 1 / 32,512 of a row's largest, finer than what a sum is rounded to."""


@dataclass(frozen=True)
class Form:
    """The static facts that a kernel is compiled for.

    With digits, arithmetic is that of whole numbers: each row is a scale times numbers of so many bytes. Sums of
    products of bytes are exact, and a processor with `vpdpbusd` adds 64 of them at once. Without, it is float32.
    """

    values: Values
    digits: int
    is_widened: bool = False
    """Whether weights are not as they lie in memory, but as arithmetic wants them: bytes without signs, or float32."""
    is_looked_up: bool = False
    """Whether bytes of codes are found in a table: others are the codes themselves."""

    def reading(self, activations: str) -> "Form":
        """The kernel for activations of a type (NumPy's name), if they are not rounded to bytes; weights lie alike."""
        if self.digits == EXACT_DIGITS and activations == "bfloat16":
            return replace(self, digits=NARROW_DIGITS)
        return self

    @property
    def is_coded(self) -> bool:
        """Whether a byte is two codes."""
        return self.values == Values.CODES and not self.is_widened

    @property
    def is_split(self) -> bool:
        """Whether of every eight activations those of even places come first, as lower codes do."""
        return self.values == Values.CODES

    @property
    def takes_fours(self) -> bool:
        """Whether four bytes of an output lie side by side; one otherwise."""
        return self.is_coded or self.digits > 0

    @property
    def inputs_per_step(self) -> int:
        """Inputs of the least that is read of a block."""
        return (8 if self.is_coded else 4) if self.takes_fours else 1

    @property
    def step_bytes(self) -> int:
        """Bytes of that, for 16 outputs."""
        return 16 * (4 if self.takes_fours or self.is_widened else 1)

    @property
    def name(self) -> str:
        """Name of its kernel."""
        return f"quantized_{self.values.name.lower()}_{self.digits}{'_looked_up' if self.is_looked_up else ''}"


@dataclass(frozen=True)
class Code:
    """Values as whole numbers: `unit * (table[code] - bias)`, where the table has no signs."""

    bias: int
    unit: float
    table: tuple[int, ...]

    @property
    def is_looked_up(self) -> bool:
        """Whether codes are not what the table has for them."""
        return self.table != tuple(range(16))


def integer_code(kind: WeightType) -> Code | None:
    """The values as integers of a byte, if they are such. int8 needs no table."""
    if kind.values == Values.INT8:
        return Code(128, 1.0, (0,) * 16)
    if kind.code is None:
        return None
    for unit in (1.0, 0.5):
        numbers = [number / unit for number in kind.code]
        if all(number == int(number) and abs(number) < 128 for number in numbers):
            bias = -int(min(numbers))
            return Code(bias, unit, tuple(int(number) + bias for number in numbers))
    return None


def form_of(kind: WeightType, processor: Processor) -> Form | None:
    """The kernel for a type of matrix; None if there is none."""
    is_quantized = kind.activations != Activations.AS_THEY_ARE
    code = integer_code(kind)
    if kind.values == Values.FLOAT8_E5M2 or (code is None and is_quantized):
        return None
    if not processor.is_x86 and (is_quantized or kind.code is not None):
        return None
    if code is not None and (is_quantized or processor.has_dot):
        is_looked_up = kind.values == Values.CODES and code.is_looked_up
        return Form(kind.values, 1 if is_quantized else EXACT_DIGITS, is_looked_up=is_looked_up)
    if code is not None:
        _say()
    return Form(kind.values, 0)


@cache
def _say() -> None:
    logger.info("this CPU has no byte dot products (VNNI): quantized weights are multiplied in float32")
