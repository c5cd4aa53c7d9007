"""What the processor at hand can do, for choices that are made before a kernel is built."""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Processor:
    """The facts that decide on kernels."""

    is_x86: bool
    """With AVX2, as Numba's kernels want it there."""
    has_dot: bool
    """Whether it adds up products of bytes (`vpdpbusd`)."""
    multiplies_bfloat16: bool = False
    """Whether it adds up products of pairs of bfloat16, 32 at a time (`vdpbf16ps` of AVX512-BF16)."""


@cache
def host_processor() -> Processor:
    """The one at hand."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    has_avx512 = bool(features.get("avx512f", False))
    return Processor(
        is_x86=bool(features.get("avx2", False)),
        has_dot=bool(features.get("avx512vnni" if has_avx512 else "avxvnni", False)),
        multiplies_bfloat16=has_avx512 and bool(features.get("avx512bf16", False)),
    )
