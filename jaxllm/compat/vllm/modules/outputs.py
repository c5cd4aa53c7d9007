"""The results of requests for people."""

from jaxllm.exports import exported

_OF_TEXTS = "jaxllm.serving.text.outputs"
_OF_POOLING = "jaxllm.serving.pooling.outputs"

# What people get, where vLLM has it.
__getattr__ = exported(
    __name__,
    {
        "BeamSearchOutput": "jaxllm.serving.llm.beam_search",
        "BeamSearchSequence": "jaxllm.serving.llm.beam_search",
        "ClassificationOutput": _OF_POOLING,
        "ClassificationRequestOutput": _OF_POOLING,
        "CompletionOutput": _OF_TEXTS,
        "EmbeddingOutput": _OF_POOLING,
        "EmbeddingRequestOutput": _OF_POOLING,
        "PoolingOutput": _OF_POOLING,
        "PoolingRequestOutput": _OF_POOLING,
        "RequestOutput": _OF_TEXTS,
        "ScoringOutput": _OF_POOLING,
        "ScoringRequestOutput": _OF_POOLING,
    },
)
