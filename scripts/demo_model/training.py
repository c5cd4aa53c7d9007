"""The training loop: fresh text at every step, a learning rate that reaches zero when the time or the steps run out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from scripts.demo_model.network import EMBEDDING, Params, Shape, initial_params, token_losses
from scripts.demo_model.packing import Batch


@dataclass(frozen=True)
class Schedule:
    """How long to train and how fast; whichever of `steps` and `minutes` is given ends the run."""

    steps: int | None
    minutes: float | None
    learning_rate: float
    warmup_steps: int = 60

    def progress(self, step: int, seconds: float) -> float:
        """The share of the run that is done."""
        by_steps = step / self.steps if self.steps else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return max(by_steps, by_time)

    def rate(self, step: int, progress: float) -> float:
        """The learning rate: a linear rise, then a linear fall to zero at the end of the run."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup_steps) * max(0.0, 1.0 - progress)


@dataclass(frozen=True)
class Progress:
    """What a reader of the progress display wants to know."""

    step: int
    share: float
    loss: float
    tokens: int
    seconds: float


def optimizer(params: Params) -> optax.GradientTransformationExtraArgs:
    """Muon for the matrices of the layers, Adam for embeddings and norms, both at the scale of Adam's updates.

    Per minute, Muon brings so small a model further than AdamW does.  The learning rate is a hyperparameter of the
    state, so that the schedule can follow the clock.
    """
    is_matrix = {
        name: optax.contrib.MuonDimensionNumbers() if array.ndim == 2 and name != EMBEDDING else None
        for name, array in params.items()
    }

    def build(learning_rate: float) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.contrib.muon(
                learning_rate,
                weight_decay=0.01,
                adam_b2=0.98,
                muon_weight_dimension_numbers=is_matrix,
                consistent_rms=0.2,
            ),
        )

    return optax.inject_hyperparams(build)(learning_rate=0.0)


def train(
    shape: Shape,
    seed: int,
    data: Iterator[Batch],
    schedule: Schedule,
    report: Callable[[Progress, Params], None],
    average: float = 0.99,
) -> tuple[Params, int]:
    """Trains from fresh weights; returns the moving average of the weights and the number of steps.

    `report` is called after every step with the averaged weights, which it may save: they are good at any time.
    """
    params = initial_params(shape, seed)
    optimize = optimizer(params)

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(
        params: Params, averaged: Params, state: Any, rate: jax.Array, tokens: jax.Array, numbers: jax.Array,
        weights: jax.Array,
    ) -> tuple[Params, Params, Any, jax.Array]:  # fmt: skip
        def loss_of(params: Params) -> jax.Array:
            losses = token_losses(params, shape, tokens, numbers)
            return (losses * weights[:, 1:]).sum() / weights.sum()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        state.hyperparams["learning_rate"] = rate
        changes, state = optimize.update(gradients, state, params)
        params = optax.apply_updates(params, changes)
        averaged = jax.tree.map(lambda old, new: average * old + (1 - average) * new, averaged, params)
        return params, averaged, state, loss

    averaged, state = jax.tree.map(jnp.copy, params), optimize.init(params)
    begin, step, tokens, share = time.monotonic(), 0, 0, 0.0
    while share < 1.0:
        batch = next(data)
        rate = jnp.float32(schedule.rate(step, share))
        params, averaged, state, loss = update(
            params, averaged, state, rate, batch.tokens, batch.documents, batch.weights
        )
        step, tokens, seconds = step + 1, tokens + batch.tokens.size, time.monotonic() - begin
        share = schedule.progress(step, seconds)
        report(Progress(step, min(share, 1.0), float(loss), tokens, seconds), averaged)
    return averaged, step
