"""The result of a request for a person: text alongside the token ids, under vLLM's names."""

from dataclasses import dataclass, field
from typing import Any

from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.outputs import BeamTree
from jaxllm.serving.text.repr import Row, Shown, ShownInNotebooks, colored_tokens
from jaxllm.serving.text.spec_decode_metrics import SpecDecodeMetrics


@dataclass(slots=True)
class Logprob:
    """One token at one place: natural logarithm of its probability, its rank (1 is the most likely), its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenChoices = dict[int, Logprob]
"""The chosen token (first) and the most likely ones at one place, or those that were listed, by token id."""


@dataclass(slots=True, repr=False)
class CompletionOutput(Shown):
    """One generated sequence; in a stream, its part since the last one.

    `logprobs` has one entry per token of `token_ids`, when they were asked for. `finish_reason` is "stop", "length",
    "repetition" or "abort", and None while the sequence goes on; `stop_reason` is the stop string or stop token id that
    ended it, "repetition_detected" for a repetition, and None for the model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenChoices] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None
    """The adapter that it is from."""
    spec_decode_metrics: SpecDecodeMetrics | None = None
    """Of a finished sequence, with --per-request-spec-decode-metrics."""
    beam_tree: BeamTree | None = None
    """Of the best of a beam search, if it was asked for."""

    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    def _repr_html_(self) -> str | None:
        """In a notebook, the tokens colored by their probability; None without log-probabilities."""
        if self.logprobs is None:
            return None
        places = [[(each.decoded_token or "", each.logprob) for each in choices.values()] for choices in self.logprobs]
        return colored_tokens(places)


@dataclass(slots=True, repr=False)
class Delta(CompletionOutput):
    """A chunk of a stream: the part of one sequence since its last one, of the prompt at `prompt_index`."""

    prompt_index: int = 0

    @classmethod
    def of(cls, part: CompletionOutput, prompt_index: int) -> "Delta":
        """The delta of one part of a prompt's results."""
        return cls(
            part.index,
            part.text,
            part.token_ids,
            part.cumulative_logprob,
            part.logprobs,
            part.finish_reason,
            part.stop_reason,
            part.lora_request,
            part.spec_decode_metrics,
            part.beam_tree,
            prompt_index,
        )


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of the monotonic clock; None: not yet."""

    arrival_time: float
    scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(slots=True, repr=False)
class RequestOutput(ShownInNotebooks):
    """A request's result. In a stream it is what is new, and `outputs` has only the sequences that changed.

    `prompt` is None when the prompt was given as token ids. `prompt_logprobs` has one entry per prompt token; the
    first entry is None. In a stream they come with the first output. `num_cached_tokens` counts prompt tokens whose
    computation the prefix cache saved. `kv_transfer_params` tells another engine where the prompt's pages are.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[TokenChoices | None] | None = None
    metrics: RequestMetrics | None = field(default=None, repr=False)
    num_cached_tokens: int = 0
    lora_request: LoRARequest | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all outputs together."""
        return sum(len(completion.token_ids) for completion in self.outputs)

    def to_dicts(self) -> list[Row]:
        """One row for each sequence."""
        first = None if self.metrics is None else self.metrics.time_to_first_token
        common = {"request_id": self.request_id, "prompt": self.prompt}
        counts = {"prompt_tokens": len(self.prompt_token_ids), "cached_tokens": self.num_cached_tokens}
        return [
            {
                **common,
                "index": each.index,
                "text": each.text,
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
                **counts,
                "output_tokens": len(each.token_ids),
                "cumulative_logprob": each.cumulative_logprob,
                "time_to_first_token": first,
            }
            for each in self.outputs
        ]
