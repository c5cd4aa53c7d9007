"""Prompts of random tokens.

They are arrays of ids, of 4 bytes each, or text that a tokenizer encodes as so many tokens again.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, cast

import numpy as np

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.datasets.request import LoadRequest, Prompt
from jaxllm.serving.text.tokenizer import Tokenizer

T = TypeVar("T")
_ROUNDS = 12
_TEXTS_AT_ONCE = 256


class Vocabulary:
    """The tokens that prompts are made of. With a `tokenizer`, prompts are text, of tokens that are text themselves."""

    def __init__(self, tokens: Sequence[int], rng: np.random.Generator, tokenizer: Tokenizer | None = None) -> None:
        self._tokens = np.asarray(tokens if tokenizer is None else _texts_among(tokens, tokenizer), np.int32)
        self._rng = rng
        self._tokenizer = tokenizer

    def draw(self, count: int) -> np.ndarray:
        """`count` of the tokens (int32)."""
        return self._rng.choice(self._tokens, size=count)

    def prompts(self, sequences: Iterator[np.ndarray]) -> Iterator[tuple[Prompt, int]]:
        """Each sequence of tokens as a prompt, with its length in tokens."""
        if self._tokenizer is None:
            yield from ((array("i", sequence.tobytes()), len(sequence)) for sequence in sequences)
            return
        for some in batched(sequences, _TEXTS_AT_ONCE):
            yield from self._texts(self._tokenizer, [sequence.tolist() for sequence in some])

    def _texts(self, tokenizer: Tokenizer, sequences: list[list[int]]) -> list[tuple[str, int]]:
        """Texts that are encoded as many tokens again as these sequences have.

        Tokens that are neighbours may be encoded as others. What is then too long is cut, and what is too short
        continued, until the length is right: a few rounds do, and where they do not the length is what it is.
        """
        lengths = [len(sequence) for sequence in sequences]
        texts = tokenizer.decode_batch(sequences, skip_special_tokens=False)
        found = tokenizer.encode(texts, add_special_tokens=False)
        for _ in range(_ROUNDS):
            wrong = [index for index, ids in enumerate(found) if len(ids) != lengths[index]]
            if not wrong:
                break
            mended = [
                [*found[index], *self.draw(max(0, lengths[index] - len(found[index]))).tolist()][: lengths[index]]
                for index in wrong
            ]
            again = tokenizer.decode_batch(mended, skip_special_tokens=False)
            encoded = tokenizer.encode(again, add_special_tokens=False)
            for index, text, ids in zip(wrong, again, encoded, strict=True):
                texts[index], found[index] = text, ids
        return [(text, len(ids)) for text, ids in zip(texts, found, strict=True)]


def _texts_among(tokens: Sequence[int], tokenizer: Tokenizer) -> Sequence[int]:
    """The tokens whose text is encoded as them again: not parts of characters, for example. All, if there are none."""
    texts = tokenizer.decode_batch([[token] for token in tokens], skip_special_tokens=False)
    encoded = tokenizer.encode(texts, add_special_tokens=False)
    return [token for token, ids in zip(tokens, encoded, strict=True) if ids == [token]] or tokens


def random_requests(
    count: int,
    input_len: int,
    output_len: int,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    *,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
    batch_size: int = 1,
) -> list[LoadRequest]:
    """`count` prompts; lengths are uniform in (1 - range_ratio) to (1 + range_ratio) times those given.

    All begin with the same `prefix_len` tokens besides. `batch_size` of them make a request, whose prompt is then a
    list.
    """
    outputs = random_lengths(count, output_len, range_ratio, rng)
    lengths = random_lengths(count, input_len, range_ratio, rng)
    prefix = vocabulary.draw(prefix_len)
    made = vocabulary.prompts(np.concatenate([prefix, vocabulary.draw(length)]) for length in lengths)
    if batch_size == 1:
        return [LoadRequest(prompt, tokens, length) for (prompt, length), tokens in zip(made, outputs, strict=True)]
    return [
        LoadRequest(
            cast(list["array[int]"], [prompt for prompt, _ in some]), 1, sum(length for _, length in some), len(some)
        )
        for some in batched(made, batch_size)
    ]


def random_lengths(count: int, length: int, ratio: float, rng: np.random.Generator) -> list[int]:
    """`count` whole numbers around `length`, at least 1."""
    low, high = max(1, math.floor(length * (1 - ratio))), max(1, math.ceil(length * (1 + ratio)))
    return [int(each) for each in rng.integers(low, high + 1, size=count)]


def prefix_repetition(
    count: int,
    prefix_len: int,
    suffix_len: int,
    num_prefixes: int,
    output_len: int,
    vocabulary: Vocabulary,
    order: Sequence[int],
) -> list[LoadRequest]:
    """Prompts that begin with one of a few prefixes, as many with each as with the others but one.

    Raises `ConfigError` where there are fewer prompts than prefixes, or where prompts would be empty.
    """
    if count < num_prefixes:
        raise ConfigError(f"num_prompts={count}: must be at least the number of prefixes, {num_prefixes}")
    if prefix_len + suffix_len == 0:
        raise ConfigError(
            "prefix_repetition_prefix_len and prefix_repetition_suffix_len: at least one must be greater than 0"
        )
    prefixes = [vocabulary.draw(prefix_len) for _ in range(num_prefixes)]
    sequences = (np.concatenate([prefixes[index % num_prefixes], vocabulary.draw(suffix_len)]) for index in order)
    return [LoadRequest(prompt, output_len, length) for prompt, length in vocabulary.prompts(sequences)]


def random_prompts(lengths: Sequence[tuple[int, int]], vocabulary: Vocabulary) -> list[LoadRequest]:
    """Random prompts of given lengths: (tokens in, tokens out) of each."""
    made = vocabulary.prompts(vocabulary.draw(length) for length, _ in lengths)
    return [LoadRequest(prompt, tokens, length) for (prompt, length), (_, tokens) in zip(made, lengths, strict=True)]


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last perhaps shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
