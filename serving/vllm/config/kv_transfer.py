"""Where KV caches are sent."""

from jaxllm.serving.vllm.config.objects import KVTransferConfig

__all__ = ["KVTransferConfig"]
