"""A beam search in the engine: a sequence per beam, each with a slot of its own as long as the group runs."""

from dataclasses import dataclass, field

import numpy as np

from jaxllm.beam.policy import Beam, BeamSearch, Candidates, Hypothesis
from jaxllm.requests.outputs import BeamTree, RankedSequence, TokenLogprobs
from jaxllm.requests.request import Request, SequenceGroup


@dataclass(eq=False, slots=True, kw_only=True)
class BeamGroup(SequenceGroup):
    """The sequences of a beam search, and the beam that each goes on with."""

    search: BeamSearch
    num_alternatives: int | None
    beams: list[Beam] = field(default_factory=list)  # by sequence
    _arrived: dict[int, Candidates] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, max_model_len: int) -> "BeamGroup":
        """The group of a request whose parameters ask for a beam search; makes the request its leader."""
        params, options = request.params, request.params.beam_search
        assert options is not None
        room = max_model_len - len(request.prompt_token_ids)
        max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
        search = BeamSearch(options, params.end_token_ids(request.eos_token_ids), max_tokens)
        others = [request.sibling(f"{request.request_id}#{index}") for index in range(1, options.width)]
        group = cls(sequences=[request, *others], search=search, num_alternatives=params.logprobs)
        for sequence in group.sequences:
            sequence.group = group
        return group

    @property
    def width(self) -> int:
        """How many beams are followed."""
        return len(self.sequences)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of each beam."""
        return self.beams[0].last.length

    def tokens(self, index: int, count: int) -> list[int]:
        """The last `count` tokens of the beam that a sequence goes on with."""
        found: list[int] = []
        link = self.beams[index].last
        while len(found) < count:
            found.append(link.token_id)
            assert link.before is not None or len(found) == count
            link = link.before or link
        return found[::-1]

    def take(self, request: Request, top_ids: np.ndarray, top_logprobs: np.ndarray) -> None:
        """Take the most likely tokens after what the sequence holds, both [K], and go on if that was all."""
        if self.phase == "prompt" and self.beams:
            # It was preempted: what follows the prompt is known.
            self._move([0] * self.width)
            return
        count = self.search.num_candidates
        self._arrived[self.sequences.index(request)] = Candidates(top_ids[:count].copy(), top_logprobs[:count].copy())
        if self.phase == "prompt":
            self.search.advance([self._arrived.pop(0)])
            self._settle_in([0] * len(self.search.beams))
        elif len(self._arrived) == self.width:
            # In the policy's order of beams.
            index_of = {id(beam): index for index, beam in enumerate(self.beams)}
            order = [index_of[id(beam)] for beam in self.search.beams]
            self.search.advance([self._arrived[index] for index in order])
            self._arrived.clear()
            self._settle_in([order[beam.parent] for beam in self.search.beams])

    def _settle_in(self, parents: list[int]) -> None:
        """Give each surviving beam a sequence: its parent's if no better one has it, else one that is left."""
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
        free = [index for index, beam in enumerate(beams) if beam is None]
        for index, (beam, parent) in zip(free, homeless, strict=True):
            beams[index], sources[index] = beam, parent
        self.beams = [beam for beam in beams if beam is not None]
        self._move(sources)

    def _move(self, sources: list[int]) -> None:
        self.sources = sources
        self.phase = "move"

    def rewind(self) -> None:
        """Also forget what has arrived of a step that is not complete."""
        # No super() without arguments: the class that slots make is not the one whose body this is.
        SequenceGroup.rewind(self)
        self._arrived.clear()

    def hypotheses(self) -> list[RankedSequence]:
        """The result."""
        best, recorder = self.search.best, self.search.recorder
        first = None if recorder is None else recorder.tree(best)
        return [self._hypothesis(found, first if found is best[0] else None) for found in best]

    def _hypothesis(self, found: Hypothesis, tree: BeamTree | None) -> RankedSequence:
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
        return RankedSequence(
            token_ids=[link.token_id for link in links],
            logprobs=None if self.num_alternatives is None else logprobs,
            cumulative_logprob=found.total,
            score=found.score,
            finish_reason=found.reason,
            stop_reason=last if found.reason == "stop" and not is_eos else None,
            tree=tree,
        )
