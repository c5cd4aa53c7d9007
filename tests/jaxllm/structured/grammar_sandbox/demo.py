"""A canary with the demo model's vocabulary."""

from pathlib import Path

from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.structured.backend import Vocabulary
from jaxllm.structured.grammar_sandbox.client import PATIENCE_SECONDS, Canary
from jaxllm.structured.grammar_sandbox.messages import Budget


def demo_vocabulary() -> Vocabulary:
    """That of the demo model."""
    return Vocabulary(Path(find_model("demo", None, None)), 1536, (0,))


def demo_canary(budget: Budget | None = None, *, patience: float = PATIENCE_SECONDS) -> Canary:
    """One that has not been started."""
    return Canary("llguidance", demo_vocabulary(), budget or Budget(), patience=patience)
