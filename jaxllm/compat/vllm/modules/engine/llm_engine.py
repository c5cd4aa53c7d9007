"""The engine, step by step."""

from jaxllm.serving.llm.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
