"""How many of a request's drafts were right, under vLLM's names."""

from dataclasses import dataclass


@dataclass(slots=True)
class SpecDecodeMetrics:
    """The drafts of one sequence.

    `acceptance_histogram[n]` counts the steps with drafts where n were right, `acceptance_histogram_by_draft_length`
    those steps by how many drafts they had; both only where they are asked for.
    """

    num_spec_tokens: int
    """Most drafts of a step."""
    num_spec_steps: int = 0
    """Steps with drafts."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: list[int] | None = None
    acceptance_histogram_by_draft_length: dict[int, list[int]] | None = None

    @classmethod
    def empty(cls, most: int, *, is_detailed: bool) -> "SpecDecodeMetrics":
        """Those of a sequence without drafts so far, which has up to `most` in a step."""
        if not is_detailed:
            return cls(most)
        return cls(most, acceptance_histogram=[0] * (most + 1), acceptance_histogram_by_draft_length={})

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens of a step with drafts: 1, and the drafts that were right. None: no step had any."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        """The share of drafts that were right. None: there were none."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """Count a step with drafts."""
        self.num_spec_steps += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_draft_tokens += num_accepted
        if self.acceptance_histogram is not None and self.acceptance_histogram_by_draft_length is not None:
            self.acceptance_histogram[num_accepted] += 1
            by_length = self.acceptance_histogram_by_draft_length.setdefault(num_drafts, [0] * (num_drafts + 1))
            by_length[num_accepted] += 1
