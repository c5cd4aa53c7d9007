"""A beam search in the engine: one sequence per beam, each in a lane (a slot of its own) as long as the group runs."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from jaxllm.beam.policy import Beam, BeamSearch, Candidates, Hypothesis
from jaxllm.outputs import BeamHypothesis, TokenLogprobs
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.request import Request

Phase = Literal["prompt", "move", "run"]


@dataclass(eq=False, slots=True)
class BeamGroup:
    """The lanes of one request, and what is in them.

    `lanes[0]` is the request itself. Phases: "prompt", lane 0 computes the prompt and the others are empty, when it
    starts or comes back after preemption; "move", it is decided what each lane goes on with, `sources[lane]` being the
    lane whose pages it continues, and the next `schedule` sees to it; "run", every lane computes its known tokens and
    then waits until all have.

    `copies` are pages (from, to) and `moved` slots whose pages the device must hear of before the next step.
    """

    search: BeamSearch
    lanes: list["Request"]
    num_alternatives: int | None
    beams: list[Beam] = field(default_factory=list)  # by lane
    phase: Phase = "prompt"
    sources: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    _arrived: dict[int, Candidates] = field(default_factory=dict)

    @classmethod
    def of(cls, request: "Request", max_model_len: int) -> "BeamGroup":
        """The group of a request whose parameters ask for a beam search."""
        params, options = request.params, request.params.beam_search
        assert options is not None
        room = max_model_len - len(request.prompt_token_ids)
        max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
        search = BeamSearch(options, end_token_ids(params, request.eos_token_ids), max_tokens)
        lanes = [request, *(request.sibling(f"{request.request_id}#{lane}") for lane in range(1, options.width))]
        return cls(search, lanes, params.logprobs)

    @property
    def width(self) -> int:
        """Lanes."""
        return len(self.lanes)

    @property
    def leader(self) -> "Request":
        """The request itself, in lane 0."""
        return self.lanes[0]

    def tokens(self, lane: int, count: int) -> list[int]:
        """The last `count` tokens of what the lane goes on with."""
        found: list[int] = []
        link = self.beams[lane].last
        while len(found) < count:
            found.append(link.token_id)
            assert link.before is not None or len(found) == count
            link = link.before or link
        return found[::-1]

    def take(self, request: "Request", top_ids: np.ndarray, top_logprobs: np.ndarray) -> None:
        """Take the most likely tokens behind what the lane of `request` holds, both [K], and go on if that was all."""
        if self.phase == "prompt" and self.beams:
            # It was preempted: what follows the prompt is known.
            self._move([0] * self.width)
            return
        count = self.search.num_candidates
        self._arrived[self.lanes.index(request)] = Candidates(top_ids[:count].copy(), top_logprobs[:count].copy())
        if self.phase == "prompt":
            self.search.advance([self._arrived.pop(0)])
            self._settle_in([0] * len(self.search.beams))
        elif len(self._arrived) == self.width:
            # In the policy's order of beams.
            lane_of = {id(beam): lane for lane, beam in enumerate(self.beams)}
            order = [lane_of[id(beam)] for beam in self.search.beams]
            self.search.advance([self._arrived[lane] for lane in order])
            self._arrived.clear()
            self._settle_in([order[beam.parent] for beam in self.search.beams])

    def _settle_in(self, parents: list[int]) -> None:
        """Give each surviving beam a lane: that of its parent if no better one has it, else one that is left."""
        if self.search.done:
            return
        beams: list[Beam | None] = [None] * self.width
        sources = list(range(self.width))
        homeless = []
        for beam, parent in zip(self.search.beams, parents, strict=True):
            if beams[parent] is None:
                beams[parent] = beam
            else:
                homeless.append((beam, parent))
        free = [lane for lane, beam in enumerate(beams) if beam is None]
        for lane, (beam, parent) in zip(free, homeless, strict=True):
            beams[lane], sources[lane] = beam, parent
        self.beams = [beam for beam in beams if beam is not None]
        self._move(sources)

    def _move(self, sources: list[int]) -> None:
        self.sources = sources
        self.phase = "move"

    def rewind(self) -> None:
        """The group has lost its slots: it begins again with the prompt. What it has found stays."""
        leader = self.leader
        leader.output_token_ids = []
        self.phase = "prompt"
        self._arrived.clear()
        self.copies.clear()
        self.moved.clear()
        for lane in self.lanes:
            lane.page_hashes = []

    def hypotheses(self) -> list[BeamHypothesis]:
        """The result."""
        return [self._hypothesis(found) for found in self.search.best]

    def _hypothesis(self, found: Hypothesis) -> BeamHypothesis:
        links = found.last.chain()
        last = links[-1].token_id
        params, eos = self.leader.params, self.leader.eos_token_ids
        is_eos = not params.ignore_eos and last in eos
        logprobs = []
        for link in links:
            beside, shown = link.beside, slice(self.num_alternatives or 0)
            logprobs.append(
                TokenLogprobs(
                    link.token_id,
                    float(beside.logprobs[link.place]),
                    link.place + 1,
                    beside.token_ids[shown].tolist(),
                    beside.logprobs[shown].tolist(),
                )
            )
        return BeamHypothesis(
            token_ids=[link.token_id for link in links],
            logprobs=None if self.num_alternatives is None else logprobs,
            cumulative_logprob=found.total,
            score=found.score,
            finish_reason=found.reason,
            stop_reason=last if found.reason == "stop" and not is_eos else None,
        )


def end_token_ids(params: SamplingParams, eos_token_ids: tuple[int, ...]) -> frozenset[int]:
    """Tokens that complete a hypothesis."""
    ends = set(params.stop_token_ids or ())
    return frozenset(ends if params.ignore_eos else ends.union(eos_token_ids))
