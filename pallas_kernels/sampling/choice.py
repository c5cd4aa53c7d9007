"""The sampling options of each row."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jax.tree_util import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Choice:
    """How the token of each row is chosen. Arrays are [R] unless said otherwise."""

    temperature: Array
    """float32: divides the logits. A row of 0 takes its largest logit, the first of several, and ignores the rest."""
    top_k: Array
    """int32: keep this many of the most likely tokens, and those that tie with the last; 0 keeps all."""
    top_p: Array
    """float32: of these, keep the fewest most likely whose share reaches this; 1 keeps all."""
    min_p: Array
    """float32: keep tokens at least this likely relative to the most likely one; 0 keeps all."""
    chance: Array
    """float32 [R, 2]: numbers in [0, 1), which decide on the block of 128 tokens and on the place there."""

    @property
    def is_random(self) -> Array:
        """Which rows draw: bool [R]."""
        return self.temperature > 0

    @property
    def any_filter(self) -> Array:
        """Whether one of them keeps less than all: bool []."""
        return jnp.any(self.is_random & ((self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)))
