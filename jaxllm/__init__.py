"""LLM inference and serving in JAX, for TPUs, GPUs and CPUs.

`from jaxllm import LLM, SamplingParams` is all a script needs. Names are imported when first used (PEP 562), so that
`import jaxllm`, or one of its modules, loads neither JAX nor the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Only here does the core name `serving`, which stands above it: users import these from `jaxllm` itself. The
    # import-linter contract in pyproject.toml lists the exception.
    from jaxllm.config import EngineConfig
    from jaxllm.errors import CapacityError, ConfigError, EngineError, JaxLLMError, RequestError
    from jaxllm.pooling.params import PoolingParams
    from jaxllm.sampling_params import SamplingParams
    from jaxllm.serving.llm.async_llm import AsyncLLM
    from jaxllm.serving.llm.beam_search import BeamSearchOutput, BeamSearchParams
    from jaxllm.serving.llm.llm import LLM
    from jaxllm.serving.llm.llm_engine import LLMEngine
    from jaxllm.serving.pooling.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from jaxllm.serving.text.outputs import CompletionOutput, Delta, RequestOutput
    from jaxllm.structured.params import StructuredOutputsParams
    from jaxllm.version import __version__

_EXPORTS = {
    "AsyncLLM": "jaxllm.serving.llm.async_llm",
    "BeamSearchOutput": "jaxllm.serving.llm.beam_search",
    "BeamSearchParams": "jaxllm.serving.llm.beam_search",
    "CapacityError": "jaxllm.errors",
    "ClassificationRequestOutput": "jaxllm.serving.pooling.outputs",
    "CompletionOutput": "jaxllm.serving.text.outputs",
    "Delta": "jaxllm.serving.text.outputs",
    "ConfigError": "jaxllm.errors",
    "EmbeddingRequestOutput": "jaxllm.serving.pooling.outputs",
    "EngineConfig": "jaxllm.config",
    "EngineError": "jaxllm.errors",
    "JaxLLMError": "jaxllm.errors",
    "LLM": "jaxllm.serving.llm.llm",
    "LLMEngine": "jaxllm.serving.llm.llm_engine",
    "PoolingParams": "jaxllm.pooling.params",
    "PoolingRequestOutput": "jaxllm.serving.pooling.outputs",
    "RequestError": "jaxllm.errors",
    "RequestOutput": "jaxllm.serving.text.outputs",
    "SamplingParams": "jaxllm.sampling_params",
    "ScoringRequestOutput": "jaxllm.serving.pooling.outputs",
    "StructuredOutputsParams": "jaxllm.structured.params",
    "__version__": "jaxllm.version",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CapacityError",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "ConfigError",
    "Delta",
    "EmbeddingRequestOutput",
    "EngineConfig",
    "EngineError",
    "JaxLLMError",
    "LLMEngine",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first asked for."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'jaxllm' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
