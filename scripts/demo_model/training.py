"""The training loop: fresh text at every step, a learning rate that reaches zero when the time or the steps run out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from scripts.demo_model.network import EMBEDDING, Params, Shape, initial_params, token_losses
from scripts.demo_model.packing import Batch

_AVERAGE = 0.99
"""What the moving average of the weights keeps of itself at each step."""

_DECAY = 0.4
"""The last part of the steps, over which the learning rate falls to zero."""


class Schedule:
    """The learning rate: a rise, a plateau, and a linear fall to zero at the end.

    Where time ends the run, or a reader who has waited enough, the fall begins at that step: the run is then the same,
    step by step, as one which was told its number of steps beforehand.
    """

    def __init__(self, learning_rate: float, steps: int | None, minutes: float | None, warmup_steps: int = 60) -> None:
        """Takes the number of steps, or else the minutes that all of it should take."""
        self._learning_rate, self._warmup_steps = learning_rate, warmup_steps
        self._steps, self._minutes = steps, minutes
        self._finishing = False

    def finish(self) -> None:
        """Lets the fall begin with the next step."""
        self._finishing = True

    def rate(self, step: int, seconds: float) -> float | None:
        """The learning rate of a step, or None if the run has ended."""
        if self._steps is None or (self._finishing and step < self._steps * (1 - _DECAY)):
            late = self._minutes is not None and seconds > 60 * self._minutes * (1 - _DECAY)
            if not (late or self._finishing):
                return self._learning_rate * min(1.0, (step + 1) / self._warmup_steps)
            self._steps = math.ceil(step / (1 - _DECAY))
        left = (self._steps - step) / (self._steps * _DECAY)
        return self._learning_rate * min(1.0, (step + 1) / self._warmup_steps, left) if step < self._steps else None

    def progress(self, step: int, seconds: float) -> float:
        """The share of the run that is done, as far as can be told."""
        by_time = seconds / (60 * self._minutes) if self._minutes else 0.0
        return min(1.0, step / self._steps if self._steps else by_time)


@dataclass(frozen=True)
class Progress:
    """What a reader of the progress display wants to know."""

    step: int
    share: float
    loss: float
    tokens_per_step: float
    seconds: float


def optimizer(params: Params, tables: Collection[str] = (EMBEDDING,)) -> optax.GradientTransformationExtraArgs:
    """Muon for the matrices of the layers, Adam for tables, norms and biases, both at the scale of Adam's updates.

    Per minute, Muon brings so small a model further than AdamW does.  The learning rate is a hyperparameter of the
    state, so that the schedule can follow the clock.
    """
    is_matrix = {
        name: optax.contrib.MuonDimensionNumbers() if array.ndim == 2 and name not in tables else None
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


class Run(NamedTuple):
    """All that changes during training."""

    params: Params
    averaged: Params
    """The moving average of the weights, good at any time."""
    optimizer: Any
    step: int


def train(
    shape: Shape,
    seed: int,
    embedding: jax.Array,
    data: Iterator[Batch],
    schedule: Schedule,
    report: Callable[[Progress, Run], None],
    resume: Callable[[Run], Run] = lambda run: run,
) -> Run:
    """Trains from fresh weights around the embedding, or from what `resume` makes of them; returns the run at its end.

    `report` is called after every step and may save the run.
    """
    params = initial_params(shape, seed, embedding)
    optimize = optimizer(params)
    run = resume(Run(params, jax.tree.map(jnp.copy, params), optimize.init(params), 0))
    params, averaged, state, step = run
    update = _update(shape, optimize)
    for _ in range(step):
        next(data)
    begin, tokens, first = time.monotonic(), 0, step
    while (rate := schedule.rate(step, time.monotonic() - begin)) is not None:
        batch = next(data)
        params, averaged, state, loss = update(
            params, averaged, state, jnp.float32(rate), batch.tokens, batch.documents, batch.weights
        )
        mean_loss = float(loss)  # waits for the device, so that the clock below is right
        step, tokens, seconds = step + 1, tokens + batch.tokens.size, time.monotonic() - begin
        progress = Progress(step, schedule.progress(step, seconds), mean_loss, tokens / (step - first), seconds)
        report(progress, Run(params, averaged, state, step))
    return Run(params, averaged, state, step)


def _update(shape: Shape, optimize: optax.GradientTransformationExtraArgs) -> Callable[..., Any]:
    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(
        params: Params,
        averaged: Params,
        state: Any,
        rate: jax.Array,
        tokens: jax.Array,
        numbers: jax.Array,
        weights: jax.Array,
    ) -> tuple[Params, Params, Any, jax.Array]:
        def loss_of(params: Params) -> jax.Array:
            losses = token_losses(params, shape, tokens, numbers)
            return (losses * weights[:, 1:]).sum() / weights.sum()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        state.hyperparams["learning_rate"] = rate
        changes, state = optimize.update(gradients, state, params)
        params = optax.apply_updates(params, changes)
        averaged = jax.tree.map(lambda old, new: _AVERAGE * old + (1 - _AVERAGE) * new, averaged, params)
        return params, averaged, state, loss

    return update
