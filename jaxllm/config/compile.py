"""Options of compilation and of kernel implementations."""

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
"""Products with ordinary and quantized matrices."""
MOE_BACKENDS = (
    "aiter", "b12x", "batched_triton", "cutlass", "deep_gemm", "emulation", "flashinfer", "flydsl", "hpc", "humming",
    "marlin", "rdna3", "triton",
)


@dataclass(frozen=True, kw_only=True)
class CompileOptions(Section):
    """Compilation, its caches, and the choice of kernels."""

    enforce_eager: bool = option(
        False,
        "Compile each program on first use instead of all of them at start-up: the start takes less time, and the "
        "first requests of each kind wait for the compiler.",
    )
    background_compilation: bool = option(
        False,
        "Accept requests as soon as three step shapes are compiled, and compile the others in the background. Until "
        "they are ready, steps run in larger shapes and are slower.",
    )
    compilation_cache_dir: str | None = option(
        None, "Folder of the persistent compilation cache. Default: ~/.cache/jaxllm/xla; '' turns it off."
    )
    executables: str | None = option(
        None,
        "Folder written by `jaxllm compile`: run its executables and compile nothing. Load only folders you trust: "
        "they contain native code.",
    )
    strict_compilation: bool = option(False, "Treat a compilation after warm-up as an error.")
    optimization_level: int = option(
        1,
        "XLA's optimization effort on CPU. Compared with 3, level 1 compiles in at most three quarters of the time "
        "and runs equally fast, except for top-k and top-p sampling; level 0 compiles faster still and runs slower. "
        "No effect on other devices.",
        aliases=("-O",),
        minimum=0,
        maximum=3,
    )
    compile_workers: int | None = option(
        None, "Maximum number of concurrent compilations during start-up. Default: the number of CPU cores.", minimum=1
    )
    layer_stack: Literal["auto", "scan", "loop"] = option(
        "auto",
        "Run layers as one scan over stacked weights, or as an unrolled loop. 'auto': scan on TPU, and on CPU with "
        "jaxllm's own matrix-product kernels; otherwise a loop.",
    )
    attention_backend: Literal["auto", "reference", "xla", "tpu", "gpu", "triton", "cpu"] = option(
        "auto",
        "Implementation of paged attention. 'auto': tpu on TPU; gpu on Hopper, and triton on other GPUs from Ampere "
        "on, in 16-bit types; cpu on CPU if head and page sizes are multiples of 16; otherwise xla. If the kernel "
        "fails its self-test, the next best one runs, with a warning. 'cpu' also selects jaxllm's own kernels for "
        "matrix products in float32 and bfloat16.",
        hints=ATTENTION_BACKENDS,
    )
    bfloat16_products: Literal["auto", "widened"] = option(
        "auto",
        "How jaxllm's own kernels on CPU multiply bfloat16: activations by weights, and in attention by a cache of "
        "that type. 'auto': as it is, on processors with AVX512-BF16; otherwise it is widened to float32 first, as "
        "'widened' always does.",
    )
    attention_checks: bool = option(
        False,
        "For debugging: make attention on TPU check bounds and semaphores, and stop at the first violation. Slower.",
    )
    sampling_backend: Literal["auto", "reference", "xla", "tpu"] = option(
        "auto",
        "Implementation of token sampling. 'auto': the 'tpu' kernel on TPU, unless it fails its self-test; otherwise "
        "xla.",
    )
    moe_backend: Literal["auto", "xla", "tpu"] = option(
        "auto",
        "Implementation of the experts' matrix products. 'auto': the 'tpu' kernel on TPU, unless it fails its "
        "self-test; otherwise xla. On CPU, attention_backend 'cpu' also selects jaxllm's own kernels for them.",
        hints=MOE_BACKENDS,
    )
    mm_encoder_attn_backend: Literal["auto", "reference", "xla", "tpu", "triton"] = option(
        "auto",
        "Implementation of attention in the encoders of images and sound. 'auto': the 'tpu' kernel on TPUs from v5e "
        "on, and the 'triton' kernel on GPUs from Ampere on in 16-bit types, unless they fail their self-test; "
        "otherwise xla.",
        hints=ATTENTION_BACKENDS,
    )
    linear_backend: Literal["auto", "xla", "tpu"] = option(
        "auto",
        "Implementation of products with quantized matrices. 'auto': the 'tpu' kernel on TPU, unless it fails its "
        "self-test; otherwise xla. On CPU, attention_backend 'cpu' also selects jaxllm's own kernels for them.",
        hints=LINEAR_BACKENDS,
    )
