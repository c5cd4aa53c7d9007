"""Chat templates."""

from jaxllm.serving.text.chat import load_chat_template

__all__ = ["load_chat_template"]
