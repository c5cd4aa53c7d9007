"""Prompts."""

from jaxllm.serving.text.prompts import PromptType, TextPrompt, TokensPrompt

SingletonPrompt = PromptType

__all__ = ["PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]
