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
    from jaxllm.requests.lora_request import LoRARequest
    from jaxllm.requests.sampling_params import RequestOutputKind, SamplingParams
    from jaxllm.requests.structured_outputs import StructuredOutputsParams
    from jaxllm.serving.llm.arguments import AsyncEngineArgs, EngineArgs
    from jaxllm.serving.llm.async_llm import AsyncLLM
    from jaxllm.serving.llm.async_llm_engine import AsyncLLMEngine
    from jaxllm.serving.llm.beam_search import BeamSearchOutput, BeamSearchParams
    from jaxllm.serving.llm.llm import LLM
    from jaxllm.serving.llm.llm_engine import LLMEngine
    from jaxllm.serving.llm.model_registry import ModelRegistry
    from jaxllm.serving.pooling.outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from jaxllm.serving.text.outputs import CompletionOutput, Delta, RequestOutput
    from jaxllm.serving.text.prompts import PromptType, TextPrompt, TokensPrompt
    from jaxllm.version import __version__

_EXPORTS = {
    "AsyncEngineArgs": "jaxllm.serving.llm.arguments",
    "AsyncLLM": "jaxllm.serving.llm.async_llm",
    "AsyncLLMEngine": "jaxllm.serving.llm.async_llm_engine",
    "BeamSearchOutput": "jaxllm.serving.llm.beam_search",
    "BeamSearchParams": "jaxllm.serving.llm.beam_search",
    "CapacityError": "jaxllm.errors",
    "ClassificationOutput": "jaxllm.serving.pooling.outputs",
    "ClassificationRequestOutput": "jaxllm.serving.pooling.outputs",
    "CompletionOutput": "jaxllm.serving.text.outputs",
    "ConfigError": "jaxllm.errors",
    "Delta": "jaxllm.serving.text.outputs",
    "EmbeddingOutput": "jaxllm.serving.pooling.outputs",
    "EmbeddingRequestOutput": "jaxllm.serving.pooling.outputs",
    "EngineArgs": "jaxllm.serving.llm.arguments",
    "EngineConfig": "jaxllm.config",
    "EngineError": "jaxllm.errors",
    "JaxLLMError": "jaxllm.errors",
    "LLM": "jaxllm.serving.llm.llm",
    "LLMEngine": "jaxllm.serving.llm.llm_engine",
    "LoRARequest": "jaxllm.requests.lora_request",
    "ModelRegistry": "jaxllm.serving.llm.model_registry",
    "PoolingOutput": "jaxllm.serving.pooling.outputs",
    "PoolingParams": "jaxllm.pooling.params",
    "PoolingRequestOutput": "jaxllm.serving.pooling.outputs",
    "PromptType": "jaxllm.serving.text.prompts",
    "RequestError": "jaxllm.errors",
    "RequestOutput": "jaxllm.serving.text.outputs",
    "RequestOutputKind": "jaxllm.requests.sampling_params",
    "SamplingParams": "jaxllm.requests.sampling_params",
    "ScoringOutput": "jaxllm.serving.pooling.outputs",
    "ScoringRequestOutput": "jaxllm.serving.pooling.outputs",
    "StructuredOutputsParams": "jaxllm.requests.structured_outputs",
    "TextPrompt": "jaxllm.serving.text.prompts",
    "TokensPrompt": "jaxllm.serving.text.prompts",
    "__version__": "jaxllm.version",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CapacityError",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "ConfigError",
    "Delta",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineConfig",
    "EngineError",
    "JaxLLMError",
    "LLMEngine",
    "LoRARequest",
    "ModelRegistry",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

# Names where vLLM has them, such as `jaxllm.engine.arg_utils`: after this package's own modules.
__path__.append(f"{__path__[0]}/compat/vllm/modules")


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
