"""How many words of held-out windows the exported model hears wrong, and how exact its times are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from scripts.demo_model.network import Params
from scripts.demo_sound.clips import CALM, HURRIED, clip
from scripts.demo_sound.network import Shape, encoded, logits
from scripts.demo_sound.tokens import END, SECONDS, START, id_of, tokens_of
from scripts.demo_sound.training import FEATURES
from scripts.demo_sound.voices import Recordings

HELD_OUT: Final = 10**9
"""The seed of clips that no training run draws."""
_NEAR: Final = 5
"""Steps of 20 ms by which a time may be wrong."""


@dataclass
class Figures:
    """What was heard."""

    words: int = 0
    errors: int = 0
    times: int = 0
    near: int = 0
    """Times that are wrong by at most 0.1 s."""


def word_errors(wanted: Sequence[Any], found: Sequence[Any]) -> int:
    """The fewest words to replace, insert or leave out that make one text of the other."""
    row = list(range(len(found) + 1))
    for count, word in enumerate(wanted, 1):
        before, row[0] = row[0], count
        for place, other in enumerate(found, 1):
            before, row[place] = row[place], min(before + (word != other), row[place] + 1, row[place - 1] + 1)
    return row[-1]


def evaluate(params: Params, shape: Shape, tokenizer: Tokenizer, recordings: Recordings, count: int) -> Figures:
    """Whole windows, written down greedily and without rules."""
    random, figures = Random(HELD_OUT), Figures()
    made = [clip(recordings, random, SECONDS, random.choice((CALM, HURRIED)), SECONDS) for _ in range(count)]
    for first in range(0, count, 32):
        some = made[first : first + 32]
        features = np.stack([FEATURES(each.samples) for each in some])
        for each, found in zip(some, _written(params, shape, tokenizer, features), strict=True):
            wanted = tokens_of(tokenizer, each.phrases)[0][1:-1]
            words = [[token for token in text if token < shape.first_time] for text in (wanted, found)]
            figures.words += len(words[0])
            figures.errors += word_errors(*words)
            times = [[token for token in text if token >= shape.first_time] for text in (wanted, found)]
            figures.times += len(times[0])
            figures.near += sum(abs(a - b) <= _NEAR for a, b in zip(*times, strict=False))
    return figures


@partial(jax.jit, static_argnums=0)
def _encode(shape: Shape, params: Params, features: Any) -> jax.Array:
    return encoded(params, shape, features)


@partial(jax.jit, static_argnums=0)
def _likeliest(shape: Shape, params: Params, states: jax.Array, tokens: Any) -> jax.Array:
    return jnp.argmax(logits(params, shape, states, tokens)[0], axis=-1)


def _written(params: Params, shape: Shape, tokenizer: Tokenizer, features: np.ndarray) -> list[list[int]]:
    """The tokens of each window, without the first and the last."""
    start, end = id_of(tokenizer, START), id_of(tokenizer, END)
    tokens = np.full((len(features), shape.length), end, np.int32)
    tokens[:, 0] = start
    states = _encode(shape, params, features)
    for place in range(shape.length - 1):
        tokens[:, place + 1] = np.asarray(_likeliest(shape, params, states, tokens))[:, place]
        if (tokens[:, : place + 2] == end).any(axis=1).all():
            break
    return [row[1 : row.index(end)] if end in row else row[1:] for row in tokens.tolist()]
