"""Training: new clips at every step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from jaxllm.serving.media.audio.mel import MelFeatures
from jaxllm.serving.media.audio.resample import RATE
from scripts.demo_model.network import Params
from scripts.demo_model.training import optimizer
from scripts.demo_sound.clips import CALM, HURRIED, Clip, clip
from scripts.demo_sound.network import EMBEDDING, TABLES, Shape, encoded, logits
from scripts.demo_sound.tokens import NO_SPEECH, SECONDS, id_of, tokens_of, word_ids
from scripts.demo_sound.voices import WORDS, Recordings

FEATURES: Final = MelFeatures(seconds=SECONDS)
_POSITION: Final = 2 * FEATURES.hop
"""Samples of a position of the encoder."""
_FRAMES, _ATTENTION = 0.5, 0.1
"""Weights of the losses that help the text: words in positions, and hearing at the right place."""


class Batch(NamedTuple):
    """Windows: what is heard, what is to be written, and where it is said."""

    features: NDArray[np.float32]
    """(B, bins, frames)."""
    tokens: NDArray[np.int32]
    """(B, length + 1); all but the first are to be predicted."""
    weights: NDArray[np.float32]
    """(B, length), of each prediction."""
    spans: NDArray[np.int32]
    """(B, length, 2): the first position that a prediction is about, and the one after the last."""
    frames: NDArray[np.int32]
    """(B, positions): the word that is being said, from 1 on, or 0."""
    no_speech: NDArray[np.bool_]
    """(B,)."""


def draw_clip(recordings: Recordings, random: Random) -> tuple[Clip, bool]:
    """A window, which may begin anywhere between two phrases, and whether silence follows its end."""
    ends = random.random() < 0.4
    most = random.uniform(0.0, SECONDS) if ends else SECONDS + 3.0
    found = clip(recordings, random, SECONDS + 3.0, random.choice((CALM, HURRIED)), most)
    return found, ends


def _fill(batch: Batch, row: int, tokenizer: Tokenizer, random: Random, recordings: Recordings) -> None:
    """One window of a batch."""
    made, ends = draw_clip(recordings, random)
    written, spans = tokens_of(tokenizer, made.phrases)
    if len(written) > batch.tokens.shape[1]:
        return _fill(batch, row, tokenizer, random, recordings)
    samples = made.samples[: SECONDS * RATE]
    batch.features[row] = FEATURES(samples)
    if ends and random.random() < 0.5:
        # After the end of a long sound transformers has zeros for features, not those of silence.
        last = made.phrases[-1][-1].end if made.phrases else 0
        batch.features[row, :, last // FEATURES.hop + random.randint(1, 30) :] = 0.0
    count = len(written) - 1
    batch.tokens[row, : count + 1] = written
    batch.weights[row, :count] = 1.0
    positions = batch.frames.shape[1]
    batch.spans[row, :count] = np.clip(np.array(spans[1:]) // _POSITION + [0, 1], [0, 1], [positions - 1, positions])
    for word in (word for phrase in made.phrases for word in phrase):
        batch.frames[row, word.start // _POSITION : word.end // _POSITION + 1] = 1 + WORDS.index(word.text)
    batch.no_speech[row] = not made.phrases
    return None


def batches(tokenizer: Tokenizer, shape: Shape, recordings: Recordings, size: int, seed: int) -> Iterator[Batch]:
    """Batches without end."""
    random, length = Random(seed), shape.length
    while True:
        batch = Batch(
            np.zeros((size, shape.bins, 2 * shape.positions), np.float32),
            np.zeros((size, length + 1), np.int32),
            np.zeros((size, length), np.float32),
            np.zeros((size, length, 2), np.int32),
            np.zeros((size, shape.positions), np.int32),
            np.zeros(size, bool),
        )
        for row in range(size):
            _fill(batch, row, tokenizer, random, recordings)
        yield batch


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(3, 4, 5))
def update(
    shape: Shape, words: tuple[int, ...], no_speech: int, params: Params, averaged: Params, state: Any, rate: Any,
    batch: Batch,
) -> tuple[Params, Params, Any, jax.Array, jax.Array]:  # fmt: skip
    """One step: also the loss of the text, and the share of its tokens that are likeliest."""

    def loss_of(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        states = encoded(params, shape, jnp.asarray(batch.features))
        scores, heard = logits(params, shape, states, jnp.asarray(batch.tokens)[:, :-1])
        # A window without speech says so at first; what is written after that is as of others.
        wanted = jnp.asarray(batch.tokens)[:, 1:]
        wanted = wanted.at[:, 0].set(jnp.where(batch.no_speech, no_speech, wanted[:, 0]))
        chosen = jnp.take_along_axis(scores, wanted[..., None], axis=-1)[..., 0]
        total = batch.weights.sum()
        text = ((jax.nn.logsumexp(scores, axis=-1) - chosen) * batch.weights).sum() / total
        right = ((scores.argmax(axis=-1) == wanted) * batch.weights).sum() / total
        table = params[EMBEDDING][jnp.array(words)]
        said = states @ jnp.concatenate([jnp.zeros_like(table[:1]), table]).T
        frames = -jnp.take_along_axis(jax.nn.log_softmax(said), batch.frames[..., None], axis=-1).mean()
        place = jnp.arange(shape.positions)
        inside = (place >= batch.spans[..., :1]) & (place < batch.spans[..., 1:])
        mass = jnp.where(inside, heard.mean(axis=1), 0.0).sum(axis=-1)
        attention = (-jnp.log(mass + 1e-6) * batch.weights).sum() / total
        return text + _FRAMES * frames + _ATTENTION * attention, (text, right)

    gradients, (text, right) = jax.grad(loss_of, has_aux=True)(params)
    state.hyperparams["learning_rate"] = rate
    updates, state = optimizer(params, TABLES).update(gradients, state, params)
    params = jax.tree.map(lambda array, change: array + change, params, updates)
    averaged = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new, averaged, params)
    return params, averaged, state, text, right


def words_in(tokenizer: Tokenizer) -> tuple[tuple[int, ...], int]:
    """What `update` is told of the tokens: the words, and what says that there is no speech."""
    return tuple(word_ids(tokenizer)), id_of(tokenizer, NO_SPEECH)
