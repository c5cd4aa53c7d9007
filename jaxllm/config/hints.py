"""How vLLM's names of kernels begin: as values of options they are hints, and change nothing here."""

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
