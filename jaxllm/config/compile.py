"""Options of what is compiled, and of implementations."""

from dataclasses import dataclass
from typing import Literal

from jaxllm.config.option import Section, option

# fmt: off
ATTENTION_BACKENDS = (
    "amx_", "b12x", "cpu_", "custom", "cutlass", "dual_chunk", "flash", "flex_", "hpc_", "hpu_", "ipex", "minimax_",
    "no_attention", "pallas", "rocm_", "step5_", "tokenspeed_", "torch_", "triton_", "turboquant", "ultraquant",
    "xformers", "xpu_",
)
LINEAR_BACKENDS = (
    "aiter", "b12x", "conch", "cutlass", "deep_gemm", "emulation", "exllama", "fbgemm", "flashinfer_", "humming",
    "machete", "marlin", "torch", "triton", "xpu",
)
"""Products with ordinary and quantised matrices."""
MOE_BACKENDS = (
    "aiter", "b12x", "batched_triton", "cutlass", "deep_gemm", "emulation", "flashinfer", "flydsl", "hpc", "humming",
    "marlin", "rdna3", "triton",
)


@dataclass(frozen=True, kw_only=True)
class CompileOptions(Section):
    """What is compiled, when, and where the result is kept."""

    enforce_eager: bool = option(False, "Compile each step shape when it is first met instead of all at start.")
    background_compilation: bool = option(
        False,
        "Be ready as soon as three step shapes are compiled, and compile the others meanwhile. Until then steps run in "
        "larger shapes, and slower.",
    )
    compilation_cache_dir: str | None = option(
        None, "Folder of the persistent compilation cache. Default: ~/.cache/jaxllm/xla; '' turns it off."
    )
    executables: str | None = option(
        None,
        "Folder made by `jaxllm compile`: its executables are used, and nothing is compiled. It is trusted like a "
        "program.",
    )
    strict_compilation: bool = option(False, "Treat a compilation after warm-up as an error.")
    optimization_level: int = option(
        1,
        "How hard XLA tries on CPU: 1 compiles in three quarters of the time of 3 or less, and runs no slower but for "
        "sampling by top-k and top-p; 0 in less, and runs slower. No effect elsewhere.",
        aliases=("-O",),
        minimum=0,
        maximum=3,
    )
    compile_workers: int | None = option(None, "Compilations at a time during start-up. Default: the cores.", minimum=1)
    layer_stack: Literal["auto", "scan", "loop"] = option(
        "auto",
        "Layers as one scan over stacked weights, or as a loop. 'auto': scan on TPU, and on CPU where products are "
        "jaxllm's own; else a loop.",
    )
    attention_backend: Literal["auto", "reference", "xla", "tpu", "gpu", "triton", "cpu"] = option(
        "auto",
        "Implementation of paged attention. 'auto': tpu on TPU, gpu on Hopper and triton on other GPUs since Ampere in "
        "16 bits, cpu on CPU where heads and pages are multiples of 16, else xla; where the kernel fails its "
        "self-test, the next best with a warning. With 'cpu' matrix products in float32 and bfloat16 are jaxllm's own "
        "as well.",
        hints=ATTENTION_BACKENDS,
    )
    attention_checks: bool = option(
        False, "For debugging: attention on TPU checks bounds and semaphores, and stops where they are wrong. Slower."
    )
    sampling_backend: Literal["auto", "reference", "xla", "tpu"] = option(
        "auto",
        "Implementation of choosing tokens. 'auto': the kernel 'tpu' on TPU, unless it fails its self-test, else xla.",
    )
    moe_backend: Literal["auto", "xla", "tpu"] = option(
        "auto",
        "Implementation of the products with experts. 'auto': the kernel 'tpu' on TPU, unless it fails its self-test, "
        "else xla. On CPU kernels of jaxllm's own come with attention_backend 'cpu'.",
        hints=MOE_BACKENDS,
    )
    linear_backend: Literal["auto", "xla", "tpu"] = option(
        "auto",
        "Implementation of products with quantised matrices. 'auto': the kernel 'tpu' on TPU, unless it fails its "
        "self-test, else xla. On CPU kernels of jaxllm's own come with attention_backend 'cpu'.",
        hints=LINEAR_BACKENDS,
    )
