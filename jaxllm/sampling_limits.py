"""How much one request may list: what is refused before anything is made of it."""

from collections.abc import Sized
from typing import Final

from jaxllm.errors import RequestError

MAX_SEQUENCES: Final = 16384
"""Most sequences one request may ask for (`n`, `best_of`)."""

MAX_STOPS: Final = 1024
"""Most stop strings of one request: each is looked for in every piece of text, while other requests wait."""

MAX_STOP_CHARACTERS: Final = 2**12
"""Most characters in all stop strings of one request."""

MAX_BAD_WORDS: Final = 1024
"""Most bad words of one request. Each is looked for as it is written and behind a space: twice as many in tokens."""

MAX_BAD_WORD_CHARACTERS: Final = 2**15
"""Most characters in all bad words of one request."""

MAX_BAD_WORD_TOKENS: Final = 2**14
"""Most tokens in all bad words of one request, in both forms."""

MAX_STOP_TOKEN_IDS: Final = 4096
"""Most stop tokens of one request."""

MAX_LOGPROB_TOKEN_IDS: Final = 128
"""Most tokens whose log-probabilities one request lists; vLLM's number."""

MAX_LISTED_TOKENS: Final = 2**19
"""Most token ids in the lists of a request times its sequences: each of them is sent the lists, and keeps them."""


def check_at_most(name: str, number: int, maximum: int, what: str) -> None:
    """Raise `RequestError` for a parameter that holds more than `maximum` of `what`."""
    if number > maximum:
        raise RequestError(f"{name}: {number} {what}; at most {maximum} are allowed", name)


def check_listed_tokens(num_sequences: int, *lists: Sized | None) -> None:
    """Raise `RequestError` for lists of token ids that are too long for the number of sequences."""
    listed = sum(len(each) for each in lists if each is not None)
    if listed * num_sequences > MAX_LISTED_TOKENS:
        raise RequestError(
            f"n={num_sequences} with {listed} token ids in allowed_token_ids, logit_bias, logprob_token_ids, "
            f"stop_token_ids and bad_words: n times their number must be at most {MAX_LISTED_TOKENS}",
            "n",
        )
