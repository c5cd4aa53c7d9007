"""How many tokens a long text has at least, without encoding all of it."""

import json
from typing import Any

from jaxllm.models.errors import is_failure

SHORT = 2**16
"""Characters that are encoded at once to tell how many tokens they are: it takes milliseconds."""
_GLANCE = 16
"""Characters per token that are encoded first of a text that is longer; natural text has about 4."""
_LOSSLESS = {"NFC", "NFD", "Prepend", "Replace", "Sequence", "ByteLevel", "Split", "Digits", "Metaspace"}
"""Normalizers and pre-tokenizers that drop no characters; of some it depends on their settings."""
_COMPOSED = 3
"""Characters that NFC may make one of."""


class TextLength:
    """Tells texts that are surely too long; thread-safe. `backend` is a tokenizer of `tokenizers`.

    Where that fails nothing is sure: whoever encodes the text will find out.
    """

    def __init__(self, backend: Any, vocabulary: dict[str, int]) -> None:
        self._backend = backend
        self.longest = _longest_token(backend, vocabulary)
        """Most characters that a token stands for; None where that is not known, as of words that are left out."""

    def exceeds(self, text: str, tokens: int) -> bool:
        """Whether a text has surely more tokens than this. Encodes at most 16 characters for each of them."""
        if self.longest is None or len(text) <= min(_GLANCE, self.longest) * tokens:
            return False
        if len(text) > self.longest * tokens:
            return True
        try:
            (found,) = self._backend.encode_batch_fast([text[: _GLANCE * tokens]], add_special_tokens=False)
        except BaseException as error:
            if not is_failure(error):
                raise
            return False
        # The last word is cut, and may have fewer tokens when it is whole.
        return len(found.ids) > tokens + self.longest

    def end(self, text: str, tokens: int) -> str:
        """A shorter text with the same last `tokens`, if there is one."""
        if self.longest is None:
            return text
        # Twice of what could matter: where a text begins, its first tokens may be others.
        start = len(text) - 2 * tokens * self.longest
        if start <= 0:
            return text
        # Between words, where tokenizers cut first.
        space = text.find(" ", start, start + tokens * self.longest)
        return text if space < 1 or text[space - 1].isspace() else text[space:]

    def beginning(self, text: str, tokens: int) -> str:
        """A shorter text with the same first `tokens`, if there is one."""
        if self.longest is None:
            return text
        least = 2 * tokens * self.longest
        space = text.find(" ", least, least + tokens * self.longest)
        return text if space < 1 or text[space - 1].isspace() else text[:space]


def _longest_token(backend: Any, vocabulary: dict[str, int]) -> int | None:
    if type(backend.model).__name__ != "BPE":
        # Others make one token of a word that they do not know, however long.
        return None
    parts = [*_parts(backend.normalizer), *_parts(backend.pre_tokenizer)]
    kinds = {part["type"] for part in parts}
    if not kinds <= _LOSSLESS or not ("ByteLevel" in kinds or backend.model.byte_fallback):
        return None
    if any(part.get("behavior") == "Removed" or _shortens(part) for part in parts):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None
    return max(map(len, vocabulary), default=1) * (_COMPOSED if "NFC" in kinds else 1)


def _parts(component: Any) -> list[dict[str, Any]]:
    """The settings of a component, and of those in it."""
    if component is None:
        return []
    found = []
    waiting: list[Any] = [json.loads(component.__getstate__())]
    while waiting:
        part = waiting.pop()
        found.append(part)
        waiting.extend([*part.get("normalizers", ()), *part.get("pretokenizers", ())])
    return found


def _shortens(part: dict[str, Any]) -> bool:
    if part["type"] != "Replace":
        return False
    pattern = part["pattern"].get("String")
    return pattern is None or len(part["content"]) < len(pattern)
