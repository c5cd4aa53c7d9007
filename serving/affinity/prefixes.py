"""Which of several engines have the beginning of a prompt: by their events where they publish them, else by guesses."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from jaxllm.serving.affinity.cached_blocks import CachedBlocks
from jaxllm.serving.affinity.guesses import BLOCK, PrefixIndex


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What decides which cached blocks a prompt can use: its ids (int32 [length]), and what they were computed with.

    `salt` tells apart prompts with equal ids. Events name salts, images and embeddings by digests that cannot be told
    from outside: such prompts are guessed.
    """

    token_ids: np.ndarray
    salt: str | None = None
    adapter: str | None = None

    @property
    def guess_salt(self) -> str | None:
        """What tells it apart from others with equal ids, where it is guessed."""
        return self.salt if self.adapter is None else repr((self.salt, self.adapter))


class KnownPrefixes:
    """What engines have cached, by the number of each. Belongs to one thread."""

    def __init__(self) -> None:
        self._guesses = PrefixIndex()
        self._cached: dict[int, CachedBlocks] = {}

    def follow(self, engine: int) -> CachedBlocks:
        """Where to tell what the engine's events say; it counts while it `is_live`."""
        return self._cached.setdefault(engine, CachedBlocks())

    def num_blocks(self, engine: int) -> int | None:
        """Blocks that the engine has cached; None where that is not known."""
        found = self._cached.get(engine)
        return len(found) if found is not None and found.is_live else None

    def _publishes(self, engine: int, prompt: Prompt) -> bool:
        return prompt.salt is None and engine in self._cached and self._cached[engine].is_live

    def shared(self, prompt: Prompt, engines: Collection[int]) -> dict[int, int]:
        """Tokens at the beginning of the prompt that each of the engines has; those that have none are left out."""
        found = {
            engine: self._cached[engine].matched(prompt.token_ids, prompt.adapter)
            for engine in engines
            if self._publishes(engine, prompt)
        }
        guessed = [engine for engine in engines if engine not in found]
        if guessed:
            blocks = self._guesses.blocks(prompt.token_ids, prompt.guess_salt)
            found |= {each: BLOCK * count for each, count in self._guesses.shared(blocks, guessed).items()}
        return {engine: tokens for engine, tokens in found.items() if tokens}

    def add(self, prompt: Prompt, engine: int) -> None:
        """The prompt was sent to this engine."""
        if self._publishes(engine, prompt):
            self._cached[engine].expect(prompt.token_ids, prompt.adapter)
        else:
            self._guesses.add(self._guesses.blocks(prompt.token_ids, prompt.guess_salt), engine)

    def forget(self, engine: int) -> None:
        """Guesses about this engine are void; its events tell by themselves what became of it."""
        self._guesses.forget(engine)
