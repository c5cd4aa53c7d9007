"""Prompts."""

from jaxllm.serving.text.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt

SingletonPrompt = PromptType

__all__ = ["EmbedsPrompt", "PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]
