"""Engines with text in front: `LLM`, `AsyncLLM`, `LLMEngine`."""
