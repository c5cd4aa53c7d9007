"""Text to token ids and back, on Hugging Face's fast tokenizers."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.text.control_tokens import ChatPrompt, ControlTokens
from jaxllm.serving.text.length import TextLength
from jaxllm.serving.text.library import failing_as
from jaxllm.serving.text.loading import ADVICE, load_fast
from jaxllm.serving.text.templates.chat_template import ChatTemplate

_PROBES = ("Hello, world! 1 + 1 = 2\n", "a")

_MOST_TEMPLATES = 16
"""Maximum number of cached templates; requests may bring some."""


class Tokenizer:
    """A tokenizer and its chat template.

    Safe to use from several threads: nothing changes after construction. Encoding a batch releases the GIL and uses
    all cores.
    """

    def __init__(self, hf: Any) -> None:
        """`hf` is a fast `transformers` tokenizer."""
        self.hf = hf
        self._backend = hf.backend_tokenizer
        # A tokenizer.json may ask for both; a prompt is never cut or padded silently.
        self._backend.no_truncation()
        self._backend.no_padding()
        added: dict[int, Any] = self._backend.get_added_tokens_decoder()
        self.added_tokens: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.token_ids = {content: token_id for token_id, content in self.added_tokens.items()}
        """Ids of the added tokens by their text."""
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.control = ControlTokens(self._backend)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.size = 1 + max(vocabulary.values(), default=-1)
        self.length = TextLength(self._backend, vocabulary)
        """How long texts are, before they are encoded."""
        self.eos_token_id: int | None = hf.eos_token_id
        self._token_texts: dict[int, str] = {}
        self.template = lru_cache(maxsize=_MOST_TEMPLATES)(partial(ChatTemplate, hf))
        """The `ChatTemplate` of a source, or with None the tokenizer's own."""

    @classmethod
    def load(cls, name: str | Path, *, revision: str | None = None, download_dir: str | None = None) -> Self:
        """Load from a local folder or a hub id.

        Imports `transformers`, which takes about a second: callers do it in a thread alongside the engine's start.
        Raises `ConfigError` when there is no tokenizer, or none of the fast kind.
        """
        with failing_as(lambda reason: ConfigError(f"cannot use the tokenizer of {str(name)!r}: {reason}; {ADVICE}")):
            made = cls(load_fast(name, revision, download_dir))
            made.check()
        return made

    def check(self) -> None:
        """Let a panic of the library that any text brings about out now, before there are requests."""
        for text in _PROBES:
            try:
                ids = self._backend.encode(text).ids
                self._backend.decode(ids or [0])
            # Words that are not known, say: others may be.
            except Exception:  # noqa: BLE001
                continue

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of several texts at once. The texts must be encodable (`check_text`).

        Raises `RequestError` where the library fails, as with words that the tokenizer has no token for.
        """
        with failing_on_text():
            backend, plain = self.encoder(texts)
            encodings = backend.encode_batch_fast(plain, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encoder(self, texts: Sequence[str]) -> tuple[Any, list[str]]:
        """The backend that encodes these texts, and what it is to encode: other texts where one is a `ChatPrompt`."""
        if not any(isinstance(text, ChatPrompt) for text in texts):
            return self._backend, list(texts)
        named = self.control.named_secretly
        return self.control.backend, [
            text.escaped.text if isinstance(text, ChatPrompt) else named(text) for text in texts
        ]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that form no character become U+FFFD, ids without a token nothing.

        Raises `RequestError` for ids that no vocabulary has, and where the library fails.
        """
        with failing_on_ids(self.size):
            text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def decode_batch(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """Texts of several sequences at once, in parallel."""
        with failing_on_ids(self.size):
            texts: list[str] = self._backend.decode_batch(sequences, skip_special_tokens=skip_special_tokens)
        return texts

    def token_text(self, token_id: int) -> str:
        """Text of one token on its own, special ones included."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.decode([token_id], skip_special_tokens=False)
        return text


def failing_on_text(parameter: str = "prompt") -> AbstractContextManager[None]:
    """Turn what the library raises while it encodes into a `RequestError` about `parameter`."""
    return failing_as(lambda reason: RequestError(f"the model's tokenizer fails on this text: {reason}", parameter))


def failing_on_ids(size: int) -> AbstractContextManager[None]:
    """Turn what the library raises while it decodes into a `RequestError`; `size` is that of the vocabulary."""
    return failing_as(
        lambda reason: RequestError(
            f"the model's tokenizer cannot decode these token IDs, which must be between 0 and {size - 1}: {reason}"
        )
    )


def check_text(text: Any, parameter: str = "prompt") -> None:
    """Raise `RequestError` about `parameter` unless `text` is a string that can be encoded as UTF-8."""
    if not isinstance(text, str):
        raise RequestError(f"expected a string, got {type(text).__name__}", parameter)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = error.start
        raise RequestError(
            f"not valid Unicode: lone surrogate {text[place]!a} at character {place}", parameter
        ) from None
