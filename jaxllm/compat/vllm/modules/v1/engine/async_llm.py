"""The engine for many callers, under vLLM's name for it; `jaxllm.AsyncLLM` has methods of its own."""

from jaxllm.serving.llm.async_llm_engine import AsyncLLMEngine as AsyncLLM

__all__ = ["AsyncLLM"]
