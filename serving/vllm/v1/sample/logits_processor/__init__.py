"""What custom logits processors are made of."""

from jaxllm.processors.interface import (
    AdapterLogitsProcessor,
    BatchUpdate,
    JaxLogitsProcessor,
    LogitsProcessor,
    MoveDirectionality,
)
from jaxllm.processors.interface import RequestProcessor as RequestLogitsProcessor

__all__ = [
    "AdapterLogitsProcessor",
    "BatchUpdate",
    "JaxLogitsProcessor",
    "LogitsProcessor",
    "MoveDirectionality",
    "RequestLogitsProcessor",
]
