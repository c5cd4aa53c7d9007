"""How much one request may list: what is rejected before anything is made of it."""

from typing import Final

MAX_SEQUENCES: Final = 16384
"""Most sequences one request may ask for (`n`, `best_of`)."""

MAX_STOPS: Final = 1024
"""Most stop strings of one request: each is looked for in every piece of text, while other requests wait."""

MAX_STOP_CHARACTERS: Final = 2**12
"""Most characters in all stop strings of one request."""

MAX_BAD_WORDS: Final = 1024
"""Most bad words of one request. Each is looked for as it is written and after a space: twice as many in tokens."""

MAX_BAD_WORD_CHARACTERS: Final = 2**15
"""Most characters in all bad words of one request."""

MAX_BAD_WORD_TOKENS: Final = 2**14
"""Most tokens in all bad words of one request, in both forms."""

MAX_STOP_TOKEN_IDS: Final = 4096
"""Most stop tokens of one request."""

MAX_LOGPROB_TOKEN_IDS: Final = 128
"""Most tokens whose log-probabilities one request lists; vLLM's number."""

MAX_EXTRA_BYTES: Final = 2**16
"""Most bytes of a request's `extra_args`, as they are sent."""

MAX_EXTRA_BYTES_OF_ALL: Final = 2**22
"""The limit times the request's sequences: each of them is sent its own copy."""

MAX_LISTED_TOKENS: Final = 2**19
"""Most token ids in the lists of a request times its sequences: each of them is sent the lists, and keeps them."""
