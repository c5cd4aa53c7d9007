"""Kernels that are right on this machine, before an engine relies on them."""

from jaxllm.executor.kernels.experts.self_test import verify_experts
from jaxllm.executor.kernels.products.self_test import verify_products
from jaxllm.executor.kernels.self_test import verify_attention
from jaxllm.executor.resolved import ResolvedConfig


def verify_kernels(resolved: ResolvedConfig) -> ResolvedConfig:
    """`resolved`, with other implementations of the forward pass where `auto` chose kernels that are not right here.

    Raises `EngineError` for a kernel that hangs.
    """
    return verify_products(verify_experts(verify_attention(resolved)))
