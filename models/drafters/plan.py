"""What a model and a step need to know of a drafter, whatever it is made of.

Axis letters: T tokens, R rows, D hidden size.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.config import ModelConfig
from jaxllm.models.drafters.guessing import Ahead
from jaxllm.models.options import ForwardOptions

if TYPE_CHECKING:
    from jaxllm.models.causal_lm import CausalLM
    from jaxllm.models.checkpoint.loading import WeightSource
    from jaxllm.models.checkpoint.tensor_source import Source

States = jax.Array
"""What a drafter goes on from, [R, ...]."""


KEPT = 0
"""The group of a drafter's `Cache.states` with what it keeps in slots: hidden states [S, n, D], and the positions after
the tokens that they are of, int32 [S]; 0 before any."""


class Drafter(Protocol):
    """Guesses at the tokens after those that a model has computed, on the device; `model` is that one.

    Nothing that it says or keeps changes any output: what it keeps of rejected drafts is overwritten.
    """

    begins_with_sampled: bool
    """Whether it has still to read the token after those that it followed; otherwise it has guessed at the next one."""
    own_guesses: int
    """How many of its first guesses are made in a way of their own each. All later ones are made alike."""

    def follow(
        self,
        model: "CausalLM",
        batch: Batch,
        after: jax.Array,
        lasts: jax.Array,
        hidden: jax.Array,
        tapped: jax.Array,
        cache: Cache,
    ) -> tuple[States, Cache]:
        """Read the tokens of a step; gives the states of the last token of each row that counts.

        `after` int32 [T] are the tokens after them, `lasts` int32 [R] the places of those last tokens, `hidden` [T, D]
        the model's hidden states, and `tapped` [T, n * D] those between its layers, see `DrafterPlan.taps`.
        """
        ...

    def go_on(self, model: "CausalLM", ahead: Ahead, number: int, states: States, cache: Cache) -> tuple[States, Cache]:
        """Read one token more of each row, which makes the states of guess `number`; `states` are those before it.

        All guesses from `own_guesses` on have that number.
        """
        ...

    def guess(self, model: "CausalLM", number: int, states: States, num_rows: jax.Array) -> jax.Array:
        """The likeliest next tokens, int32 [R]; those from row `num_rows` on mean nothing."""
        ...


class DrafterPlan(Protocol):
    """A drafter's description: what it is made of, and where its weights are."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the model whose inputs it reads."""
        ...

    @property
    def is_apart(self) -> bool:
        """Whether its weights are in a folder of its own."""
        ...

    def make(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
        """The drafter of a model, without memory."""
        ...

    def cached_layers(self, config: ModelConfig) -> ModelConfig | None:
        """The configuration of those of its layers that cache something for each token; None if none does."""
        ...

    @property
    def num_kept(self) -> int:
        """How many hidden states of the model's size it keeps of each request's last token, see `KEPT`."""
        ...

    def forward(self, options: ForwardOptions) -> ForwardOptions:
        """The options that its layers run with, from those of the model."""
        ...

    def names(self, config: ModelConfig) -> "Mapping[str, str | Source]":
        """Where its modules are in the model's own checkpoint; none if it is apart."""
        ...

    def load(
        self, drafter: nnx.Module, source: "WeightSource", progress: Callable[[int, int], None] | None
    ) -> nnx.Module:
        """The drafter with parameters from its own checkpoint. Raises `ModelError`."""
        ...
