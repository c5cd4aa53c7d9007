"""How many held-out questions the exported model answers right, by kind."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from scripts.demo_model.chat import END
from scripts.demo_model.network import Params, Shape
from scripts.demo_vision.chat import IMAGE
from scripts.demo_vision.network import VisionShape, logits, rows_of
from scripts.demo_vision.training import LENGTH, Example, Turn, example

HELD_OUT = 10**9
"""The seed of pictures that no training run draws."""


@partial(jax.jit, static_argnums=0)
def _rows(vision: VisionShape, params: Params, pictures: Any) -> jax.Array:
    return rows_of(params, vision, pictures)


@partial(jax.jit, static_argnums=(0, 1))
def _likeliest(shape: Shape, first_row: int, params: Params, tokens: Any, rows: Any) -> jax.Array:
    return jnp.argmax(logits(params, shape, tokens, rows, first_row), axis=-1)


def evaluate(
    params: Params, shape: Shape, vision: VisionShape, tokenizer: Tokenizer, count: int
) -> dict[str, tuple[int, int]]:
    """Questions and right answers of each kind, decoded greedily: (asked, right)."""
    random = Random(HELD_OUT)
    asked, right = Counter[str](), Counter[str]()
    examples = [example(tokenizer, vision, random) for _ in range(count)]
    for begin in range(0, count, 64):
        for turn, found in _answers(params, shape, vision, tokenizer, examples[begin : begin + 64]):
            asked[turn.question.kind] += 1
            right[turn.question.kind] += found == turn.answer
    return {kind: (asked[kind], right[kind]) for kind in sorted(asked)}


def _answers(
    params: Params, shape: Shape, vision: VisionShape, tokenizer: Tokenizer, examples: list[Example]
) -> list[tuple[Turn, list[int]]]:
    """The question of each example with the tokens that the model answers."""
    turns = [each.turns[0] for each in examples]
    end, image = tokenizer.token_to_id(END), tokenizer.token_to_id(IMAGE)
    assert end is not None
    assert image is not None
    first = turns[0].prompt.index(image)
    tokens = np.zeros((len(turns), LENGTH), np.int32)
    for number, each in enumerate(turns):
        tokens[number, : len(each.prompt)] = each.prompt
    rows = _rows(vision, params, np.stack([each.pixels for each in examples]))
    lengths = np.array([len(each.prompt) for each in turns])
    begins = lengths.copy()
    while lengths.max() < LENGTH:
        best = np.asarray(_likeliest(shape, first, params, tokens, rows))
        tokens[np.arange(len(turns)), lengths] = best[np.arange(len(turns)), lengths - 1]
        lengths += 1
        if all(end in row[begin:length] for row, begin, length in zip(tokens, begins, lengths, strict=True)):
            break
    found = []
    for each, row, begin, length in zip(turns, tokens.tolist(), begins.tolist(), lengths.tolist(), strict=True):
        answer = row[begin:length]
        found.append((each, answer[: answer.index(end) + 1] if end in answer else answer))
    return found
