"""Offline generation."""

from jaxllm.serving.llm.llm import LLM

__all__ = ["LLM"]
