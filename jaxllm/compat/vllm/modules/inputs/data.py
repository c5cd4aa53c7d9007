"""Prompts, where vLLM once had them."""

from jaxllm.serving.text.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt

__all__ = ["EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt"]
