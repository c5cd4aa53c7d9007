"""Counting the tokens of a request."""

from collections.abc import Callable, Sequence

from msgspec import UNSET

from jaxllm.serving.openai.protocol.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from jaxllm.serving.reply.reasoning_count import ReasoningCount
from jaxllm.serving.text.outputs import RequestOutput


class UsageCounter:
    """Adds up what the results of a request's prompts say."""

    def __init__(
        self, prompt_lengths: Sequence[int], count_reasoning: Callable[[], ReasoningCount] | None = None
    ) -> None:
        """`count_reasoning` makes a counter for each answer, where reasoning is told from content."""
        self._prompt_tokens = sum(prompt_lengths)
        self._cached = [0] * len(prompt_lengths)
        self._completion_tokens = 0
        self._count_reasoning = count_reasoning
        self._reasoning: dict[tuple[int, int], ReasoningCount] = {}

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Take a result, or the news, of one prompt."""
        self._cached[prompt_index] = output.num_cached_tokens
        for completion in output.outputs:
            self.add_tokens(prompt_index, completion.index, completion.token_ids)

    def add_tokens(self, prompt_index: int, index: int, token_ids: Sequence[int]) -> None:
        """Take more tokens of one answer to a prompt."""
        self._completion_tokens += len(token_ids)
        if self._count_reasoning is not None:
            self._reasoning_of((prompt_index, index)).push(token_ids)

    def _reasoning_of(self, answer: tuple[int, int]) -> ReasoningCount:
        assert self._count_reasoning is not None
        if answer not in self._reasoning:
            self._reasoning[answer] = self._count_reasoning()
        return self._reasoning[answer]

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        return self._usage(self._completion_tokens, sum(counter.count for counter in self._reasoning.values()))

    @property
    def prompt_usage(self) -> Usage:
        """The counts of the prompts alone."""
        return self._usage(0, 0)

    def _usage(self, completion_tokens: int, reasoning_tokens: int) -> Usage:
        details = CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=self._prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached)),
            completion_tokens_details=UNSET if self._count_reasoning is None else details,
        )
