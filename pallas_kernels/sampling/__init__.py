"""Choosing tokens: temperature, min-p, top-k and top-p, and a draw.

`choose_tokens` has three implementations: sorting in plain JAX (the reference), searching with XLA, and a Pallas kernel
for TPUs that reads the logits once.
"""

from jaxllm.pallas_kernels.sampling.api import IMPLEMENTATIONS, choose_tokens
from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary

__all__ = ["IMPLEMENTATIONS", "WHOLE", "Choice", "Vocabulary", "choose_tokens"]
