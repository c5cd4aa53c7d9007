"""Token counts of a response."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer


class PromptTokensDetails(Answer, kw_only=True):
    """Where prompt tokens came from."""

    cached_tokens: int
    """Prompt tokens whose computation the prefix cache saved."""


class CompletionTokensDetails(Answer, kw_only=True):
    """What tokens that came out were."""

    reasoning_tokens: int
    """Tokens of reasoning, without the marks around it."""


class Usage(Answer, kw_only=True):
    """Tokens that went in and came out."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens of all choices together."""
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """For chats; 0 reasoning tokens if the server does not separate reasoning from content."""

    @classmethod
    def total(cls, usages: "Sequence[Usage]") -> "Usage":
        """The sum of one or more."""
        reasoning = CompletionTokensDetails(reasoning_tokens=sum(each.reasoning_tokens for each in usages))
        return cls(
            prompt_tokens=sum(each.prompt_tokens for each in usages),
            completion_tokens=sum(each.completion_tokens for each in usages),
            total_tokens=sum(each.total_tokens for each in usages),
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(each.prompt_tokens_details.cached_tokens for each in usages)
            ),
            completion_tokens_details=reasoning if usages[0].completion_tokens_details is not UNSET else UNSET,
        )

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning, 0 where the server does not tell them from content."""
        details = self.completion_tokens_details
        return 0 if isinstance(details, UnsetType) else details.reasoning_tokens
