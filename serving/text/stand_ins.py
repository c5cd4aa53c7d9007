"""`StandIns`: places for media in messages whose chat template has none."""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping

from jaxllm.serving.text.control_tokens import ChatPrompt, ControlTokens

Written = Mapping[str, Callable[[int], str]]
"""What is written into a prompt for the first, second, ... of a medium, where the template writes nothing."""


class StandIns:
    """Words that stand for media in one conversation until its template has rendered them.

    Markers themselves would not do: what looks like a control token in a message is text.
    """

    def __init__(self, written: Written) -> None:
        self._written = written
        # Nobody who writes a message knows it.
        self._nonce = secrets.token_hex(12)
        self._texts: dict[str, str] = {}
        self._counts = Counter[str]()

    def word(self, medium: str) -> str | None:
        """A new word for a part of this medium; None where it needs a place in the template."""
        if medium not in self._written:
            return None
        self._counts[medium] += 1
        name = f"{self._nonce}x{len(self._texts):x}z"
        self._texts[name] = self._written[medium](self._counts[medium])
        return name

    def write(self, prompt: str, control: ControlTokens) -> str:
        """The rendered prompt with what is written in place of the words. A `ChatPrompt` stays one."""
        for name, text in self._texts.items():
            shown = prompt.replace(name, text)
            if isinstance(prompt, ChatPrompt):
                escaped = prompt.escaped.text.replace(name, control.named_secretly(text))
                prompt = ChatPrompt(shown, prompt.escaped.with_text(escaped))
            else:
                prompt = shown
        return prompt
