"""`LLM.beam_search`: what it may be asked for, and what it returns, under vLLM's names."""

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from jaxllm.requests.beam_options import BeamOptions, EarlyStopping
from jaxllm.requests.checked_names import CheckedNames, repr_of_changes
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.outputs import RequestOutput, TokenChoices
from jaxllm.serving.text.repr import Row, Shown, ShownInNotebooks
from jaxllm.serving.text.tokenizer import Tokenizer


class _Names(CheckedNames):
    noun: ClassVar[str] = "parameter of a beam search"
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "structured_outputs": (None,),
        "skip_special_tokens": (False,),
        "watermarking": (None, False),
        "allowed_token_ids": (None,),
    }


class BeamSearchParams(msgspec.Struct, metaclass=_Names, forbid_unknown_fields=True):
    """Parameters of `LLM.beam_search`, under vLLM's names. Checked when made; raises `RequestError`."""

    beam_width: int
    """Hypotheses that are followed, and returned."""
    max_tokens: int
    """Most tokens of a hypothesis."""
    ignore_eos: bool = False
    """Go on after the model's end token."""
    temperature: float = 0.0
    """Accepted, without effect as in vLLM: beams are ranked by the model's own probabilities."""
    length_penalty: float = 1.0
    """A hypothesis scores sum of log-probabilities / number of tokens ** length_penalty; above 0 favours long ones."""
    include_stop_str_in_output: bool = False
    """Leave the end token in tokens and text."""
    early_stopping: EarlyStopping = False
    """Whether the search ends as soon as `beam_width` hypotheses are complete; see `BeamOptions`."""

    def __post_init__(self) -> None:
        self.to_sampling_params()

    def __repr__(self) -> str:
        return repr_of_changes(self)

    def to_sampling_params(self) -> SamplingParams:
        """The parameters for the engine. Raises `RequestError` for a value that is wrong."""
        options = BeamOptions(
            width=self.beam_width,
            n=self.beam_width,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )
        made: SamplingParams = SamplingParams(
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=self.beam_width,
            beam_search=options,
        )
        return made


@dataclass(slots=True, repr=False)
class BeamSearchSequence(Shown):
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


@dataclass(slots=True, repr=False)
class BeamSearchOutput(ShownInNotebooks):
    """The result of a beam search: its hypotheses, best first."""

    sequences: list[BeamSearchSequence]

    def to_dicts(self) -> list[Row]:
        """One row for each hypothesis."""
        return [
            {
                "rank": rank,
                "text": found.text,
                "score": found.score,
                "cum_logprob": found.cum_logprob,
                "tokens": found.tokens,
                "finish_reason": found.finish_reason,
            }
            for rank, found in enumerate(self.sequences, 1)
        ]


def beams_of(output: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer | None) -> BeamSearchOutput:
    """The result of a request with `params.to_sampling_params()`; without a tokenizer it has no text."""
    sequences = []
    for found in output.outputs:
        ended = found.finish_reason == "stop"
        hidden = ended and not params.include_stop_str_in_output
        tokens = output.prompt_token_ids + found.token_ids[: len(found.token_ids) - hidden]
        total = found.cumulative_logprob or 0.0
        sequences.append(
            BeamSearchSequence(
                tokens=tokens,
                logprobs=found.logprobs or [],
                cum_logprob=total,
                score=total / len(found.token_ids) ** params.length_penalty,
                text=None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=False),
                finish_reason=found.finish_reason,
                stop_reason=found.token_ids[-1] if ended else None,
            )
        )
    return BeamSearchOutput(sequences)
