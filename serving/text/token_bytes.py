"""The bytes after single tokens, which need not be whole characters."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxllm.serving.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenBytes:
    """Gives each token's bytes: those of the tokens of a text, joined, are the text in UTF-8.

    Decoding a single token shows U+FFFD where its bytes are half a character, and loses spaces that some decoders strip
    at the beginning of a text. This reads the vocabulary instead, as the tokenizer's decoder would: byte-level (GPT-2's
    alphabet of bytes), byte fallback (`<0x0A>`), and U+2581 for spaces.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._name_of = tokenizer.hf.backend_tokenizer.id_to_token
        steps = list(_decoder_steps(tokenizer))
        kinds = {step["type"] for step in steps}
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        self._word_starts = "Metaspace" in kinds or any(
            step["type"] == "Replace" and step.get("pattern") == {"String": _WORD_START} for step in steps
        )
        self._known: dict[int, bytes] = {}

    def __call__(self, token_id: int) -> bytes:
        """The bytes of a token; none for an id without a token."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._read(token_id)
        return found

    def text(self, token_id: int) -> tuple[str, bool]:
        """The token for a person to read, and whether it is whole characters; its bytes as `\\xNN` otherwise."""
        raw = self(token_id)
        try:
            return raw.decode(), True
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in raw), False

    def _read(self, token_id: int) -> bytes:
        added = self._tokenizer.added_tokens.get(token_id)
        if added is not None:
            return added.encode()
        name: str | None = self._name_of(token_id)
        if name is None:
            return b""
        if self._alphabet is not None and all(character in self._alphabet for character in name):
            return bytes(self._alphabet[character] for character in name)
        byte = _BYTE_TOKEN.fullmatch(name) if self._byte_fallback else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        if self._word_starts:
            return name.replace(_WORD_START, " ").encode()
        return self._tokenizer.token_text(token_id).encode()


def _decoder_steps(tokenizer: Tokenizer) -> Iterator[Mapping[str, Any]]:
    """The parts of the tokenizer's decoder, as the JSON of its file describes them."""
    decoder = tokenizer.hf.backend_tokenizer.decoder
    if decoder is None:
        return
    # The state of the decoder alone: that of the whole tokenizer holds the vocabulary and takes a second.
    waiting = [json.loads(decoder.__getstate__())]
    while waiting:
        step = waiting.pop()
        yield step
        waiting += step.get("decoders", ())


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones of Latin-1 stand for themselves, others for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
