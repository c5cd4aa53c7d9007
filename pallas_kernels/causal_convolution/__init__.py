"""Causal convolution of every channel for itself over ragged rows, with a state that a row's next tokens go on from."""

from jaxllm.pallas_kernels.causal_convolution.api import causal_convolution

__all__ = ["causal_convolution"]
