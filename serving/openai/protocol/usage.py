"""Token counts of a response."""

from msgspec import UNSET, UnsetType

from jaxllm.serving.openai.protocol.base import Answer


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
    """Where the server tells reasoning from content."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning, 0 where the server does not tell them from content."""
        details = self.completion_tokens_details
        return 0 if isinstance(details, UnsetType) else details.reasoning_tokens
