"""Training: new pictures and questions at every step, from the weights of the demo model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.demo_model.network import Params, Shape
from scripts.demo_model.training import optimizer
from scripts.demo_vision import chat
from scripts.demo_vision.network import VisionShape, logits, rows_of
from scripts.demo_vision.questions import Question, ask
from scripts.demo_vision.scenes import Pixels, draw_scene, picture

LENGTH = 160
"""Tokens of a row: the longest example, and further questions about its picture where they fit."""


class Batch(NamedTuple):
    """Pictures uint8 [B, side, side, 3], int32 [B, LENGTH] tokens, and float32 weights of each as a prediction."""

    tokens: NDArray[np.int32]
    weights: NDArray[np.float32]
    pictures: Pixels


class Turn(NamedTuple):
    """A question about a picture, and the token ids before and of the answer."""

    question: Question
    prompt: list[int]
    answer: list[int]


class Example(NamedTuple):
    """A picture, and a conversation about it."""

    pixels: Pixels
    turns: list[Turn]


def example(tokenizer: Tokenizer, vision: VisionShape, random: Random, length: int = 0) -> Example:
    """A new one, of one question; with a `length` of as many as have room in so many tokens."""
    scene = draw_scene(random)
    turns: list[Turn] = []
    while True:
        question = ask(scene, random)
        # From an answer that it has given already the model can copy.
        if any(turn.question.answer == question.answer for turn in turns) and random.random() < 0.9:
            continue
        texts = chat.texts(question, 0 if turns else vision.rows)
        prompt, answer = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
        length -= len(prompt) + len(answer)
        if turns and length < 0:
            return Example(picture(scene, random), turns)
        turns.append(Turn(question, prompt, answer))
        if length <= 0:
            return Example(picture(scene, random), turns)


def batches(tokenizer: Tokenizer, vision: VisionShape, size: int, seed: int) -> Iterator[Batch]:
    """Batches without end."""
    random = Random(seed)
    while True:
        tokens, weights = np.zeros((size, LENGTH), np.int32), np.zeros((size, LENGTH), np.float32)
        pictures = []
        for row in range(size):
            made = example(tokenizer, vision, random, LENGTH)
            at = 0
            for turn in made.turns:
                begin = at + len(turn.prompt)
                end = begin + len(turn.answer)
                tokens[row, at:end] = turn.prompt + turn.answer
                # Every answer counts alike: the one word that a search finds as much as a long description.
                weights[row, begin:end] = 1 / len(turn.answer)
                at = end
            pictures.append(made.pixels)
        yield Batch(tokens, weights, np.stack(pictures))


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        """Begin now."""
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._begin


class Run(NamedTuple):
    """All of the language model that changes during training."""

    params: Params
    averaged: Params
    optimizer: Any
    step: int


def begin(params: Params) -> Run:
    """A run that has made no step."""
    return Run(params, jax.tree.map(jnp.copy, params), optimizer(params).init(params), 0)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(3, 4, 5))
def update(
    shape: Shape, vision: VisionShape, first_row: int, params: Params, averaged: Params, state: Any, seeing: Params,
    rate: Any, tokens: Any, weights: Any, pictures: Any,
) -> tuple[Params, Params, Any, jax.Array]:  # fmt: skip
    """One step of the language model; the vision transformer, `seeing`, stays as it is."""
    rows = rows_of(seeing, vision, pictures)

    def loss_of(params: Params) -> jax.Array:
        scores = logits(params, shape, tokens, rows, first_row)[:, :-1]
        chosen = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
        return ((jax.nn.logsumexp(scores, axis=-1) - chosen) * weights[:, 1:]).sum() / weights.sum()

    loss, gradients = jax.value_and_grad(loss_of)(params)
    state.hyperparams["learning_rate"] = rate
    updates, state = optimizer(params).update(gradients, state, params)
    params = jax.tree.map(lambda array, change: array + change, params, updates)
    averaged = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new, averaged, params)
    return params, averaged, state, loss
