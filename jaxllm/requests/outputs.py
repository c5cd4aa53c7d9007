"""The outputs of a step of the engine: token ids and numbers, never text."""

from typing import Any

import msgspec
import numpy as np


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Log-probability of one token, alongside alternatives at its place.

    `rank` counts from 1 (the most likely token). `top_ids` and `top_logprobs` have equal length, most likely first;
    they need not contain `token_id`. With `logprob_token_ids`, they are those, in that order. All logprobs are natural
    logarithms of the unfiltered softmax.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class BeamTree(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The tokens that the beams of a search went on with or ended with, step after step.

    Four lists of equal length: a token comes after the one at `parents` (-1: after the prompt) and has its own
    log-probability and, in `totals`, the sum up to it. `ends` are the complete hypotheses: the place of the last token,
    "stop" or "length", and the score. `best` has the place of the last token of each sequence that is returned, -1 if
    it is left out: only of a tree that is not whole are there tokens left out, those of its last steps.
    """

    parents: list[int]
    token_ids: list[int]
    logprobs: list[float]
    totals: list[float]
    ends: list[tuple[int, str, float]]
    best: list[int] = []
    is_whole: bool = True


class RankedSequence(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A complete sequence of a request that is answered with the best of many, all at once.

    `cumulative_logprob` is the sum over `token_ids`, the end token included; `score` is what sequences are ranked by.
    `logprobs` has one entry per token, when they were asked for. `finish_reason` is "stop" or "length". The best one
    has the `tree` of the search, when it was asked for.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    cumulative_logprob: float
    score: float
    finish_reason: str
    stop_reason: int | None = None
    tree: BeamTree | None = None


class RequestDrafts(msgspec.Struct, array_like=True, gc=False):
    """What became of a request's drafts, for those who ask for it by request.

    `steps` are its steps with drafts since the last output: how many there were, and how many of them were right.
    `most` is the most that a step may have. With `is_detailed`, histograms are wanted as well.
    """

    most: int
    is_detailed: bool
    steps: list[tuple[int, int]] = []


class EngineOutput(msgspec.Struct, array_like=True):
    """News of one request after one step.

    `token_ids` are the tokens of this step, sampled or forced by a grammar (none when the request was aborted before it
    could run); `logprobs`, when the request asked for them, has one entry per new token. `prompt_logprobs` comes once,
    complete, with one entry per prompt token; the first is None, because nothing precedes it. `finish_reason` is
    "stop", "length" or "abort" in the last output of a request and None before; `stop_reason` then is the stop token id
    or the stop string, and None for the model's own end token. `scheduled_time` comes with a first output: when it was
    first scheduled, in seconds of the monotonic clock. A request whose answer is ranked has one output, with
    `sequences`, best first, and no `token_ids`. `data` is the result of a pooling model, float32 [O] or [length, O], in
    the only output of its request. `refusal` says why the request cannot be served, or not any further, and is None
    otherwise; `refused_parameter` then names the field. Such an output is the request's last, with the finish reason
    "abort". `is_fault` says that the request is not to blame, but the operator's own code or the engine's. `drafts`
    comes with a first output, and where the step had some, if it is asked for. `kv_transfer_params` comes with the last
    output of a request for another engine, which it tells where the prompt's pages are. `num_external_tokens` of the
    prompt have come from another engine; a first output tells it.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    scheduled_time: float | None = None
    sequences: list[RankedSequence] | None = None
    data: np.ndarray | None = None
    refusal: str | None = None
    refused_parameter: str | None = None
    is_fault: bool = False
    drafts: RequestDrafts | None = None
    kv_transfer_params: dict[str, Any] | None = None
    num_external_tokens: int = 0

    @property
    def finished(self) -> bool:
        """Whether this is the request's last output."""
        return self.finish_reason is not None
