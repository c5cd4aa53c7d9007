"""Which layout a quantized matrix gets. Ordinary models do not import this."""

from collections.abc import Mapping

from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.quantized.layout import QuantizedPacked
from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout, QuantizedRowMajor
from jaxllm.pallas_kernels.linear.tpu.layout import Strips
from jaxllm.pallas_kernels.linear.weight_type import WeightType

QUANTIZED_LAYOUTS: Mapping[str, type[QuantizedLayout]] = {
    "xla": QuantizedRowMajor,
    "tpu": Strips,
    "cpu": QuantizedPacked,
}
"""By the implementation that reads them. `xla` reads all, everywhere; `tpu` is a Pallas kernel, `cpu` are kernels
compiled by Numba."""


def choose_quantized_layout(
    shape: tuple[int, int],
    kind: WeightType,
    *,
    groups: int | None = None,
    native: bool = False,
    backend: str = "xla",
    parts: tuple[int, int] = (1, 1),
) -> QuantizedLayout:
    """The layout of a quantized matrix: what `native` kernels want, or a `backend` of `QUANTIZED_LAYOUTS`, or XLA's.

    The last is for all that the others do not read. With `groups` (experts) each has a matrix of `shape` (out, in),
    one above the other; kernels for CPUs want whole blocks of outputs then. `parts` are the devices that rows and
    columns of a matrix are split over.
    """
    out_size, in_size = shape
    whole, units, across = ((groups or 1) * out_size, in_size), (groups or 1) * parts[0], parts[1]
    if backend == "tpu" and not native and Strips.reads(whole, kind, units, across):
        return Strips(whole, kind, units, across)
    if native and (groups is None or out_size % BLOCK == 0) and QuantizedPacked.reads(shape, kind):
        return QuantizedPacked(whole, kind)
    return QuantizedRowMajor(whole, kind)
