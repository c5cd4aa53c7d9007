"""What a request returns to a person: text beside the token ids, under vLLM's names."""

from dataclasses import dataclass, field
from html import escape
from typing import Any


@dataclass(slots=True)
class Logprob:
    """One token at one place: natural logarithm of its probability, its rank (1 is the most likely), its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenChoices = dict[int, Logprob]
"""The chosen token (first) and the most likely ones at one place, by token id."""


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence; in a stream, its part since the last one.

    `logprobs` has one entry per token of `token_ids`, when they were asked for. `finish_reason` is "stop", "length" or
    "abort", and None while the sequence goes on; `stop_reason` is the stop string or stop token id that ended it, and
    None for the model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenChoices] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None


@dataclass(slots=True)
class BeamSearchSequence:
    """A hypothesis of a beam search.

    `tokens` are those of prompt and hypothesis, without the end token unless it was asked for, and `text` is what they
    say, special tokens included. `logprobs` has one entry per token of the hypothesis, its end token included, and
    `cum_logprob` is their sum; `score` is that divided by their number to the power of the length penalty.
    `finish_reason` is "stop", with the end token in `stop_reason`, or "length".
    """

    tokens: list[int]
    logprobs: list[TokenChoices]
    cum_logprob: float
    score: float
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The result of a beam search: its hypotheses, best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of the monotonic clock; None: not yet."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """A request's result, or in a stream the news of it: the sequences in `outputs` are then those with news.

    `prompt` is None when the prompt was given as token ids. `prompt_logprobs` has one entry per prompt token, of which
    the first is None; in a stream it comes with the first output. `num_cached_tokens` counts prompt tokens whose
    computation the prefix cache saved.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[TokenChoices | None] | None = None
    metrics: RequestMetrics | None = field(default=None, repr=False)
    num_cached_tokens: int = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all outputs together."""
        return sum(len(completion.token_ids) for completion in self.outputs)

    def _repr_html_(self) -> str:
        """Prompt and outputs as a small table, for notebooks."""
        prompt = self.prompt if self.prompt is not None else f"{len(self.prompt_token_ids)} token ids"
        rows: list[tuple[Any, str, Any]] = [("prompt", prompt, "")]
        rows += [(output.index, output.text, output.finish_reason or "") for output in self.outputs]
        cell = "<td style='text-align:left;white-space:pre-wrap'>"
        body = "".join("<tr>" + "".join(f"{cell}{escape(str(value))}</td>" for value in row) + "</tr>" for row in rows)
        return f"<table>{body}</table>"
