"""Documents packed into rows of tokens, with the weight of each token in the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.demo_model.chat import END, SEPARATOR, START

LENGTHS = (128, 320, 1024)
"""Row lengths; a document goes to the shortest that holds it, since attention to the rest of a row costs time."""

PROMPT_WEIGHT = 0.1
"""Words of users and tools count this much in the loss: the model need not invent them, only know them."""

_CHUNK = 4000

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """Rows of equal length: all arrays are (rows, length)."""

    tokens: Ints
    documents: Ints
    """The number of each token's document within its row; padding has -1."""
    weights: Floats
    """The weight of each token as a prediction; 0 for a document's first token and for padding."""


class Weigher:
    """Tells what the model is to write from what it is only to read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes the markers of an assistant's turn from the tokenizer."""
        self._opening = np.array(tokenizer.encode(f"{START}assistant\n").ids, np.int32)
        self._end = tokenizer.token_to_id(END)
        self._separator = tokenizer.token_to_id(SEPARATOR)

    def __call__(self, ids: Ints) -> Floats:
        """Weights (length,) of a document: 1 for raw text and for an assistant's words with their end."""
        if ids[-1] == self._separator:
            weights = np.ones(len(ids), np.float32)
        else:
            weights = np.full(len(ids), PROMPT_WEIGHT, np.float32)
            width = len(self._opening)
            for start in np.flatnonzero(ids == self._opening[0]):
                if np.array_equal(ids[start : start + width], self._opening):
                    stop = start + width + int(np.argmax(ids[start + width :] == self._end))
                    weights[start + width : stop + 1] = 1.0
        weights[0] = 0.0
        return weights


def pack(documents: list[Ints], length: int, weigh: Weigher) -> Batch:
    """Fits whole documents into as few rows as a single pass can; longer ones than `length` are cut."""
    rows: list[list[Ints]] = []
    room: list[int] = []
    for document in (document[:length] for document in documents):
        recent = range(max(0, len(rows) - 16), len(rows))
        fitting = [row for row in recent if room[row] >= len(document)]
        if not fitting:
            rows.append([])
            room.append(length)
            fitting = [len(rows) - 1]
        row = min(fitting, key=room.__getitem__)
        rows[row].append(document)
        room[row] -= len(document)
    tokens = np.zeros((len(rows), length), np.int32)
    numbers = np.full((len(rows), length), -1, np.int32)
    weights = np.zeros((len(rows), length), np.float32)
    for row, members in enumerate(rows):
        start = 0
        for number, document in enumerate(members):
            place = slice(start, start := start + len(document))
            tokens[row, place], numbers[row, place], weights[row, place] = document, number, weigh(document)
    return Batch(tokens, numbers, weights)


def batches(tokenizer: Tokenizer, texts: Iterator[str], tokens: int) -> Iterator[Batch]:
    """Batches of about `tokens` tokens without end, of short and long rows as the documents need them."""
    weigh = Weigher(tokenizer)
    waiting: dict[int, list[Ints]] = {length: [] for length in LENGTHS}
    while True:
        for encoding in tokenizer.encode_batch_fast(list(islice(texts, _CHUNK)), add_special_tokens=False):
            length = next((length for length in LENGTHS if length >= len(encoding.ids)), LENGTHS[-1])
            waiting[length].append(np.array(encoding.ids, np.int32))
        ready: list[Batch] = []
        for length, documents in waiting.items():
            if sum(map(len, documents)) > 8 * tokens:
                ready += _split(pack(documents, length, weigh), tokens)
                waiting[length] = []
        for index in np.random.default_rng(len(ready)).permutation(len(ready)):
            yield ready[index]


def _split(batch: Batch, tokens: int) -> list[Batch]:
    """Whole batches of equal size; the few rows left over are dropped."""
    size = max(1, tokens // batch.tokens.shape[1])
    places = [slice(start, start + size) for start in range(0, len(batch.tokens) - size + 1, size)]
    return [Batch(batch.tokens[place], batch.documents[place], batch.weights[place]) for place in places]
