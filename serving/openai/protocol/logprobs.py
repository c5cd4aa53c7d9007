"""Log-probabilities in the two formats of OpenAI, and vLLM's for prompts."""

from jaxllm.serving.http.body.base import Answer


class TokenLogprob(Answer, kw_only=True):
    """A token and its log-probability."""

    token: str
    """Its text; bytes that are not a whole character are written as \\xNN."""
    logprob: float
    """Natural logarithm of its probability; -9999.0 stands for less."""
    bytes: list[int] | None
    """Its bytes: joined with those of its neighbours they are the text in UTF-8."""


class ChosenLogprob(TokenLogprob, kw_only=True):
    """A generated token."""

    top_logprobs: list[TokenLogprob]
    """The most likely tokens at this place; with logprob_token_ids, the generated token and those."""


class ChatLogprobs(Answer, kw_only=True):
    """Log-probabilities of a chat completion."""

    content: list[ChosenLogprob] | None
    refusal: list[ChosenLogprob] | None = None


class CompletionLogprobs(Answer, kw_only=True):
    """Log-probabilities of a completion, with one entry per token in each list."""

    text_offset: list[int]
    """Where the token begins in the text, in characters."""
    token_logprobs: list[float | None]
    """Null for the first token of an echoed prompt, which nothing precedes."""
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
    """The most likely tokens, or with logprob_token_ids those, and the chosen one."""


class PromptLogprob(Answer, kw_only=True):
    """A token of the prompt, or an alternative to it."""

    logprob: float
    rank: int | None
    """1 is the most likely token."""
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""For each token of the prompt, it and its alternatives by token id; null for the first."""
