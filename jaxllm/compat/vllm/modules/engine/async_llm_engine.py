"""The engine for many callers."""

from jaxllm.serving.llm.async_llm_engine import AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
