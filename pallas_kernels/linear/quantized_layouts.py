"""Which layout a matrix of few bits gets. Ordinary models do not import this."""

from collections.abc import Mapping

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
    native: bool = False,
    backend: str = "xla",
    parts: tuple[int, int] = (1, 1),
) -> QuantizedLayout:
    """The layout of a matrix of few bits: what `native` kernels want, or a `backend` of `QUANTIZED_LAYOUTS`, or XLA's.

    The last is for all that the others do not read. `parts` are the devices that rows and columns are split over.
    """
    if backend == "tpu" and not native and Strips.reads(shape, kind, *parts):
        return Strips(shape, kind, *parts)
    layout = QUANTIZED_LAYOUTS["cpu"] if native else None
    return layout(shape, kind) if layout is not None and layout.reads(shape, kind) else QuantizedRowMajor(shape, kind)
