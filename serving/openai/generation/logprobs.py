"""The engine's log-probabilities in the formats of the interface."""

import codecs
from collections.abc import Sequence

from jaxllm.serving.openai.protocol.logprobs import (
    ChatLogprobs,
    ChosenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
)
from jaxllm.serving.text.outputs import Logprob, TokenChoices
from jaxllm.serving.text.token_bytes import TokenBytes

_LEAST = -9999.0
"""Stands for anything less, since minus infinity is not JSON; OpenAI's number."""


class LogprobFormat:
    """Writes log-probabilities for one request."""

    def __init__(self, token_bytes: TokenBytes, *, alternatives: int | None, as_token_ids: bool = False) -> None:
        """`alternatives` is how many were asked for; None: those that were listed, as they come.

        With `as_token_ids`, tokens are shown as numbers.
        """
        self._bytes = token_bytes
        self._alternatives = alternatives
        self._as_token_ids = as_token_ids

    def chat(self, tokens: Sequence[TokenChoices]) -> ChatLogprobs:
        """For chat completions: the most likely tokens in order, among which the chosen one need not be, or the chosen
        one and those that were listed.
        """
        content = []
        for choices in tokens:
            chosen, logprob = next(iter(choices.items()))
            top = [
                TokenLogprob(token=self._name(token_id), logprob=finite(each), bytes=list(self._bytes(token_id)))
                for token_id, each in self._shown(choices)
            ]
            content.append(
                ChosenLogprob(
                    token=self._name(chosen),
                    logprob=finite(logprob),
                    bytes=list(self._bytes(chosen)),
                    top_logprobs=top,
                )
            )
        return ChatLogprobs(content=content)

    def _shown(self, choices: TokenChoices) -> list[tuple[int, Logprob]]:
        most = self._alternatives
        if most is None:
            return list(choices.items())
        chosen = next(iter(choices))
        likely = sorted(choices.items(), key=lambda item: (item[1].rank or 0, item[0] != chosen))
        return [item for item in likely[:most] if item[1].rank is None or item[1].rank <= most]

    def completion(
        self,
        made: CompletionLogprobs,
        token_ids: Sequence[int],
        tokens: Sequence[TokenChoices | None],
        offsets: "TextOffsets",
        hidden: frozenset[int],
    ) -> None:
        """For completions, added to `made`: the chosen token is always among its alternatives.

        `hidden` are tokens that do not appear in the text.
        """
        for token_id, choices in zip(token_ids, tokens, strict=True):
            made.text_offset.append(offsets.next(b"" if token_id in hidden else self._bytes(token_id)))
            made.tokens.append(self._name(token_id, "bytes:"))
            made.token_logprobs.append(None if choices is None else finite(choices[token_id]))
            made.top_logprobs.append(
                None if choices is None else {self._name(each, "bytes:"): finite(choices[each]) for each in choices}
            )

    def _name(self, token_id: int, bytes_prefix: str = "") -> str:
        """A token as a string; `bytes_prefix` stands before one that is not whole characters."""
        if self._as_token_ids:
            return f"token_id:{token_id}"
        text, whole = self._bytes.text(token_id)
        return text if whole else bytes_prefix + text


class TextOffsets:
    """Counts the characters of a text that comes as bytes of tokens."""

    def __init__(self, begin: int = 0) -> None:
        self._characters = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, token: bytes) -> int:
        """Where the character begins in which this token begins; the next call is about the token after it."""
        place = self._characters
        self._characters += len(self._decoder.decode(token))
        return place


def prompt_logprobs(tokens: Sequence[TokenChoices | None]) -> PromptLogprobs:
    """Log-probabilities of a prompt, as vLLM returns them."""
    return [
        None
        if choices is None
        else {
            token_id: PromptLogprob(logprob=finite(each), rank=each.rank, decoded_token=each.decoded_token)
            for token_id, each in choices.items()
        }
        for choices in tokens
    ]


def finite(logprob: Logprob) -> float:
    """Its value as JSON can have it."""
    return finite_number(logprob.logprob)


def finite_number(logprob: float) -> float:
    """A log-probability, or a sum of some, as JSON can have it."""
    return max(logprob, _LEAST)
