"""Training of the vision transformer alone: each row says what is in its quarter of the picture, as the sum of words.

The words are the language model's own embeddings, so that it can read the rows when its training begins. A step costs a
tenth of one of both models.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.demo_model.network import EMBEDDING, Params
from scripts.demo_model.training import optimizer
from scripts.demo_vision.network import VisionShape, rows_of
from scripts.demo_vision.scenes import COLORS, GROUNDS, PLACES, SHAPES, Pixels, Scene, draw_scene, picture

_HEADS = (SHAPES, tuple(COLORS), ("top", "bottom"), ("left", "right"), tuple(GROUNDS))
"""The words that a row chooses from; of the first two it may choose none."""


class Quarters(NamedTuple):
    """Pictures uint8 [B, side, side, 3], and the words int32 [B, 4, 5] of their quarters: 0 for none."""

    pictures: Pixels
    classes: NDArray[np.int32]


def quarters(size: int, seed: int) -> Iterator[Quarters]:
    """Batches without end."""
    random = Random(seed)
    while True:
        scenes = [draw_scene(random) for _ in range(size)]
        yield Quarters(np.stack([picture(scene, random) for scene in scenes]), np.stack([_classes(s) for s in scenes]))


def _classes(scene: Scene) -> NDArray[np.int32]:
    found = np.zeros((len(PLACES), len(_HEADS)), np.int32)
    for place in range(len(PLACES)):
        found[place, 2:] = 1 + place // 2, 1 + place % 2, 1 + list(GROUNDS).index(scene.ground)
    for thing in scene.things:
        found[PLACES.index(thing.place), :2] = 1 + SHAPES.index(thing.shape), 1 + list(COLORS).index(thing.color)
    return found


def words_of(language: Params, tokenizer: Tokenizer) -> tuple[jax.Array, ...]:
    """The embeddings (1 + words, hidden) of the words of each choice, after zeros for none."""
    tables = []
    for words in _HEADS:
        ids = [tokenizer.token_to_id(f" {word}") or tokenizer.token_to_id(f"Ġ{word}") for word in words]
        table = language[EMBEDDING][jnp.array(ids)]
        tables.append(jnp.concatenate([jnp.zeros_like(table[:1]), table]))
    return tuple(tables)


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def update(
    vision: VisionShape, params: Params, state: Any, words: tuple[jax.Array, ...], rate: Any, pictures: Any,
    classes: Any,
) -> tuple[Params, Any, jax.Array, jax.Array]:  # fmt: skip
    """One step: also the loss, and the share of rows that say all of their quarter."""

    def loss_of(params: Params) -> tuple[jax.Array, jax.Array]:
        half = vision.side // vision.merge // 2
        rows = rows_of(params, vision, pictures).reshape(len(pictures), 2, half, 2, half, -1)
        loss, right = jnp.float32(0), jnp.ones(rows.shape[:-1], bool)
        for number, table in enumerate(words):
            wanted = jnp.broadcast_to(classes[..., number].reshape(-1, 2, 1, 2, 1), rows.shape[:-1])
            scores = rows @ table.T * table.shape[1] ** -0.5
            chosen = jnp.take_along_axis(scores, wanted[..., None], axis=-1)[..., 0]
            loss += (jax.nn.logsumexp(scores, axis=-1) - chosen).mean()
            right &= scores.argmax(axis=-1) == wanted
        return loss, right.mean()

    (loss, right), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    state.hyperparams["learning_rate"] = rate
    updates, state = optimizer(params).update(gradients, state, params)
    return jax.tree.map(lambda array, change: array + change, params, updates), state, loss, right
