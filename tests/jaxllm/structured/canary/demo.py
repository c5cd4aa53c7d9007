"""A canary with the demo model's vocabulary."""

from pathlib import Path

from jaxllm.models.checkpoint import resolve
from jaxllm.structured.backend import Vocabulary
from jaxllm.structured.canary.client import Canary
from jaxllm.structured.canary.messages import Budget


def demo_canary(budget: Budget | None = None) -> Canary:
    """One that has not been started."""
    vocabulary = Vocabulary(Path(resolve("demo", None, None)), 1536, (0,))
    return Canary("llguidance", vocabulary, budget or Budget())
