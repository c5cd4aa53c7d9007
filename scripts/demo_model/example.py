"""One request with its ideal answer: the unit from which training text and held-out prompts are both built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""A chat message as chat templates take it: `role`, `content` and, for calls, `tool_calls`."""

Tool: TypeAlias = dict[str, Any]
"""A function's JSON schema in the form of the OpenAI API."""


@dataclass(frozen=True)
class Example:
    """A request, its ideal answer, and what a right answer must hold."""

    kind: str
    """What is asked for, for instance `arithmetic`; figures are given per kind."""
    key: str
    """The combination that must not be both trained on and tested."""
    prompt: str
    """The user's words; for raw text (`chat` false) its opening."""
    answer: str
    """The ideal answer, as the model would write it."""
    expected: Any
    """What `checks.is_right` compares with; its form depends on the kind."""
    system: str | None = None
    tools: tuple[Tool, ...] = ()
    chat: bool = True

    @property
    def messages(self) -> list[Message]:
        """The chat up to the answer; empty for raw text."""
        if not self.chat:
            return []
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]

    def under(self, system: str | None) -> Example:
        """This request under a system prompt, the answer changed as that prompt asks."""
        return replace(self, system=system, answer=styled(system, self))


BRIEF = "Answer with as few words as you can."
STAR = "End every answer with a star."
PIRATE = "You are a pirate."
HELPFUL = "You are a helpful assistant."
STYLES: tuple[str | None, ...] = (None, None, HELPFUL, BRIEF, BRIEF, STAR, PIRATE)
"""System prompts to choose from; None is none at all."""

SENTENCE_KINDS = frozenset({"arithmetic", "facts", "languages", "reading"})
"""Kinds whose answers are sentences, which a system prompt can change the manner of."""


def styled(system: str | None, example: Example) -> str:
    """The answer as the system prompt asks for it; JSON, lists, calls and stories stay as they are."""
    if example.kind not in SENTENCE_KINDS:
        return example.answer
    if system == BRIEF:
        return str(example.expected)
    if system == STAR:
        return example.answer + " ⭐"
    if system == PIRATE:
        return "Arr! " + example.answer
    return example.answer
