"""How often the guesses for each request have been right, and how likely those for its next tokens are."""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

KEPT = 0.9
"""Share of a trial's weight that each later one of its request leaves, and of all requests `KEPT_OF_ALL`."""

KEPT_OF_ALL = 0.995

PRIOR_WEIGHT = 2.0
"""So many trials is the rate of all requests worth in the first of another."""

STREAKS = np.array([1, 2, 3, 5, 9, 17])
"""Guesses are told apart by how many of their request were right in a row just before. A text that is followed for a
while and then left is hard to guess after it was left, and easy in the middle of what it repeats."""

FIRST_RATES = np.array([0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
"""The rates of all before anything is known, by streak. The first is too low for drafts on most machines: guesses are
counted before any are checked by a step, so that a text which cannot be guessed costs nothing."""

FIRST_WEIGHT = 10.0
"""So many trials are these worth."""


class AcceptanceRates:
    """For each slot, the probability that a guess is right if those before it are.

    Guesses are counted whether a step has computed them or not: the next token says what the first would have been.
    Until one for a request has been counted, the probability is 0. To wait for that costs a request one step at most,
    and drafts for many requests that begin with text that nobody can guess would cost all of them more.
    """

    def __init__(self, num_slots: int) -> None:
        self._hits: Floats = np.zeros((num_slots, len(FIRST_RATES)))
        self._trials: Floats = np.zeros((num_slots, len(FIRST_RATES)))
        self._streaks: Int32Array = np.zeros(num_slots, np.int32)
        self._all_hits, self._all_trials = FIRST_RATES * FIRST_WEIGHT, np.full(len(FIRST_RATES), FIRST_WEIGHT)

    def begin(self, slot: int) -> None:
        """Another request has this slot."""
        self._hits[slot] = self._trials[slot] = self._streaks[slot] = 0

    def of(self, slots: Int32Array, most: int) -> Floats:
        """The probability of each of the next `most` guesses to be right if those before it are, [n, most]."""
        prior = self._all_hits / self._all_trials
        rates: Floats = (self._hits[slots] + PRIOR_WEIGHT * prior) / (self._trials[slots] + PRIOR_WEIGHT)
        classes = streak_classes(self._streaks[slots], most)
        return np.take_along_axis(rates, classes, axis=1) * self._trials[slots].any(axis=1, keepdims=True)

    def count(self, slots: Int32Array, hits: Int32Array, trials: Int32Array) -> None:
        """Of so many guesses for each of `slots` (int32 [n], distinct) so many were right: the first ones.

        At most one of them was not, the last.
        """
        new_hits, new_trials = by_streak(self._streaks[slots], hits, trials)
        left = KEPT**new_trials
        self._hits[slots] = self._hits[slots] * left + new_hits
        self._trials[slots] = self._trials[slots] * left + new_trials
        left = KEPT_OF_ALL ** new_trials.sum(axis=0)
        self._all_hits = self._all_hits * left + new_hits.sum(axis=0)
        self._all_trials = self._all_trials * left + new_trials.sum(axis=0)
        self._streaks[slots] = np.where(hits < trials, 0, self._streaks[slots] + hits)

    def interrupt(self, slots: Int32Array) -> None:
        """There was no guess at the next tokens of these slots, int32 [n]: what repeats begins again."""
        self._streaks[slots] = 0


def streak_classes(streaks: Int32Array, most: int) -> npt.NDArray[np.intp]:
    """The classes of the next `most` guesses after `streaks` [n], [n, most], where all of them are right."""
    return np.searchsorted(STREAKS, streaks[:, None] + np.arange(most), side="right")


def by_streak(streaks: Int32Array, hits: Int32Array, trials: Int32Array) -> tuple[Floats, Floats]:
    """So many `hits` of so many `trials` after `streaks`, int32 [n] each, by class of streak: [n, classes] each."""
    num, most = len(streaks), int(trials.max(initial=0))
    places = np.arange(most)
    cells = streak_classes(streaks, most) + len(FIRST_RATES) * np.arange(num)[:, None]

    def per_class(counted: Int32Array) -> Floats:
        found = np.bincount(cells[places < counted[:, None]], minlength=num * len(FIRST_RATES))
        return found.reshape(num, len(FIRST_RATES)).astype(np.float64)

    return per_class(np.minimum(hits, trials)), per_class(trials)
