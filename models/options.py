"""What the forward pass must know beyond the checkpoint's own configuration."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ForwardOptions:
    """How a model is built and run.

    `platform` is JAX's name of the backend, `attention` an implementation of paged attention, `stack` how the layers
    run, and `max_model_len` the longest request in tokens (dynamic rope scaling depends on it).
    """

    platform: str = "cpu"
    attention: str = "xla"
    stack: Literal["scan", "loop"] = "loop"
    max_model_len: int = 2048
