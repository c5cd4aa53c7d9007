"""Text as it is generated: whole characters only, and never a part of a stop string."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from jaxllm.serving.text.tokenizer import Tokenizer


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
        kept_tokens: AbstractSet[int] = frozenset(),
    ) -> None:
        """`kept_tokens` are special tokens that are not skipped."""
        self.token_ids: list[int] = []
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - kept_tokens if skip_special_tokens else frozenset[int]()
        # The library skips all or none.
        self._skip = skip_special_tokens and not kept_tokens
        self._step = tokenizer.decode_stream(skip_special_tokens=self._skip)
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
        except Exception:  # noqa: BLE001  (the library has no narrower type)
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
        """What is still held back when the sequence ends: incomplete bytes, shown as U+FFFD."""
        held = self._held()
        self._held_from = len(self.token_ids)
        return self._tokenizer.decode(held, skip_special_tokens=self._skip) if held else ""

    def _restart(self) -> str | None:
        """Decode afresh behind the text already shown, which a later byte would have changed ("Invalid prefix")."""
        self._step = self._tokenizer.decode_stream(skip_special_tokens=self._skip)
        pieces = [self._step(token_id) for token_id in self._held()]
        return "".join(piece or "" for piece in pieces) or None

    def _held(self) -> list[int]:
        return [token_id for token_id in self.token_ids[self._held_from :] if token_id not in self._hidden]


class StopStrings:
    """Lets text through until one of several strings is complete.

    The string that is complete first wins; of several complete at the same character, the longest. The outcome does
    not depend on how the text is cut into pieces. Text that could still become a stop string is held back.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include` lets the stop string itself through."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str, *, check: bool = True) -> str:
        """Take more text; return what may be shown. Afterwards `matched` says whether a stop string is complete.

        With `check` False, a stop string that is complete within this piece does not count.
        """
        if not piece:
            return ""
        text = self._held + piece
        found = self._find(text) if check else None
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[: start + len(self.matched) if self._include else start]
        keep = len(text) - self._partial(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        """(start, stop string) of the first to be complete in `text`."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else best[1:]

    def _partial(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string without completing it."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
