"""A decoder-only language model: embedding, layers, norm, output layer."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.kv_scales import ENDINGS as KV_SCALES
from jaxllm.models.checkpoint.kv_scales import read_kv_scales
from jaxllm.models.checkpoint.loading import load_into
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.tensor_source import source_of
from jaxllm.models.checkpoint.weight_target import layers_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.decoder import Decoder, set_weight_types
from jaxllm.models.families import registry
from jaxllm.models.forward_context import ForwardContext, SharedBlocks
from jaxllm.models.layers.embedding import Bias, Embedding, TokenEmbedding, output_rows
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.output_transform import OutputTransform
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import TokenInputsPlan
from jaxllm.models.sharding import constrain, model_parallel, padded_vocab, token_axis

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.loading import WeightSource
    from jaxllm.models.checkpoint.parameter_loader import Change
    from jaxllm.models.drafters.plan import Drafter
    from jaxllm.models.layers.residual_streams import Streams
    from jaxllm.models.layers.token_input import TokenInputs
    from jaxllm.models.towers.conformer import ConformerRows
    from jaxllm.models.towers.image_tower import ImageTower
    from jaxllm.models.towers.sound import SoundRows, SoundTower


class CausalLM(Decoder):
    """The whole model. Built without memory; `load_model` returns one whose parameters are arrays."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        stage = options.stage
        config = config if stage is None else stage.of(config)
        plan = options.drafter
        super().__init__(config, options, dtype, taps=() if plan is None else plan.taps)
        is_last = stage is None or stage.is_last
        family = registry.lookup(config.architecture)
        self.shared = None if family.make_shared is None else family.make_shared(config, options, dtype)
        self.embedding = _make_embedding(config, options, dtype)
        each = config.embedding.each_layer
        self.token_inputs = None if each is None else _make_token_inputs(config, each, options, dtype)
        has_streams = config.layers[0].streams is not None
        self.streams = _make_streams(config, options, dtype) if has_streams else None
        self.norm = make_norm(config.norm if is_last else None, config.hidden_size, dtype=dtype, options=options)
        project = partial(Linear, config.hidden_size, config.embedding_size, bias=False, axes=(None, None))
        transform = config.output.transform if is_last else None
        narrows = bool(config.embedding.size) and is_last and transform is None
        self.projection = project(dtype=dtype, options=options) if narrows else None
        rows = output_rows(config, options)
        size, axes = config.output_tokens + rows.padding, ("vocab", "hidden")
        columns = config.output_size
        make_head = partial(Linear, columns, size, dtype=dtype, axes=axes, options=options, rows=rows)
        has_head = is_last and not config.tie_word_embeddings
        self.head = make_head(bias=config.output.bias) if has_head else None
        tied_bias = config.output.bias and is_last and config.tie_word_embeddings
        self.output_bias = Bias(size, rows, options, dtype=dtype) if tied_bias else None
        make_transform = partial(OutputTransform, config.hidden_size, columns, options=options, dtype=dtype)
        self.transform = None if transform is None else make_transform(transform)
        self.drafter = None if plan is None else cast("Drafter", plan.make(config, options, dtype))
        """Guesses at further tokens, where an engine asks for them."""
        self.tower, self.sound = _make_towers(config, options, dtype)
        """What makes rows of images that stand in place of tokens, see `TowerPlan`, and what hears, see `SoundPlan`."""
        set_weight_types(self, config.weight_types)

    def __call__(self, batch: Batch, cache: Cache, received: jax.Array | None = None) -> tuple[jax.Array, Cache]:
        """Hidden states [T, D] after the final norm, and the cache with this step's tokens.

        A stage that is not the first takes what the one before it gives (`received` [T, D]), and one that is not the
        last gives hidden states without the norm, split over the devices like the residual stream.
        """
        hidden, cache, _ = self.run(batch, cache, received)
        return hidden, cache

    def run(
        self, batch: Batch, cache: Cache, received: jax.Array | None = None
    ) -> tuple[jax.Array, Cache, tuple[jax.Array, ...]]:
        """What a call gives, and the inputs [T, D] of the layers that the drafter reads."""
        x = self.embedded(batch) if received is None else received
        told = self.layer_inputs(batch, cache)._replace(added=batch.added)
        per_token = told.per_token
        if self.token_inputs is not None:
            inputs = self.token_inputs(self._looked_up(batch.token_ids), x, batch.context)
            told = told._replace(token_inputs=inputs)
        if self.shared is not None:
            told = told._replace(shared=SharedBlocks.of(self.shared, x))
        if self.config.shared_choice:
            cache = replace(cache, places=jnp.zeros((len(x), self.config.shared_choice), jnp.int32))
        x = x if self.streams is None else self.streams.of(x, per_token)
        hidden, cache, tapped = self.layers.run(x, told, cache)
        cache = replace(cache, places=None)
        if self.streams is not None:
            hidden = self.streams.joined(hidden, per_token)
        stage, mesh = self.options.stage, self.options.mesh
        if stage is not None and not stage.is_last:
            return constrain(hidden, mesh, token_axis(mesh, len(hidden)), "hidden"), cache, ()
        return constrain(self.norm(hidden), mesh, None, "hidden"), cache, tapped

    def embedded(self, batch: Batch) -> jax.Array:
        """The input of the first layer, [T, D]."""
        assert isinstance(self.embedding, TokenEmbedding)
        return self.embedding(batch.token_ids, batch.ragged.positions, batch.given, batch.context.over_all_rows())

    def _looked_up(self, token_ids: jax.Array) -> jax.Array:
        """The tokens [T] whose inputs the layers look up: rows of images have that of padding, as in transformers."""
        tower = self.config.tower
        if self.tower is None or tower is None:
            return token_ids
        return jnp.where(token_ids == tower.token_id, tower.pad_token_id, token_ids)

    def logits(self, hidden: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
        """Scores float32 [R, V] of hidden states [R, D], split over the devices along V, which may end in -inf.

        Those from row `num_rows` (int32 []) on mean nothing.
        """
        context = ForwardContext(num_rows)
        if self.transform is not None:
            hidden = self.transform(hidden, context)
        if self.projection is not None:
            hidden = self.projection(hidden, context)
        matrix = self.embedding if self.head is None else self.head
        assert matrix is not None
        logits = matrix.product(hidden, context)
        output = self.config.output
        if self.head is not None and self.head.bias is not None:
            logits = logits + self.head.bias[...].astype(jnp.float32)
        if self.output_bias is not None:
            logits = logits + self.output_bias.bias[...].astype(jnp.float32)
        if output.scale != 1.0:
            logits = logits * output.scale
        if output.soft_cap is not None:
            logits = output.soft_cap * jnp.tanh(logits / output.soft_cap)
        devices, count = model_parallel(self.options.mesh), self.config.output_tokens
        if logits.shape[1] > count:
            is_token = jnp.arange(logits.shape[1], dtype=jnp.int32) < count
            logits = jnp.where(is_token, logits, -jnp.inf)
        missing = padded_vocab(self.config, devices) - logits.shape[1]
        if missing:
            logits = jnp.pad(logits, ((0, 0), (0, missing)), constant_values=-jnp.inf)
        return constrain(logits, self.options.mesh, None, "vocab")


# What most models do not have is imported when one has it: starts are faster without.


def _make_token_inputs(
    config: ModelConfig, plan: TokenInputsPlan, options: ForwardOptions, dtype: jnp.dtype
) -> "TokenInputs":
    from jaxllm.models.layers.token_input import TokenInputs

    return TokenInputs(config, plan, options, dtype=dtype)


def _make_streams(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> "Streams":
    from jaxllm.models.layers.residual_streams import make_streams

    return make_streams(config, options, dtype)


def _make_towers(
    config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype
) -> "tuple[ImageTower | None, SoundTower | SoundRows | ConformerRows | None]":
    """What sees and what hears, in the stage that makes the first layer's input."""
    sees = config.tower is not None and options.sees_images
    if (not sees and config.sound is None) or (options.stage is not None and not options.stage.is_first):
        return None, None
    # Most models have neither: starts are faster without the import.
    from jaxllm.models.towers.make import make_image_tower, make_sound_tower

    tower = make_image_tower(config, options, dtype) if sees else None
    return tower, None if config.sound is None else make_sound_tower(config, options, dtype)


def _make_embedding(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> Embedding | None:
    """The module that makes the first layer's input; the output layer may share it."""
    stage = options.stage
    if stage is None or stage.is_first:
        return TokenEmbedding(config, options, dtype=dtype)
    if stage.is_last and config.tie_word_embeddings:
        return Embedding(config, options, dtype=dtype, is_output=True)
    return None


def abstract_model(config: ModelConfig, options: ForwardOptions, dtype: DTypeLike) -> CausalLM:
    """A model whose parameters are shapes: enough to lower and compile from, while weights load.

    Raises `ModelError` for an unknown architecture or a stack its layers do not fit.
    """
    return CausalLM(config, options, jnp.dtype(dtype))


def load_model(
    source: "WeightSource",
    config: ModelConfig,
    options: ForwardOptions,
    dtype: DTypeLike,
    progress: Callable[[int, int], None] | None = None,
    drafter_source: "WeightSource | None" = None,
    change: "Change | None" = None,
) -> CausalLM:
    """The model with the parameters of a checkpoint, in `dtype`, or with random ones; see `load_into`.

    A stage (`ForwardOptions.stage`) reads only its own tensors. A drafter that is apart has the parameters of
    `drafter_source`. With a `change` parameters have other values than the checkpoint's.
    """
    model = abstract_model(config, options, dtype)
    plan, drafter = options.drafter, model.drafter
    if plan is not None and plan.is_apart:
        model.drafter = None
    # Known before memory is taken.
    scales = kv_scales_of(model, source) if isinstance(source, Checkpoint) else {}
    model = load_into(model, source, checkpoint_names(config, options), given=scales, progress=progress, change=change)
    if plan is not None and plan.is_apart:
        assert drafter_source is not None
        model.drafter = cast("Drafter", plan.load(cast(nnx.Module, drafter), drafter_source, None))
    return model


def checkpoint_names(config: ModelConfig, options: ForwardOptions) -> CheckpointNames:
    """How checkpoints call the tensors of a model, or of a stage of it."""
    family, stage = registry.lookup(config.architecture), options.stage
    names = family.names_of(config)
    if options.drafter is not None:
        names = {**names, **options.drafter.names(config)}
    # Files of torch may have the embedding twice, also under the name of the output layer that it stands for.
    twice = {"lm_head", source_of(names.get("head", "lm_head")).name} if config.tie_word_embeddings else set()
    return CheckpointNames(
        names=names,
        ignored=(*family.ignored_tensors, *KV_SCALES, *(f"{head}.weight" for head in sorted(twice))),
        ignored_beginnings=family.other_parts_of(config),
        renamed=family.renamed,
        synonyms=family.synonyms,
        omitted=family.omitted,
        known_format=config.weight_format,
        first_layer=0 if stage is None else stage.start,
        elsewhere=None if stage is None else stage.elsewhere(names),
        apart=("drafter",) if options.drafter is not None and options.drafter.is_apart else (),
    )


def kv_scales_of(model: CausalLM, checkpoint: Checkpoint) -> dict[tuple[str | int, ...], np.ndarray]:
    """Scales of keys and values, by the path of their parameter."""
    kind = model.options.kv_cache
    if kind is None or kind.scales != "checkpoint":
        return {}
    plans = model.config.layers
    # Who reads the keys of another layer reads them with its scales.
    owners = {
        layer: layer if plan.attention.source is None else plan.attention.source
        for layer, plan in enumerate(plans)
        if plan.recurrence is None
    }
    scales = read_kv_scales(checkpoint, sorted(set(owners.values())))
    found: dict[tuple[str | int, ...], np.ndarray] = {}
    for keys, _ in nnx.to_flat_state(nnx.state(model)):
        path = cast(tuple[str | int, ...], keys)
        if path[-1] == "kv_scales":
            layers, is_stacked = layers_of(path)
            own = [scales[owners[layer]] for layer in layers]
            found[path] = np.stack(own) if is_stacked else own[0]
    return found
