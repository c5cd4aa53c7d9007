"""How often the guesses for each request have been right."""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

KEPT = 0.9
"""Share of a trial's weight that each later one of its request leaves."""

PRIOR_WEIGHT = 2.0
"""So many trials is the rate of all requests worth in the first of another."""

FIRST_RATE = 0.3
"""The rate of all before anything is known: too low for drafts. Guesses are counted before any are checked by a step,
so that a text which cannot be guessed costs nothing."""


class AcceptanceRates:
    """For each slot, the probability that a guess is right if those before it are.

    Guesses are counted whether a step has computed them or not: the next token says what the first would have been.
    """

    def __init__(self, num_slots: int) -> None:
        self._hits: Floats = np.zeros(num_slots)
        self._trials: Floats = np.zeros(num_slots)
        self._all_hits, self._all_trials = FIRST_RATE * 20, 20.0

    def begin(self, slot: int) -> None:
        """Another request has this slot."""
        self._hits[slot] = self._trials[slot] = 0

    def of(self, slots: Int32Array) -> Floats:
        """The rates of slots, [n]: between 0 and 1."""
        prior = self._all_hits / self._all_trials
        rates: Floats = (self._hits[slots] + PRIOR_WEIGHT * prior) / (self._trials[slots] + PRIOR_WEIGHT)
        return rates

    def count(self, slots: Int32Array, hits: Int32Array, trials: Int32Array) -> None:
        """Of so many guesses for each of `slots` (int32 [n], distinct) so many were right."""
        left = KEPT**trials
        self._hits[slots] = self._hits[slots] * left + hits
        self._trials[slots] = self._trials[slots] * left + trials
        # All requests together change slowly: their first guesses have the weight of one.
        left_of_all = 0.995 ** len(slots)
        tried = trials > 0
        self._all_hits = self._all_hits * left_of_all + float((hits[tried] / trials[tried]).sum())
        self._all_trials = self._all_trials * left_of_all + float(np.count_nonzero(tried))
