"""Prompts, where vLLM once had them."""

from jaxllm.serving.text.prompts import PromptType, TextPrompt, TokensPrompt

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]
