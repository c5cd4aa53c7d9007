"""A request as the engine sees it: token ids, parameters, and how far it has come."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from jaxllm.errors import RequestError
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import PromptMedia
from jaxllm.requests.owners import NOBODY, Owner
from jaxllm.requests.prompt_embeds import PromptEmbeds
from jaxllm.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.structured.constraint import Constraint

FinishReason = Literal["stop", "length", "abort"]
Phase = Literal["prompt", "move", "run"]


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
    table of the engine; otherwise it is -1. `constraint` says which tokens may come next, where that is limited.
    """

    request_id: str
    prompt_token_ids: np.ndarray
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    owner: Owner = NOBODY
    prompt_embeds: PromptEmbeds | None = None
    """The embeddings in place of prompt tokens, where their id is `NO_TOKEN`."""
    media: PromptMedia | None = None
    """The images in place of prompt tokens."""
    lora_request: LoRARequest | None = None
    """The adapter that it asks for."""
    draw_number: int | None = None
    """Picks its noise where it has no seed, so that another engine draws the same; None: its arrival does."""

    slot: int = -1
    arrival: int = -1
    share: int = -1
    """The index of its owner in the scheduler's accounts."""
    output_token_ids: list[int] = field(default_factory=list)
    """Tokens so far of a request without a slot: it was preempted, or another engine had it."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    page_hashes: list[bytes] = field(default_factory=list)
    kept_ends: tuple[int, ...] = ()
    """In pages: where others are likely to go on from it, in order."""
    group: "SequenceGroup | None" = None
    """The group of a sequence that runs together with others."""
    constraint: "Constraint | None" = None
    grammar_bytes: int = 0
    """Memory that its grammar takes when compiled, where that is known."""
    adapter_slot: int = -1
    """Where its adapter is on the devices; -1: it has none, or waits for it."""
    adapter_digest: bytes = b""
    """sha256 of the content of its adapter; empty without one."""
    adapter_start: int = 0
    """The position of the first token that has the adapter: those before it are computed as without (aLoRA)."""
    asks_host: bool = True
    """Whether it may have pages brought back from the host before it runs: once each time it waits."""
    asks_files: bool = True
    """Whether it may have copies brought from files to the host before: as well once each time."""
    hold_again: tuple[str, ...] = ()
    """Reasons to hold it again when it is preempted."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def in_place_of_tokens(self) -> PromptEmbeds | PromptMedia | None:
        """What its prompt has in place of tokens, if anything."""
        return self.media if self.prompt_embeds is None else self.prompt_embeds

    @property
    def prefix_salt(self) -> str | None:
        """Shared by requests with equal beginnings, besides their token ids."""
        if self.in_place_of_tokens is None:
            return self.cache_salt
        return f"{self.cache_salt or ''} {self.in_place_of_tokens.page_key(0).hex()}"

    @property
    def sequences(self) -> "list[Request]":
        """What takes slots for it: itself, or all of its group."""
        return [self] if self.group is None else self.group.sequences

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
            prompt_embeds=self.prompt_embeds,
            media=self.media,
            lora_request=self.lora_request,
            grammar_bytes=self.grammar_bytes,
        )


@dataclass(eq=False, slots=True, kw_only=True)
class SequenceGroup(ABC):
    """The sequences of one request, which run together and may go on with one another's tokens.

    `sequences[0]` is the request itself. Phases: "prompt", it computes the prompt and the others are empty, when it
    starts or comes back after preemption; "move", it is decided what each goes on with, `sources` being the indexes of
    those whose pages they continue, and the next `schedule` sees to it; "run", every sequence computes its known tokens
    and then waits until all have.

    `copies` are pages (from, to), `forks` slots (from, to) whose states are copied, and `moved` slots whose pages the
    device must hear of before the next step.
    """

    sequences: list[Request]
    phase: Phase = "prompt"
    sources: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    forks: list[tuple[int, int]] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    @property
    def leader(self) -> Request:
        """The request itself."""
        return self.sequences[0]

    @property
    @abstractmethod
    def num_output_tokens(self) -> int:
        """Output tokens that every sequence has to go on with."""

    @abstractmethod
    def tokens(self, index: int, count: int) -> list[int]:
        """The last `count` tokens of what the sequence of this index goes on with."""

    def rewind(self) -> None:
        """The group has lost its slots: it begins again with the prompt. What it has found stays."""
        self.leader.output_token_ids = []
        self.phase = "prompt"
        self.forget_changes()
        for sequence in self.sequences:
            sequence.page_hashes = []

    def forget_changes(self) -> None:
        """The device was told, or need not hear of it any more."""
        self.copies.clear()
        self.forks.clear()
        self.moved.clear()
