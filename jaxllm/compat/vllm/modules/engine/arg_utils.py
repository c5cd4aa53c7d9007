"""Arguments of engines."""

from jaxllm.serving.llm.arguments import AsyncEngineArgs, EngineArgs

__all__ = ["AsyncEngineArgs", "EngineArgs"]
