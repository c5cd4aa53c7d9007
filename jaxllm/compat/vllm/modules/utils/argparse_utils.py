"""The parser of flags."""

from jaxllm.serving.llm.arguments import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
