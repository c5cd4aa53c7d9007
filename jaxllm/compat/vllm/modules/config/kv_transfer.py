"""Where KV caches are sent."""

from jaxllm.compat.vllm.modules.config.objects import KVTransferConfig

__all__ = ["KVTransferConfig"]
