"""A request as the engine sees it: token ids, parameters, and how far it has come."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from jaxllm.errors import RequestError
from jaxllm.owner import NOBODY, Owner
from jaxllm.sampling_params import SamplingParams
from jaxllm.structured.guide import Guide

if TYPE_CHECKING:
    from jaxllm.beam.group import BeamGroup

FinishReason = Literal["stop", "length", "abort"]


def as_request_ids(request_ids: str | Iterable[str]) -> list[str]:
    """One id or several, as a list: a string is one id, not its characters. Raises `RequestError` for anything else."""
    if isinstance(request_ids, str):
        return [request_ids]
    if not isinstance(request_ids, Iterable):
        given = type(request_ids).__name__
        raise RequestError(f"request_ids: expected a string or a list of strings, got {given}", "request_ids")
    return list(request_ids)


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One sequence to be continued.

    `prompt_token_ids` is int32 [prompt length]. While the request runs, `slot` is its row in every per-request
    table of the engine; otherwise it is -1. `guide` says which tokens may come next, where that is limited.
    """

    request_id: str
    prompt_token_ids: np.ndarray
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    owner: Owner = NOBODY

    slot: int = -1
    arrival: int = -1
    share: int = -1
    """The index of its owner in the scheduler's accounts."""
    output_token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    page_hashes: list[bytes] = field(default_factory=list)
    group: "BeamGroup | None" = None
    """Of a lane of a beam search."""
    guide: Guide | None = None
    grammar_bytes: int = 0
    """Memory that its grammar takes when compiled, where that is known."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def sequences(self) -> "list[Request]":
        """What takes slots for it: itself, or the lanes of its beam search."""
        return [self] if self.group is None else self.group.lanes

    def sibling(self, request_id: str) -> "Request":
        """Another sequence that continues the same prompt in the same way."""
        return Request(
            request_id=request_id,
            prompt_token_ids=self.prompt_token_ids,
            params=self.params,
            priority=self.priority,
            cache_salt=self.cache_salt,
            eos_token_ids=self.eos_token_ids,
            owner=self.owner,
            grammar_bytes=self.grammar_bytes,
        )
