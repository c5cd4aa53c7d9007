"""The type of functions that process the logits of one request, see `AdapterLogitsProcessor`."""

from jaxllm.processors.interface import RequestProcessor as LogitsProcessor

__all__ = ["LogitsProcessor"]
