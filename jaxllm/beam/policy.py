"""Which continuations of the beams survive a step, which are complete, and when the search is over.

The rules are those of `transformers` (`generate(num_beams=...)`, version 5) for one prompt:

- the candidates of a step are the most likely continuations of all beams, ranked by their sums of log-probabilities;
- of the first `width` candidates, those that end with an end token are complete hypotheses;
- the first `width` candidates that do not end go on;
- the `width` hypotheses with the best scores are kept, a score being the sum divided by length ** length_penalty;
- `early_stopping` says when to stop once there are `width` of them, see `BeamOptions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from jaxllm.beam.tree import TreeRecorder
from jaxllm.requests.beam_options import BeamOptions

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The most likely tokens after one beam: int32 [K] and float32 [K], most likely first."""

    token_ids: IntArray
    logprobs: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A token of a hypothesis and, through `before`, all those before it: what hypotheses share is there once."""

    before: "Link | None"
    token_id: int
    place: int
    """Its index among `beside`."""
    beside: Candidates
    """The candidates it was chosen from."""
    length: int
    """Tokens up to this one."""

    def chain(self) -> "list[Link]":
        """This token and those before it, in order."""
        links: list[Link] = []
        link: Link | None = self
        while link is not None:
            links.append(link)
            link = link.before
        return links[::-1]


@dataclass(frozen=True, slots=True)
class Beam:
    """A hypothesis that goes on: its last token, its sum of log-probabilities, and which beam it continues."""

    last: Link
    total: float
    parent: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete hypothesis."""

    last: Link
    total: float
    score: float
    reason: Literal["stop", "length"]


class BeamSearch:
    """The search for one prompt: `advance` once per token, until `done`.

    `num_candidates` are needed of each beam: with E end tokens, the first `width` that do not end are among the first
    width + E.
    """

    def __init__(self, options: BeamOptions, end_token_ids: frozenset[int], max_tokens: int) -> None:
        self.options = options
        self.done = False
        self.beams: list[Beam] = []
        """Best first; none before the first step."""
        self.recorder = TreeRecorder() if options.with_tree else None
        """Writes down what is tried, if that is asked for."""
        self._ends = end_token_ids
        self._max_tokens = max_tokens
        self._complete: list[Hypothesis] = []  # best first, at most `width`

    @property
    def num_candidates(self) -> int:
        """Most likely tokens of each beam that a step looks at."""
        return self.options.width + len(self._ends)

    @property
    def best(self) -> list[Hypothesis]:
        """The `n` best complete hypotheses, best first."""
        return self._complete[: self.options.n]

    def advance(self, candidates: Sequence[Candidates]) -> None:
        """Take the continuations of each beam, in the order of `beams`; before the first step, of the prompt."""
        totals = [beam.total for beam in self.beams] or [0.0]
        last: list[Link | None] = [beam.last for beam in self.beams] or [None]
        ids = np.stack([each.token_ids for each in candidates])
        sums = np.stack([each.logprobs for each in candidates]).astype(np.float64) + np.array(totals)[:, None]
        length = 1 + (0 if last[0] is None else last[0].length)
        survivors: list[Beam] = []
        for rank, flat in enumerate(np.argsort(-sums, axis=None, kind="stable").tolist()):
            if rank >= self.options.width and len(survivors) == self.options.width:
                break
            parent, place = divmod(flat, ids.shape[1])
            link = Link(last[parent], int(ids[parent, place]), place, candidates[parent], length)
            ends = link.token_id in self._ends
            if ends or length == self._max_tokens:
                if rank < self.options.width:
                    self._add(link, float(sums[parent, place]), "stop" if ends else "length")
            elif len(survivors) < self.options.width:
                survivors.append(Beam(link, float(sums[parent, place]), parent))
                if self.recorder is not None:
                    self.recorder.add(link, float(sums[parent, place]))
        self.beams = survivors
        self.done = not survivors or self._is_over(length)

    def _add(self, link: Link, total: float, reason: Literal["stop", "length"]) -> None:
        """Keep a complete hypothesis, if it is among the best."""
        score = total / link.length**self.options.length_penalty
        if self.recorder is not None:
            self.recorder.add(link, total)
            self.recorder.end(link, reason, score)
        place = sum(other.score >= score for other in self._complete)
        self._complete.insert(place, Hypothesis(link, total, score, reason))
        del self._complete[self.options.width :]

    def _is_over(self, length: int) -> bool:
        """Whether to stop with beams that could go on."""
        if len(self._complete) < self.options.width:
            return False
        if self.options.early_stopping is True:
            return True
        penalty = self.options.length_penalty
        if self.options.early_stopping == "never" and penalty > 0.0:
            length = self._max_tokens
        return self.beams[0].total / length**penalty <= self._complete[-1].score
