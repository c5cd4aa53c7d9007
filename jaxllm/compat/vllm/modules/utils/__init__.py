"""Little things that programs take from their engine."""

import uuid

from jaxllm.serving.llm.arguments import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser", "random_uuid"]


def random_uuid() -> str:
    """16 random hexadecimal digits, for the id of a request."""
    return uuid.uuid4().hex[-16:]
