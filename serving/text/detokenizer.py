"""Text as it is generated: whole characters only."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final

from jaxllm.models.errors import is_failure
from jaxllm.serving.text.tokenizer import Tokenizer, failing_on_ids

_NO_CHARACTER: Final = "\ufffd"
_NEAR: Final = 16
"""Tokens that are looked at; the first may be within a character too."""


class IncrementalDecoder:
    """Decodes one sequence token by token; the pieces joined equal the text decoded at once.

    Bytes are held back until they form whole characters, so no piece ends in half an emoji; `flush` gives what is held
    when the sequence ends. (Tokenizers with byte fallback turn a whole run of byte tokens into U+FFFD when one of them
    is wrong. What was shown of such a run by then stays, and so differs from the text decoded at once.)
    """

    __slots__ = ("_after_added", "_held_from", "_hidden", "_join_added", "_skip", "_step", "_tokenizer", "token_ids")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        preserved_tokens: AbstractSet[int] = frozenset(),
    ) -> None:
        """`preserved_tokens` are special tokens that are not skipped."""
        self.token_ids: list[int] = []
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - preserved_tokens if skip_special_tokens else frozenset[int]()
        # The library skips all or none.
        self._skip = skip_special_tokens and not preserved_tokens
        self._step = self._new_step()
        self._join_added = not skip_special_tokens and not spaces_between_special_tokens
        self._after_added = False
        self._held_from = 0

    def push(self, token_id: int) -> str:
        """Take the next token; return the text it completes, which may be empty."""
        self.token_ids.append(token_id)
        if token_id in self._hidden:
            return ""
        try:
            piece = self._step(token_id)
        # The library has no narrower type, and panics.
        except BaseException as error:
            if not is_failure(error):
                raise
            with failing_on_ids(self._tokenizer.size):
                piece = self._restart()
        if self._join_added:
            content = self._tokenizer.added_tokens.get(token_id)
            if content is not None and self._after_added and piece is not None:
                piece = content
            self._after_added = content is not None
        if piece is None:
            return ""
        self._held_from = len(self.token_ids)
        return piece

    def flush(self) -> str:
        """Text still held back when the sequence ends: incomplete bytes, shown as U+FFFD."""
        held = self._held()
        self._held_from = len(self.token_ids)
        return self._tokenizer.decode(held, skip_special_tokens=self._skip) if held else ""

    def _restart(self) -> str | None:
        """Decode afresh after the text already shown, which a later byte would have changed ("Invalid prefix")."""
        self._step = self._new_step()
        pieces = [self._step(token_id) for token_id in self._held()]
        return "".join(piece or "" for piece in pieces) or None

    def _new_step(self) -> Callable[[int], str | None]:
        """A fresh decoder of the library's: the text that the next token completes, None within a character."""
        from tokenizers.decoders import DecodeStream

        # Called for every token of every stream: nothing of Python's stands between.
        return partial(DecodeStream(skip_special_tokens=self._skip).step, self._tokenizer.hf.backend_tokenizer)

    def _held(self) -> list[int]:
        return [token_id for token_id in self.token_ids[self._held_from :] if token_id not in self._hidden]


class ContinuingDecoder(IncrementalDecoder):
    """Decodes a sequence whose prompt ends within a character, which stands as U+FFFD in the prompt's text.

    Tokens that complete it show the character; what does not complete it does not show U+FFFD once more.
    """

    __slots__ = ("_shown", "_waits")

    def __init__(self, tokenizer: Tokenizer, begun: Sequence[int], **settings: Any) -> None:
        """`begun` are the prompt's tokens of the character; `settings` as of `IncrementalDecoder`."""
        super().__init__(tokenizer, **settings)
        for token_id in begun:
            super().push(token_id)
        self._shown = tokenizer.decode(begun, skip_special_tokens=False).rstrip(_NO_CHARACTER)
        self._waits = True

    def push(self, token_id: int) -> str:
        """As `IncrementalDecoder.push`."""
        return self._continued(super().push(token_id))

    def flush(self) -> str:
        """As `IncrementalDecoder.flush`."""
        return self._continued(super().flush())

    def _continued(self, piece: str) -> str:
        if piece and self._waits:
            self._waits = False
            return piece.removeprefix(self._shown).lstrip(_NO_CHARACTER)
        return piece


def begun_character(tokenizer: Tokenizer, token_ids: Sequence[int]) -> Sequence[int]:
    """The last of these tokens, with which a character begins and does not end; none: they end with a whole one."""
    if not token_ids or not tokenizer.token_text(token_ids[-1]).endswith(_NO_CHARACTER):
        return ()
    last = token_ids[-_NEAR:]
    if not tokenizer.decode(last, skip_special_tokens=False).endswith(_NO_CHARACTER):
        return ()
    for length in range(1, len(last) + 1):
        if not tokenizer.decode(last[:-length], skip_special_tokens=False).endswith(_NO_CHARACTER):
            return last[-length:]
    return ()
