"""Counting the tokens of a request."""

from collections.abc import Sequence

from jaxllm.serving.openai.protocol.usage import PromptTokensDetails, Usage
from jaxllm.serving.outputs import RequestOutput


class UsageCounter:
    """Adds up what the results of a request's prompts say."""

    def __init__(self, prompt_lengths: Sequence[int]) -> None:
        self._prompt_tokens = sum(prompt_lengths)
        self._cached = [0] * len(prompt_lengths)
        self._completion_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Take a result, or the news, of one prompt."""
        self._cached[prompt_index] = output.num_cached_tokens
        for completion in output.outputs:
            self._completion_tokens += len(completion.token_ids)

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached)),
        )
