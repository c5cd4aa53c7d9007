"""The interfaces of the server, and all their operations."""

from jaxllm.serving.anthropic import router as anthropic
from jaxllm.serving.openai import router as openai
from jaxllm.serving.openai.pooling import router as pooling
from jaxllm.serving.server import router as server

OPERATIONS = (*openai.OPERATIONS, *anthropic.OPERATIONS, *pooling.OPERATIONS, *server.OPERATIONS)
"""Every operation but the pages about them."""
