"""One request of a benchmark."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Prompt = str | Sequence[int] | list[dict[str, Any]] | list["array[int]"]
"""Text, token ids, messages, or for embeddings several prompts of token ids."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request: its prompt and how many tokens it asks for.

    `prompt_tokens` is what is known of the prompt's length before the server says it; 0: nothing. `inputs` counts the
    prompts that a request for embeddings holds. `model` is another than the target's, if it is given.
    """

    prompt: Prompt
    output_tokens: int
    prompt_tokens: int = 0
    inputs: int = 1
    model: str = ""

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is messages."""
        return isinstance(self.prompt, list) and isinstance(self.prompt[0], dict)
