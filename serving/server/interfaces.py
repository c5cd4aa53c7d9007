"""The interfaces of the server: their routers, and all their operations."""

from jaxllm.serving.anthropic import router as anthropic
from jaxllm.serving.http.operation import make_router
from jaxllm.serving.openai import router as openai
from jaxllm.serving.openai.audio import router as audio
from jaxllm.serving.openai.pooling import router as pooling
from jaxllm.serving.server import router as server
from jaxllm.serving.token_api import router as token_api

_INTERFACES = (openai, anthropic, token_api, pooling, audio, server)
ROUTERS = tuple(make_router(interface.OPERATIONS) for interface in _INTERFACES)
OPERATIONS = tuple(operation for interface in _INTERFACES for operation in interface.OPERATIONS)
"""Every operation but the pages about them."""
