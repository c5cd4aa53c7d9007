"""How many drafts a step brings: as many as make it yield most tokens a second, down to none."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxllm.speculation.step_costs import StepCosts

Int32Array = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

FEWEST_GAIN = 1.1
"""A step has drafts if it is expected to yield so many times the tokens a second that it would without."""


class StepLoad(NamedTuple):
    """A step without drafts, and what they would cost."""

    num_rows: int
    """Tokens that it yields."""
    num_tokens: int
    """Tokens that it computes."""
    max_tokens: int
    """Tokens that a step may have."""
    gap_seconds: float
    """How long the device waits for the host after a step with drafts."""
    plain_seconds: float | None = None
    """What the step takes where nothing makes guesses. None: as much as one in which they are made and not checked."""


def chances_of(rates: Floats, ahead: Int32Array, most: int) -> Floats:
    """How likely each of `most` drafts is accepted, [n, most]: all guesses up to it are right.

    A guess is right with the probability `rates` [n, most + 1 or more] if those before it are, and `ahead` [n] guesses,
    0 or 1, before the first draft are still to be confirmed.
    """
    together = np.cumprod(rates, axis=1)
    return np.where(ahead[:, None] > 0, together[:, 1 : most + 1], together[:, :most])


def choose_amounts(counts: Int32Array, chances: Floats, costs: StepCosts, load: StepLoad) -> Int32Array:
    """How many drafts of each request a step should bring, int32 [n].

    There are `counts` of them, int32 [n]. Each is accepted with the probability `chances` [n, places], which fall from
    place to place. `costs` are those of steps that check guesses, and make the next ones if the device does.
    """
    most = min(int(counts.max(initial=0)), load.max_tokens - load.num_tokens)
    if most <= 0:
        return np.zeros_like(counts)
    places = np.arange(1, most + 1)
    values = np.where(places <= counts[:, None], chances[:, :most], 0.0)
    if values.sum() < (FEWEST_GAIN - 1) * load.num_rows:
        return np.zeros_like(counts)  # However little they cost. This spares the host most of the work.
    flat = np.sort(values, axis=None)[::-1][: load.max_tokens - load.num_tokens]
    flat = flat[flat > 0]
    tokens = load.num_rows + np.concatenate([[0.0], np.cumsum(flat)])
    seconds = costs.of(load.num_tokens + np.arange(len(tokens)))
    seconds[1:] += load.gap_seconds
    if load.plain_seconds is not None:
        seconds[0] = load.plain_seconds
    speed = tokens / seconds
    best = int(speed.argmax())
    if speed[best] < FEWEST_GAIN * speed[0]:
        return np.zeros_like(counts)
    # A row's values fall from place to place: the most valuable ones are the first of each row.
    least = flat[best - 1]
    chosen = np.count_nonzero(values > least, axis=1)
    for row in np.flatnonzero((values == least).any(axis=1)).tolist():
        left = best - int(chosen.sum())
        chosen[row] += min(left, int(np.count_nonzero(values[row] == least)))
    return chosen.astype(np.int32)
