"""The interface of libraries that follow grammars, and their list."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from jaxllm.requests.structured_outputs import StructuredOutputsParams

Mask = npt.NDArray[np.int32]
"""Bits of a row of the vocabulary, int32 [W]: token t is bit t % 32 of word t // 32; 1 is allowed."""


def mask_words(vocab_size: int) -> int:
    """W, the words of a mask."""
    return -(-vocab_size // 32)


def forbid(logits: npt.NDArray[np.float32], masks: npt.NDArray[np.int32]) -> None:
    """Make the logits float32 [n, V] of all tokens that masks [n, W] do not allow -inf, in place."""
    limited = np.flatnonzero((masks != -1).any(axis=1))
    if len(limited):
        words = masks[limited].astype("<i4", copy=False)
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
        logits[limited] = np.where(bits, logits[limited], np.float32(-np.inf))


@dataclass(frozen=True)
class Vocabulary:
    """What a grammar must know of the tokens: their bytes, which the tokenizer's file has, and which ones end a text.

    `size` is that of the logits, which may be larger than the tokenizer's. `folder` has the tokenizer's files.
    """

    folder: Path
    size: int
    end_token_ids: tuple[int, ...]


class Matcher(Protocol):
    """How far one output has come in its grammar."""

    def copy(self) -> "Matcher":
        """Another matcher, as far as this one, which goes its own way."""
        ...

    def take(self, token_ids: Sequence[int]) -> str | None:
        """Go on by these tokens. Returns what is wrong if the grammar does not allow them, or has become too complex.

        Nothing may be asked of it afterwards.
        """

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must follow, as the tokenizer would write them; empty where there is a choice."""
        ...


class Grammar(Protocol):
    """A compiled grammar. Thread-safe."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning: cheap, and independent of all others."""
        ...


class Backend(Protocol):
    """A library that compiles grammars for one vocabulary."""

    def compile(self, form: StructuredOutputsParams) -> Grammar:
        """Compile, and see that a first token is possible. Thread-safe.

        Raises `RequestError` for what is wrong, not supported or too complex.
        """
        ...

    def fill(self, matchers: Sequence[tuple[Matcher, int]], masks: npt.NDArray[np.int32]) -> list[str | None]:
        """Write the mask of each (matcher, row) into its row of `masks` int32 [R, W], end tokens included.

        Returns what is wrong with each, mostly None: a grammar may turn out to be too complex at any token.
        """
        ...


BACKENDS: Final = {"llguidance": "jaxllm.structured.llguidance_backend"}
"""Modules by name; each has `make_backend(vocabulary, ...)` and `check(form)`. Imported when first needed."""

DEFAULT_BACKEND: Final = "llguidance"


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """The backend of this name. Raises `RequestError` where the model's files do not do."""
    made: Backend = import_module(BACKENDS[name]).make_backend(vocabulary)
    return made


def checker(name: str) -> Callable[[StructuredOutputsParams], None]:
    """A function that raises `RequestError` for grammars that are wrong whatever the tokenizer; takes milliseconds."""
    check: Callable[[StructuredOutputsParams], None] = import_module(BACKENDS[name]).check
    return check
