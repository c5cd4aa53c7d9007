"""Parameters of sampling."""

from jaxllm.exports import exported
from jaxllm.requests.sampling_params import RequestOutputKind, SamplingParams
from jaxllm.requests.structured_outputs import StructuredOutputsParams

GuidedDecodingParams = StructuredOutputsParams
"""vLLM's older name."""

__all__ = ["GuidedDecodingParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]

# It belongs to `LLM`.
__getattr__ = exported(__name__, {"BeamSearchParams": "jaxllm.serving.llm.beam_search"})
