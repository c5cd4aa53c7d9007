"""Parameters of pooling."""

from jaxllm.pooling.params import PoolingParams

__all__ = ["PoolingParams"]
