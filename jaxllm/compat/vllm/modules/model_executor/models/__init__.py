"""Which models there are."""

from jaxllm.serving.llm.model_registry import ModelRegistry

__all__ = ["ModelRegistry"]
