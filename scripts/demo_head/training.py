"""The training loop of the head, and how often its guesses are what the model says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from scripts.demo_head.network import HEAD, HeadShape, ahead, counted, guesses, initial_params, loss, see
from scripts.demo_model.network import Params, Shape
from scripts.demo_model.packing import Batch

_AVERAGE, _WARMUP, _DECAY = 0.99, 20, 0.5
"""What the moving average of the weights keeps at each step; first steps, in which the learning rate rises; and the
last part of the steps, over which it falls to zero."""


def optimizer(params: Params) -> optax.GradientTransformationExtraArgs:
    """Muon for the matrices of the layer, Adam for output layer and norms, as for the model itself."""
    is_matrix = {
        name: optax.contrib.MuonDimensionNumbers() if array.ndim == 2 and name != HEAD else None
        for name, array in params.items()
    }

    def build(learning_rate: float) -> optax.GradientTransformation:
        muon = optax.contrib.muon(
            learning_rate,
            weight_decay=0.01,
            adam_b2=0.98,
            muon_weight_dimension_numbers=is_matrix,
            consistent_rms=0.2,
        )
        return optax.chain(optax.clip_by_global_norm(1.0), muon)

    return optax.inject_hyperparams(build)(learning_rate=0.0)


def train(
    model: Params,
    shape: Shape,
    own: HeadShape,
    data: Iterator[Batch],
    report: Callable[[int, float], None],
    *,
    seed: int,
    steps: int,
    learning_rate: float,
    count: int,
) -> Params:
    """Trains a head on guesses of `count` tokens; returns the moving average of its weights.

    `report` is told the number of each step and its loss in nats.
    """
    params = initial_params(model, shape, own, seed)
    averaged = jax.tree.map(jnp.copy, params)
    optimize = optimizer(params)
    state = optimize.init(params)

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(
        params: Params, averaged: Params, state: Any, rate: jax.Array, share: jax.Array, model: Params, batch: Any
    ) -> Any:
        tokens, documents, weights = batch
        seen = see(model, shape, own, tokens, documents)
        value, gradients = jax.value_and_grad(loss)(params, shape, own, seen, documents, weights, count)
        state.hyperparams["learning_rate"] = rate
        changes, state = optimize.update(gradients, state, params)
        params = optax.apply_updates(params, changes)
        averaged = jax.tree.map(lambda old, new: share * old + (1 - share) * new, averaged, params)
        return params, averaged, state, value

    for step in range(steps):
        batch = next(data)
        left = (steps - step) / (steps * _DECAY)
        rate = learning_rate * min(1.0, (step + 1) / _WARMUP, left)
        share = min(_AVERAGE, (step + 1) / (step + 10))  # So that the first weights are soon forgotten.
        arrays = (batch.tokens, batch.documents, batch.weights)
        params, averaged, state, value = update(
            params, averaged, state, jnp.float32(rate), jnp.float32(share), model, arrays
        )
        report(step + 1, float(value))
    return averaged


def acceptance(
    params: Params, model: Params, shape: Shape, own: HeadShape, batches: Iterable[Batch], count: int
) -> NDArray[np.float64]:
    """For each of `count` guesses the share that the model would say, too, where those before it are right."""

    @jax.jit
    def hits(params: Params, model: Params, tokens: jax.Array, documents: jax.Array, weights: jax.Array) -> jax.Array:
        seen = see(model, shape, own, tokens, documents)
        likeliest = seen.likely.argmax(axis=-1)
        found = []
        for number, logits in enumerate(guesses(params, shape, own, seen, count)):
            chosen = counted(documents, weights, number)
            right = (logits.argmax(axis=-1) == ahead(likeliest, number + 1)) & chosen
            found.append(jnp.stack([right.sum(), chosen.sum()]))
        return jnp.stack(found)

    total = np.zeros((count, 2))
    for batch in batches:
        total += np.asarray(hits(params, model, batch.tokens, batch.documents, batch.weights))
    return total[:, 0] / np.maximum(total[:, 1], 1)
