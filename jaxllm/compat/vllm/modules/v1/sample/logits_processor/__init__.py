"""The parts of custom logits processors; see docs/logits_processors.md."""

from jaxllm.processors.interface import AdapterLogitsProcessor as AdapterLogitsProcessor
from jaxllm.processors.interface import BatchUpdate as BatchUpdate
from jaxllm.processors.interface import JaxLogitsProcessor as JaxLogitsProcessor
from jaxllm.processors.interface import LogitsProcessor as LogitsProcessor
from jaxllm.processors.interface import MoveDirectionality as MoveDirectionality
from jaxllm.processors.interface import RequestProcessor as RequestLogitsProcessor  # noqa: F401
