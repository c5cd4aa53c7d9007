"""Multi-token prediction: further layers, which checkpoints of DeepSeek V3 and others have, guess at further tokens.

The first layer joins the hidden state of a token with the embedding of the token after it, and predicts the one after
that. The next one joins its output with the embedding of that one, and so on. For a guess beyond those of all layers
the last one takes its own output and the token that it has guessed. transformers' `MtpModel` is the oracle.

Layer i reads token p + i + 1 at position p. The last i of these are not known when a step ends: there it reads guesses,
and reads the tokens in place of them in the next step, which begins i places earlier for it. The output of the layer
before it at the first of these places is kept of the last step (`KEPT`).

Axis letters: T tokens, R rows, S slots, D hidden size, n layers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.checkpoint.tensor_source import Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.decoder import Decoder
from jaxllm.models.drafters.guessing import Ahead, likeliest
from jaxllm.models.drafters.plan import KEPT
from jaxllm.models.families import registry
from jaxllm.models.families.family import MtpNames, Names
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain
from jaxllm.models.stack import LoopStack
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

if TYPE_CHECKING:
    from jaxllm.models.causal_lm import CausalLM
    from jaxllm.models.checkpoint.loading import WeightSource


@dataclass(frozen=True)
class MtpPlan:
    """A `DrafterPlan` of the layers that are in the model's checkpoint."""

    layers: int = 1
    taps: tuple[int, ...] = ()
    is_apart: bool = False

    def make(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
        """See `DrafterPlan`."""
        make_head = MtpHead if self.layers == 1 else SeveralMtpLayers
        return make_head(self.cached_layers(config), _names_of(config), self.forward(options), dtype)

    def cached_layers(self, config: ModelConfig) -> ModelConfig:
        """The configuration of the layers alone."""
        layers = config.attention_layers
        return replace(config, layers=self.layers * (layers[:1] if _names_of(config).like_first else layers[-1:]))

    @property
    def num_kept(self) -> int:
        """One for each layer that reads the output of another."""
        return self.layers - 1

    def forward(self, options: ForwardOptions) -> ForwardOptions:
        """Those of the model; several layers run one at a time."""
        options = replace(options, adapters=None, drafter=None, cache_groups=False)
        return options if self.layers == 1 else replace(options, stack="loop")

    def names(self, config: ModelConfig) -> Names:
        """See `DrafterPlan`."""
        names = _names_of(config)
        found: dict[str, str | Source] = {}
        for part in ("embedding_norm", "hidden_norm", "joint", "norm"):
            name = getattr(names, part)
            if name is not None:
                found[f"drafter.joins.*.{part}"] = self._source(config, Source(name), name)
        for module, given in registry.lookup(config.architecture).names_of(config).items():
            if module.startswith("layers.*."):
                source = source_of(given)
                _, _, inside = source.name.partition("*")
                found[f"drafter.{module}"] = self._source(config, source, names.layer, inside)
        return found

    def _source(self, config: ModelConfig, source: Source, name: str, inside: str = "") -> Source:
        """A source whose tensors are under the `name` of each layer, followed by `inside`."""
        first = config.num_layers if "{layer}" in name else 0
        numbers = tuple(range(first, first + self.layers))
        return replace(source, name=name.format(layer="*", number="*") + inside, layers=numbers)

    def load(
        self, drafter: nnx.Module, source: "WeightSource", progress: Callable[[int, int], None] | None
    ) -> nnx.Module:
        """Not used: its weights are loaded with the model's."""
        raise NotImplementedError


def _names_of(config: ModelConfig) -> MtpNames:
    names = registry.lookup(config.architecture).mtp
    assert names is not None
    return names


class Join(nnx.Module):
    """What joins the inputs of a layer, and the norm after it."""

    def __init__(self, config: ModelConfig, names: MtpNames, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = config.hidden_size
        self.hidden_first = names.hidden_first
        self.embedding_norm = make_norm(config.norm, size, dtype=dtype, options=options)
        self.hidden_norm = make_norm(config.norm, size, dtype=dtype, options=options)
        self.joint = Linear(2 * size, size, bias=False, dtype=dtype, axes=(None, None), options=options)
        last = config.norm if names.norm is not None else None
        self.norm = make_norm(last, size, dtype=dtype, options=options)

    def __call__(self, embedded: jax.Array, states: jax.Array, context: ForwardContext) -> jax.Array:
        """The input [T, D] of the layer, from tokens' embeddings and the hidden states before them."""
        inputs = [self.embedding_norm(embedded), self.hidden_norm(states)]
        if self.hidden_first:
            inputs.reverse()
        return self.joint(jnp.concatenate(inputs, axis=1), context)


class MtpHead(Decoder):
    """The layers, and what joins their inputs. The model's embedding and output layer serve them, too."""

    begins_with_sampled = False
    own_guesses = 0

    def __init__(self, config: ModelConfig, names: MtpNames, options: ForwardOptions, dtype: jnp.dtype) -> None:
        super().__init__(config, options, dtype)
        self.joins = nnx.List([Join(config, names, options, dtype) for _ in config.layers])

    def follow(
        self,
        model: "CausalLM",
        batch: Batch,
        after: jax.Array,
        lasts: jax.Array,
        hidden: jax.Array,
        tapped: jax.Array,
        cache: Cache,
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`."""
        states, cache = self._read(model, replace(batch, token_ids=after), hidden, cache)
        return states[lasts], cache

    def go_on(
        self, model: "CausalLM", ahead: Ahead, number: int, states: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`: what the output layer predicts from, [R, D]."""
        return self._read(model, ahead.batch(), states, cache)

    def guess(self, model: "CausalLM", number: int, states: jax.Array, num_rows: jax.Array) -> jax.Array:
        """See `Drafter`."""
        return likeliest(model.logits(states, num_rows))

    def _read(self, model: "CausalLM", batch: Batch, states: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """What the output layer predicts from, [T, D], after tokens, from the hidden states before them."""
        x = self.joins[0](model.embedded(batch), states, batch.context)
        x, cache = self.layers(x, self.layer_inputs(batch, cache), cache)
        return constrain(self.joins[0].norm(x), self.options.mesh, None, "hidden"), cache


class SeveralMtpLayers(MtpHead):
    """Several layers; each makes a guess.

    Its states [R, n, D] are, before guess 0, what layer i gives at the place i before the last token. What layers give
    for guesses then takes the place of these: after guess i, the first i of the last tokens that layer i has read.
    """

    def __init__(self, config: ModelConfig, names: MtpNames, options: ForwardOptions, dtype: jnp.dtype) -> None:
        super().__init__(config, names, options, dtype)
        self.own_guesses = config.num_layers

    def follow(
        self,
        model: "CausalLM",
        batch: Batch,
        after: jax.Array,
        lasts: jax.Array,
        hidden: jax.Array,
        tapped: jax.Array,
        cache: Cache,
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`."""
        ragged, slots = batch.ragged, batch.slots
        assert slots is not None
        kept, kept_positions = cache.states[KEPT]
        is_row, firsts = ragged.kv_lens > 0, jnp.minimum(ragged.query_start[:-1], len(after) - 1)
        starts = ragged.positions[firsts]
        # Of other rows nothing is kept: they begin, or the tokens before them were found in the prefix cache.
        goes_on = is_row & (kept_positions[slots] == starts) & (starts >= self.own_guesses - 1)
        of_tokens = goes_on[ragged.token_rows][:, None]
        first_places = jnp.where(goes_on, firsts, len(after))
        states, last_states = hidden, []
        for number in range(self.own_guesses):
            back = jnp.where(goes_on, number, 0)
            own = replace(batch, token_ids=after, ragged=_moved_back(ragged, back), rotary_positions=None)
            if batch.rotary_positions is not None:
                own = replace(own, rotary_positions=batch.rotary_positions - back[ragged.token_rows])
            if number:
                # Where the layer goes back a place further than the one before it, that place is kept of the last step.
                before = jnp.roll(states, 1, axis=0).at[first_places].set(kept[slots, number - 1], mode="drop")
                states = jnp.where(of_tokens, before, states)
                later = jnp.roll(after, -number)
                own = replace(own, token_ids=jnp.where(of_tokens[:, 0], after, later))
            states, cache = self._read_one(model, number, own, states, cache)
            places = jnp.where(goes_on, lasts, jnp.maximum(lasts - number, 0))
            last_states.append(states[places])
        found = jnp.stack(last_states, axis=1)
        outside = jnp.where(is_row, slots, len(kept))
        kept = kept.at[outside].set(found[:, :-1].astype(kept.dtype), mode="drop")
        kept_positions = kept_positions.at[outside].set(ragged.positions[lasts] + 1, mode="drop")
        return found, cache.updated(KEPT, (kept, kept_positions))

    def go_on(
        self, model: "CausalLM", ahead: Ahead, number: int, states: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`: layer i reads i guesses, and the last one again reads one for each further guess."""
        last = self.own_guesses - 1
        if number > last:
            place = last - 1
            made, cache = self._read_one(model, last, ahead.batch(back=last), states[:, place], cache)
            return states.at[:, place].set(made), cache
        size = states.shape[2]
        inputs = jnp.concatenate([states[:, number - 1 : number], states[:, : number - 1]], axis=1).reshape(-1, size)
        made, cache = self._read_one(model, number, ahead.batch(number, back=number), inputs, cache)
        return states.at[:, :number].set(made.reshape(-1, number, size)), cache

    def guess(self, model: "CausalLM", number: int, states: jax.Array, num_rows: jax.Array) -> jax.Array:
        """See `Drafter`."""
        return super().guess(model, number, states[:, max(min(number, self.own_guesses - 1) - 1, 0)], num_rows)

    def _read_one(
        self, model: "CausalLM", number: int, batch: Batch, states: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """What the output layer predicts from, [T, D], as a layer has it."""
        assert isinstance(self.layers, LoopStack)
        x = self.joins[number](model.embedded(batch), states, batch.context)
        x, cache = self.layers.run_one(number, x, self.layer_inputs(batch, cache), cache)
        return constrain(self.joins[number].norm(x), self.options.mesh, None, "hidden"), cache


def _moved_back(ragged: RaggedBatch, places: jax.Array) -> RaggedBatch:
    """The batch with the tokens of each row so many places earlier (int32 [R])."""
    of_tokens = places[ragged.token_rows]
    # Padding is at position 0, in the first row.
    moved = replace(
        ragged, positions=jnp.maximum(ragged.positions - of_tokens, 0), kv_lens=jnp.maximum(ragged.kv_lens - places, 0)
    )
    if ragged.visible_until is None:
        return moved
    return replace(moved, visible_until=jnp.maximum(ragged.visible_until - of_tokens, 0))
